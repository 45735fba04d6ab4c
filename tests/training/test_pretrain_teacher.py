"""Pretraining that starts from an existing model: its weights, its network, the best held-out weights, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from di4c_cli import load, recipe_file
from di4c_cli.data.stream import DataSpec, Shuffled
from di4c_cli.errors import UserError
from di4c_cli.methods.denoising import Denoising
from di4c_cli.noise import Noise
from di4c_cli.training import pretrain_data
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.pretrain_config import PretrainConfig
from di4c_cli.training.run import RunOptions, pretrain
from tests.helpers.small_run import make_teacher, run, run_cut, same

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = {"training.iterations": 6, "training.batch": 4, "training.checkpoint_every": 3, "evaluate_every": 2}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A text in the vocabulary of the golden models."""
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"w{3 + i * i % 17} w{3 + i % 7}" for i in range(600)))
    return path


def recipe(name: str, teacher: Path | str, **changes: Any) -> PretrainConfig:
    values = SMALL | {"teacher": str(teacher)} | {key.replace("__", "."): value for key, value in changes.items()}
    return recipe_file.read_pretrain(name, values)


def first_loss(settings: PretrainConfig) -> float:
    """The loss of the teacher itself on the samples of the first step."""
    teacher, training = load(str(settings.teacher)), settings.training
    denoiser = teacher.denoiser
    items, _ = pretrain_data.open_data(settings, teacher)
    sizes = (denoiser.length, denoiser.symbols, denoiser.labels, training.label_dropout)
    batch = Shuffled(items, DataSpec(settings.seed, "data/1", *sizes)).read(0, training.batch)
    return float(Denoising(settings.method, denoiser).loss(batch, Noise(settings.seed, batch.index, "train/1")).total)


@pytest.mark.parametrize("kind", ["bert", "llada"])
def test_pretrain_goes_on_from_a_checkpoint_of_any_format(kind: str, words: Path, tmp_path: Path) -> None:
    flags = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    flags += ["--set", "training.optimizer.warmup=0", "--data", str(words), "--out", str(tmp_path / "run")]
    code, said = run(["pretrain", "--teacher", str(GOLDEN / kind), *flags])
    assert code == 0 and "recipe is pretrain/masked-lm" in said and "before the first step" in said, said
    before, after = load(str(GOLDEN / kind)), load(str(tmp_path / "run"))
    assert after.config.kind == "teacher" and "teacher" not in after.config.provenance
    assert after.config.provenance["parent"]["provenance"]["format"] == kind
    for part in ("process", "codec", "sampling", "labels", "name"):
        assert getattr(after.config, part) == getattr(before.config, part), part
    drop = {"dropout": 0.0}
    assert after.config.network | drop == before.config.network | drop
    settings = recipe("pretrain/masked-lm", GOLDEN / kind, data=str(words))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert rows[0]["loss"] == pytest.approx(first_loss(settings), rel=1e-5)
    own, moved = (model.denoiser.network.state_dict() for model in (before, after))
    assert own.keys() == moved.keys() and any(not torch.equal(own[name], moved[name]) for name in own)
    assert len(after.decode(after.sample(2, steps=2))) == 2


def test_pretrain_from_a_teacher_resumes_with_the_same_bits(tmp_path: Path) -> None:
    settings = recipe("pretrain/digits", make_teacher(tmp_path / "teacher"), training__dropout=0.1)
    run_cut(settings, tmp_path / "one")
    run_cut(settings, tmp_path / "cut", (1, 1), (1, 4))
    assert same(*(load_file(tmp_path / name / "teacher" / "model.safetensors") for name in ("one", "cut")))


def test_pretrain_keeps_a_teacher_that_no_step_improves(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "teacher")
    settings = recipe(
        "pretrain/digits", teacher, training__ema=0.0, training__optimizer__lr=3.0, training__optimizer__warmup=0
    )
    pretrain(settings, tmp_path / "run", RunOptions())
    assert same(*(load_file(path / "model.safetensors") for path in (teacher, tmp_path / "run" / "teacher")))
    assert load(str(tmp_path / "run")).config.provenance["iterations"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "network.width=8"], "Network.width and a teacher exclude each other"),
        (["--set", "vocabulary=300"], "Vocabulary and a teacher exclude each other"),
        (["--tokenizer", "here"], "Tokenizer and a teacher exclude each other"),
        (["--set", "labels=3"], "Labels and a teacher exclude each other"),
        (["--data", "teacher"], "no teacher's samples"),
    ],
)
def test_pretrain_rejects_what_contradicts_the_teacher(words: list[str], told: str, tmp_path: Path) -> None:
    flags = ["--recipe", "pretrain/digits", "--teacher", "digits", "--out", str(tmp_path / "run")]
    code, said = run(["pretrain", *flags, *words])
    assert code == 2 and told in said and not (tmp_path / "run").exists()


def test_pretrain_rejects_teachers_that_do_not_fit(tmp_path: Path) -> None:
    for name, teacher, told in (
        ("pretrain/digits", "digits-student", "student with λ"),
        ("pretrain/digits", "fashion", "49 positions and 64 symbols does not fit digits"),
    ):
        with pytest.raises(UserError, match=told):
            pretrain(recipe(name, teacher), tmp_path / "run", RunOptions())
    assert not (tmp_path / "run").exists()
