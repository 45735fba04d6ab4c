"""Runs whose data is read ahead in threads: the same student, the same errors, nothing left behind."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from di4c_cli import recipe_file
from di4c_cli.data import prefetch
from di4c_cli.data.cache import root
from di4c_cli.data.stream import DataSpec, NoData
from di4c_cli.errors import Failure
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.run_folder import RunFolder, RunState
from tests.helpers.small_run import (
    PATIENCE,
    arguments,
    losses,
    run_cut,
    same,
    small_recipe,
    started,
    wait_for_steps,
    weights,
)

CODES = 49 * 2 + 12
"""Bytes of an image in the cache of fashion."""


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("di4c-reader")]


@pytest.mark.slow
def test_run_stopped_anywhere_gives_the_same_student_with_any_number_of_workers(teacher: Path, tmp_path: Path) -> None:
    for workers, cuts in ((0, []), (3, [(1, 2), (1, 4)])):
        recipe = small_recipe(teacher, training__workers=workers, training__micro_batch=2)
        run_cut(recipe, tmp_path / str(workers), *cuts)
    assert same(weights(tmp_path / "0"), weights(tmp_path / "3"))
    assert losses(tmp_path / "0") == losses(tmp_path / "3")
    assert not readers()
    assert RunFolder(tmp_path / "0").state(recipe) is RunState.FINISHED, "it may be resumed with more workers"


@pytest.mark.slow
def test_images_are_encoded_for_the_batches_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped and resumed with workers, with the codes of the first part in the cache: the same student."""
    pictures = np.random.default_rng(0).integers(0, 256, (40, 7, 7), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        path = tmp_path / "images" / f"class-{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).resize((28, 28)).save(path)
    changes = {"data": str(tmp_path / "images"), "training.iterations": 4, "training.batch": 2, "training.flip": True}
    changes |= {"training.synthetic_share": 0.0, "method.latents": 2, "training.checkpoint_every": 2}
    for workers, cuts in ((0, []), (2, [(1, 1), (1, 3)])):
        monkeypatch.setenv("DI4C_CACHE", str(tmp_path / f"cache-{workers}"))
        recipe = recipe_file.read("di4c/fashion", changes | {"training.workers": workers})
        run_cut(recipe, tmp_path / str(workers), *cuts)
        (codes,) = root().rglob("codes.bin")
        assert 8 <= codes.stat().st_size / CODES <= 10, "eight samples, and two that are checked first"
    assert same(weights(tmp_path / "0"), weights(tmp_path / "2"))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_record_in_mid_run_is_told_in_the_same_words(teacher: Path, tmp_path: Path, workers: int) -> None:
    x = np.zeros((40, 64), np.uint8)
    x[20] = 200  # the teacher has 8 symbols
    np.save(tmp_path / "data.npy", x)
    recipe = small_recipe(
        teacher, data=str(tmp_path / "data.npy"), training__iterations=30, training__workers=workers, method__latents=2
    )
    with pytest.raises(Failure, match="record 20: id 200 is outside the teacher's vocabulary of 8") as caught:
        distill(recipe, tmp_path / "run", RunOptions())
    assert caught.value.exit_code == 1 and "tokenizer" in caught.value.hint
    assert len(losses(tmp_path / "run")) == 3, "the steps before that record"
    assert not readers()


@pytest.mark.slow
def test_signal_ends_a_run_with_workers_and_its_threads(teacher: Path, tmp_path: Path) -> None:
    words = arguments(teacher, tmp_path / "run", "--set", "training.workers=2", iterations=100_000)
    with started(words) as process:
        wait_for_steps(tmp_path / "run", 2)
        threads = psutil.Process(process.pid).num_threads()
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    assert threads > 2 and process.returncode == 128 + signal.SIGTERM
    assert "Stopped after step" in said and "Traceback" not in said


def test_reads_of_a_gpu_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here; that the threads ask for it is all that can be seen."""
    asked: list[str] = []
    monkeypatch.setattr(prefetch.Batch, "pinned", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(prefetch, "_use_device", lambda device: asked.append(device.type))
    source = NoData(DataSpec(0, "data/1", 2, 7))
    with prefetch.prefetched(source, [(0, 2), (2, 2)], 1, torch.device("cuda")) as ahead:
        assert ahead.read(0, 2).index == [0, 1] and ahead.read(2, 2).index == [2, 3]
    assert asked == ["cuda", "pinned", "pinned"]
