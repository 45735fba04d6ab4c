"""`di4c bench-latency` and `benchmarks.latency`: intervals, turns, table, last line and yardsticks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from scipy.stats import wilcoxon
from typer.testing import CliRunner

from benchmarks import textbook
from benchmarks.latency import compare
from benchmarks.latency import main as compare_main
from di4c_cli.bench import pairs
from di4c_cli.bench.latency import BatchSeconds, describe, interleaved, paired_ratio
from di4c_cli.bench.pairs import SHAPES, ModelPair, Side, random_pair, real_pair
from di4c_cli.cli.app import app
from di4c_cli.codec.base import Plain
from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.network import build
from di4c_cli.process import Gaussian, Masked
from di4c_cli.sampler.plan import SamplingPlan
from tests.helpers.published_models import maskgit, tauldr
from tests.helpers.small_models import save_pair, small_model

SIZES = {"length": 8, "width": 16, "depth": 1, "heads": 2, "mlp": 16, "labels": 3}


def tiny(latent: bool) -> Denoiser:
    torch.manual_seed(0)
    net = build({"type": "maskgit", "symbols": 6, **SIZES, "latent": {"dim": 1} if latent else None})
    return Denoiser(net, Masked(6), LatentPrior() if latent else None, labels=3).eval()


def test_interleaved_sides_take_turns_and_warmup_is_discarded() -> None:
    order: list[str] = []
    sides = {name: Side(lambda i, name=name: order.append(f"{name}{i}")) for name in "ab"}
    seconds = interleaved(sides, batches=3, warmup=1)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3"]
    assert [len(values) for values in seconds.values()] == [3, 3]
    assert all(spent.decoding == 0 for values in seconds.values() for spent in values)


def test_interleaved_decodes_every_batch_that_it_samples() -> None:
    decoded: list[int] = []
    seconds = interleaved({"a": Side(lambda i: 10 * i, decoded.append)}, batches=2, warmup=1)
    assert decoded == [0, 10, 20]
    assert all(spent.sampling > 0 and spent.decoding > 0 for spent in seconds["a"])


def test_paired_ratio_is_the_signed_rank_interval() -> None:
    """The ends are where the signed-rank test stops rejecting at 5 %."""
    rng = np.random.default_rng(1)
    under = rng.uniform(1, 3, 30)
    over = under * np.exp(rng.normal(0.04, 0.02, 30))
    got = paired_ratio(over.tolist(), under.tolist())
    logs = np.log(over / under)
    assert got["low"] < got["ratio"] < got["high"] and got["ratio"] == pytest.approx(math.exp(0.04), abs=0.02)
    for end in ("low", "high"):
        inside = math.log(got[end]) + (1e-3 if end == "low" else -1e-3)
        outside = math.log(got[end]) - (1e-3 if end == "low" else -1e-3)
        assert wilcoxon(logs - inside).pvalue > 0.04 > wilcoxon(logs - outside).pvalue - 0.02


def test_paired_ratio_covers_the_truth_and_ignores_disturbed_batches() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        under = rng.uniform(1, 2, 12)
        over = 1.02 * under * np.exp(rng.normal(0, 0.03, 12))
        got = paired_ratio(over.tolist(), under.tolist())
        hits += got["low"] <= 1.02 <= got["high"]
    assert hits / 400 > 0.92
    disturbed = [1.0] * 20 + [9.0]
    assert paired_ratio(disturbed, [1.0] * 21)["ratio"] == 1.0


def test_describe_summarises_one_side() -> None:
    figures = describe([BatchSeconds(0.5 + k, 0.5) for k in range(4)], batch=8, length=10)
    assert figures["decoding"] == 0.2 and figures["sampling_seconds"] == [0.5, 1.5, 2.5, 3.5]
    assert figures["mean"] == figures["p50"] == 2.5 and figures["std"] == pytest.approx(1.290994)
    assert figures["p95"] == pytest.approx(3.85) == np.quantile([4, 3, 2, 1], 0.95)
    assert figures["samples_per_second"] == 3.2 and figures["tokens_per_second"] == 32


@pytest.mark.parametrize("way", [{}, {"sampler": "confidence", "guidance": 2.0}])
def test_compare_measures_all_four_sides(way: dict[str, object]) -> None:
    settings = SamplingPlan(steps=3, **way)  # type: ignore[arg-type]
    weights = {"teacher": "random", "student": "random"}
    result = compare(ModelPair("tiny", tiny(False), tiny(True), settings, 2, Plain(), weights), 10, 1)
    assert list(result["sides"]) == ["teacher", "student", "body only", "textbook"]
    assert all(len(side["seconds"]) == 10 and side["peak_mb"] > 1 for side in result["sides"].values())
    for key in ("overhead", "over_body", "textbook_over_ours"):
        assert 0 < result[key]["low"] <= result[key]["ratio"] <= result[key]["high"]


def test_textbook_samplers_leave_no_mask() -> None:
    for way in ({}, {"sampler": "confidence", "guidance": 2.0}):
        x = textbook.sample(tiny(True), SamplingPlan(steps=3, **way), 5)  # type: ignore[arg-type]
        assert x.shape == (5, 8) and int(x.max()) < 6
    net = build({"type": "maskgit", "symbols": 6, **SIZES, "latent": {"dim": 4, "distribution": "normal"}})
    wide = Denoiser(net, Masked(6), LatentPrior(4, "normal"), labels=3)
    assert textbook.sample(wide, SamplingPlan(steps=2), 5).shape == (5, 8)
    sizes = {"channels": 8, "multipliers": [1, 2], "blocks": 1, "attention": [1], "time_dim": 8}
    net = build({"type": "unet", "symbols": 6, "shape": [1, 4, 4], **sizes})
    x = textbook.sample(Denoiser(net, Gaussian(6)), SamplingPlan(steps=3, grid="pixels", last="argmax"), 2)
    assert x.shape == (2, 16) and int(x.min()) >= 0 and int(x.max()) < 6


@pytest.mark.slow
def test_shapes_have_the_published_sizes() -> None:
    facts = {name: (shape.sampling["steps"], shape.batch) for name, shape in SHAPES.items()}
    assert facts["cifar10"] == (10, 50) and facts["imagenet"] == (4, 64) and facts["openwebtext"] == (16, 16)
    with torch.device("meta"):
        sizes = {name: build(shape.network) for name, shape in SHAPES.items()}
    counts = {name: sum(p.numel() for p in net.parameters()) for name, net in sizes.items()}
    assert counts["cifar10"] == 35_749_766
    assert counts["imagenet"] == 174_160_874 and counts["openwebtext"] == 169_627_218


@pytest.mark.slow
def test_bench_latency_states_a_reduced_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"type": "dit", "symbols": 9, "length": 6, "width": 8, "depth": 1, "heads": 2, "cond_dim": 4}
    shape = replace(SHAPES["openwebtext"], network=small, process={"type": "masked", "symbols": 9})
    monkeypatch.setitem(SHAPES, "openwebtext", shape)
    pair = random_pair(shape, "cpu", None, None)
    assert pair.batch == 1 and "batch 1 instead of 16" in pair.note
    done = CliRunner().invoke(app, ["bench-latency", "--shape", "openwebtext", "--batches", "10"])
    assert done.exit_code == 0 and "batch 1 instead of 16" in done.stderr and Path("latency.png").is_file()
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == "latency" and last["results"][0]["batch"] == 1
    assert "OpenWebText" in done.stdout and "teacher (sec.)" in done.stdout
    assert "random weights" in done.stderr and last["results"][0]["weights"] == dict.fromkeys(
        ("teacher", "student"), "random"
    )


PAPER_TABLE = {
    "CIFAR-10": (10, 50, "0.5515±0.0024", "0.5786±0.0017"),
    "ImageNet": (4, 64, "2.0741±0.0035", "2.0734±0.0043"),
    "OpenWebText": (16, 16, "3.3409±0.0417", "3.4817±0.0730"),
}
"""tab:latency: steps, batch, seconds of teacher and student."""


@pytest.mark.slow
def test_bench_latency_prints_the_table_of_the_paper(tmp_path: Path) -> None:
    """Small pairs in the paper's formats: rows, columns, settings, the paper's values, and decoding counted."""
    text_teacher, text_student = save_pair(tmp_path / "text", "text")
    text = ["--teacher", text_teacher, "--student", text_student]
    refs = {"cifar10": tauldr(), "imagenet": maskgit(tmp_path), "openwebtext": text}
    words: list[str] = ["bench-latency", "--shape", "paper", "--warmup", "1"]
    for row, flags in refs.items():
        words += ["--teacher", f"{row}={flags[1]}", "--student", f"{row}={flags[3]}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = [
        [cell.strip() for cell in line.strip("┃│").split("┃" if "┃" in line else "│")]
        for line in done.stdout.splitlines()
    ]
    header = ["Experiment", "# steps", "batch", "teacher (sec.)", "student (sec.)", "decoding"]
    place = lines.index(header)
    table = {cells[0]: cells for cells in lines[place + 2 : place + 5]}
    assert list(table) == list(PAPER_TABLE)
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    for (title, (steps, batch, *seconds)), result in zip(PAPER_TABLE.items(), results, strict=True):
        cells = table[title]
        assert cells[1:3] == [str(steps), f"1 [{batch}]"]
        assert [cell.partition(" ")[2] for cell in cells[3:5]] == [f"[{value}]" for value in seconds]
        assert "random" not in result["weights"].values() and result["note"] == f"batch 1 instead of {batch}"
        for name, side in result["sides"].items():
            decoding = [total - ids for total, ids in zip(side["seconds"], side["sampling_seconds"])]
            assert all(value > 0 for value in decoding) and 0 < side["decoding"] < 1, (title, name)
    assert "random" not in done.stderr and "tab:latency" in done.stdout
    assert "student / teacher" in done.stdout and "paper 1.049" in done.stdout


def test_pairs_without_a_vqgan_decode_with_a_random_one_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"channels": 32, "multipliers": [1] * 5, "blocks": 1, "attention_resolutions": [], "z_channels": 8}
    monkeypatch.setattr(pairs, "PUBLISHED_VQGAN", {**small, "embed_dim": 8})
    network = {
        "type": "maskgit",
        "symbols": 6,
        "length": 4,
        "labels": 3,
        "width": 16,
        "depth": 1,
        "heads": 2,
        "mlp": 16,
    }
    shape = replace(SHAPES["imagenet"], network=network, process={"type": "masked", "symbols": 6})
    pair = random_pair(shape, "cpu", None, 2)
    assert pair.codec.decode(torch.zeros(2, 4, dtype=torch.long)).shape == (2, 32, 32, 3)
    assert "VQGAN of the published size with random weights" in pair.note
    teacher = small_model("teacher")
    teacher.config.codec = {"type": "none"}
    assert "VQGAN" in real_pair(teacher, None, None, 1, shape).note
    assert real_pair(teacher, None, None, 1).weights["student"] == "small-digits, random λ weights"


def test_pairs_show_the_seconds_of_the_paper_at_its_steps_only() -> None:
    teacher, student = small_model("teacher"), small_model("student", 1)
    assert real_pair(teacher, student, None, 1, SHAPES["imagenet"]).paper is not None
    assert real_pair(teacher, student, 3, 1, SHAPES["imagenet"]).paper is None
    assert real_pair(teacher, student, None, 1).paper is None


@pytest.mark.slow
def test_benchmark_compares_a_student_with_the_yardsticks() -> None:
    program = typer.Typer()
    program.command()(compare_main)
    words = ["--student", "words-student", "--steps", "1", "--batch-size", "1", "--warmup", "1"]
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout.splitlines()[-1])["results"]
    assert {"overhead", "over_body", "textbook_over_ours"} <= result.keys() and result["batch"] == 1
    assert "textbook 32-bit sampler / ours" in done.stdout


MISTAKES = [
    (["--shape", "mnist"], "unknown"),
    (["--shape", "cifar10", "--teacher", "digits"], "exclude each other"),
    (["--student", "digits-student", "--student", "words-student"], "two models for one row"),
    (["--steps", "0"], "impossible"),
    (["--out", "x.pdf"], "not a .png"),
    (["--device", "abacus"], "no device"),
]


@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_bench_latency_reports_a_mistake_in_one_sentence(words: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["bench-latency", *words])
    assert done.exit_code == 2 and reason in done.stderr and len(done.stderr.strip().splitlines()) == 1
