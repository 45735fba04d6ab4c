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
from di4c_cli.bench.latency import describe, interleaved, paired_ratio
from di4c_cli.bench.pairs import SHAPES, ModelPair, random_pair
from di4c_cli.cli.app import app
from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.network import build
from di4c_cli.process import Gaussian, Masked
from di4c_cli.sampler.plan import SamplingPlan

SIZES = {"length": 8, "width": 16, "depth": 1, "heads": 2, "mlp": 16, "labels": 3}


def tiny(latent: bool) -> Denoiser:
    torch.manual_seed(0)
    net = build({"type": "maskgit", "symbols": 6, **SIZES, "latent": {"dim": 1} if latent else None})
    return Denoiser(net, Masked(6), LatentPrior() if latent else None, labels=3).eval()


def test_interleaved_sides_take_turns_and_warmup_is_discarded() -> None:
    order: list[str] = []
    sides = {name: (lambda i, name=name: order.append(f"{name}{i}")) for name in "ab"}
    seconds = interleaved(sides, batches=3, warmup=1)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3"]
    assert [len(values) for values in seconds.values()] == [3, 3]


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
    figures = describe([1.0, 2.0, 3.0, 4.0], batch=8, length=10)
    assert figures["mean"] == figures["p50"] == 2.5 and figures["std"] == pytest.approx(1.290994)
    assert figures["p95"] == pytest.approx(3.85) == np.quantile([4, 3, 2, 1], 0.95)
    assert figures["samples_per_second"] == 3.2 and figures["tokens_per_second"] == 32


@pytest.mark.parametrize("way", [{}, {"sampler": "confidence", "guidance": 2.0}])
def test_compare_measures_all_four_sides(way: dict[str, object]) -> None:
    settings = SamplingPlan(steps=3, **way)  # type: ignore[arg-type]
    result = compare(ModelPair("tiny", tiny(False), tiny(True), settings, batch=2), 10, 1)
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


@pytest.mark.slow
def test_benchmark_compares_a_student_with_the_yardsticks() -> None:
    program = typer.Typer()
    program.command()(compare_main)
    words = ["--student", "tiny-text-student", "--steps", "1", "--batch-size", "1", "--warmup", "1"]
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout.splitlines()[-1])["results"]
    assert {"overhead", "over_body", "textbook_over_ours"} <= result.keys() and result["batch"] == 1
    assert "textbook 32-bit sampler / ours" in done.stdout


MISTAKES = [
    (["--shape", "mnist"], "unknown"),
    (["--shape", "cifar10", "--teacher", "tiny-digits"], "exclude each other"),
    (["--steps", "0"], "impossible"),
    (["--out", "x.pdf"], "not a .png"),
    (["--device", "abacus"], "no device"),
]


@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_bench_latency_reports_a_mistake_in_one_sentence(words: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["bench-latency", *words])
    assert done.exit_code == 2 and reason in done.stderr and len(done.stderr.strip().splitlines()) == 1
