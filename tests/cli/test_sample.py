"""`di4c sample` through the real command: every flag, every mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from di4c_cli.build import build_denoiser
from di4c_cli.cli.app import app
from di4c_cli.config import ModelConfig
from di4c_cli.generate import shards
from di4c_cli.model_folder import save_folder

TEXT = {"type": "dit", "symbols": 1500, "length": 12, "width": 32, "depth": 1, "heads": 2, "cond_dim": 8}
CODES = {"type": "maskgit", "symbols": 5, "length": 16, "width": 32, "depth": 1, "heads": 2, "mlp": 32}
GREY = {
    "type": "unet", "symbols": 5, "shape": [1, 4, 4], "channels": 8, "multipliers": [1, 2], "blocks": 1,
    "attention": [1], "time_dim": 8,
}  # fmt: skip


def save(folder: Path, name: str, network: dict[str, Any], process: str, codec: dict[str, Any], **more: Any) -> str:
    """A model folder with random weights."""
    torch.manual_seed(0)
    settings = {"kind": "teacher", "name": name, "network": network, "codec": codec, **more}
    config = ModelConfig.model_validate({**settings, "process": {"type": process, "symbols": network["symbols"]}})
    denoiser = build_denoiser(config)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save_folder(folder / name, config, denoiser, "# card\n")
    return str(folder / name)


def read_shards(folder: Path) -> np.ndarray:
    """All ids of a folder, in the order of its shards."""
    return np.concatenate([np.load(path) for path in sorted(folder.glob("ids-*.npy"))])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    text = {"type": "text", "asset": "text-units.json"}
    pixels = {"type": "pixels", "shape": [1, 4, 4], "levels": 5}
    codes = CODES | {"labels": 3}
    teacher = save(folder, "codes", codes, "masked", pixels, labels=3)
    (folder / "recipe.yaml").write_text(f"teacher: {teacher}\n")
    student = {"provenance": {"teacher": "codes"}, "latent": {"inject": "film"}, "labels": 3}
    return {
        "text": save(folder, "text", TEXT, "masked", text),
        "codes": teacher,
        "student": save(folder, "pupil", codes, "masked", pixels, **(student | {"kind": "student"})),
        "grey": save(folder, "grey", GREY, "gaussian", pixels, sampling={"grid": "pixels", "last": "argmax"}),
    }


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["sample", *words])


def result(*words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def test_sample_writes_text_to_stdout_and_the_rest_to_stderr(models: dict[str, str]) -> None:
    done = run("--teacher", models["text"], "--steps", "3", "-n", "2", "--seed", "4")
    assert done.exit_code == 0 and done.stdout.startswith("--- sample 0\n") and "--- sample 1" in done.stdout
    assert "float64" in done.stderr and "3 steps" in done.stderr
    again = run("--teacher", models["text"], "--steps", "3", "-n", "2", "--seed", "4", "--batch-size", "1")
    assert again.stdout == done.stdout
    assert run("--teacher", models["text"], "--steps", "3", "-n", "2", "--seed", "5").stdout != done.stdout


def test_prompt_is_never_changed(models: dict[str, str], tmp_path: Path) -> None:
    told = result("--teacher", models["text"], "--steps", "4", "--prompt", "We the people", "-n", "3")
    assert all(text.startswith("we the people") for text in told["samples"]) and told["given"] > 0
    file = tmp_path / "prompt.txt"
    file.write_text("We the people\n")
    assert result("--teacher", models["text"], "--steps", "4", "--prompt-file", str(file), "-n", "3") == {
        **told,
        "seconds": pytest.approx(told["seconds"], abs=100),
    }


def test_infill_keeps_both_sides(models: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "hole.txt"
    file.write_text("we the [MASK*7][MASK] of the\n")
    told = result("--teacher", models["text"], "--steps", "3", "--infill", str(file), "-n", "4")
    assert all(text.startswith("we the") and text.endswith(" of the") for text in told["samples"])
    numbers = tmp_path / "codes.txt"
    numbers.write_text("0 1 2 3 " + "[MASK] " * 8 + "4 4 4 4\n")
    out = tmp_path / "ids"
    result("--teacher", models["codes"], "--infill", str(numbers), "-n", "5", "--out", str(out))
    ids = read_shards(out)
    assert np.array_equal(ids[:, :4], [[0, 1, 2, 3]] * 5) and np.array_equal(ids[:, 12:], [[4] * 4] * 5)
    assert ids.max() < 5


def test_sample_writes_images_as_a_png_with_one_column_per_class(models: dict[str, str]) -> None:
    told = result("--teacher", models["codes"], "--label", "all", "-n", "9", "--steps", "2")
    assert told["out"] == ["samples.png"] and told["labels"] == [0, 1, 2]
    wide = Image.open("samples.png").size
    assert wide[0] == wide[1]
    result("--teacher", models["codes"], "--label", "1", "-n", "2", "--out", "two.png", "--guidance", "2")
    assert Path("two.png").is_file()


def test_result_names_options_that_change_the_distribution(models: dict[str, str]) -> None:
    plain = result("--teacher", models["text"])
    assert plain["dtype"] == "float64" and "temperature" not in plain and "top_p" not in plain
    options = ["--temperature", "0.7", "--top-p", "0.9", "--sample-dtype", "float32"]
    shaped = result("--teacher", models["text"], *options)
    assert (shaped["temperature"], shaped["top_p"], shaped["dtype"]) == (0.7, 0.9, "float32")


def test_hybrid_uses_the_student_own_teacher(models: dict[str, str]) -> None:
    told = result("--student", models["student"], "--steps", "4", "--hybrid", "2")
    assert told["hybrid"] == 2 and told["teacher"] == "codes" and told["model"] == "pupil"


def test_handoff_student_named_as_teacher_uses_its_own_teacher() -> None:
    """`--teacher` may name an embedded student, as for a second round."""
    told = result("--teacher", "digits-student", "--steps", "4", "-n", "2")
    own = result("--student", "digits-student", "--steps", "4", "-n", "2", "--out", "own.png")
    assert told["hybrid"] == own["hybrid"] > 0 and told["teacher"] == "digits"
    assert Path("samples.png").read_bytes() == Path("own.png").read_bytes()


def test_shards_of_another_teacher_are_rejected(models: dict[str, str], tmp_path: Path) -> None:
    """Of the same name, with other weights."""
    words = ["--student", models["student"], "--steps", "2", "--hybrid", "1", "--out", "many", "-n", "100"]
    result(*words, "--teacher", models["codes"])
    other = shutil.copytree(models["codes"], tmp_path / "codes")
    tensors = load_file(other / "model.safetensors")
    tensors = {name: tensor * 1.5 for name, tensor in tensors.items()}
    with safe_open(other / "model.safetensors", framework="pt") as file:
        save_file(tensors, tmp_path / "changed", file.metadata())
    (tmp_path / "changed").replace(other / "model.safetensors")
    done = run(*words, "--teacher", str(other))
    assert done.exit_code == 2 and "teacher_weights differ" in done.stderr
    result(*words, "--teacher", models["codes"])


def test_pixel_samplers(models: dict[str, str]) -> None:
    told = result("--teacher", models["grey"], "--steps", "3", "-n", "2", "--sampler", "tau-leaping")
    assert told["sampler"] == "tau-leaping" and told["grid"] == "pixels" and told["last"] == "argmax"
    told = result("--teacher", models["grey"], "--steps", "2", "-n", "2", "--corrector", "2")
    assert told["corrector"] == 2 and told["corrector_step"] == 1e-4


def test_show_steps_prints_every_step(models: dict[str, str]) -> None:
    done = run("--teacher", models["text"], "--steps", "3", "--show-steps")
    assert done.exit_code == 0 and len(re.findall(r"^t=", done.stderr, re.M)) == 3 and "░" in done.stderr
    told = result("--teacher", models["codes"], "--steps", "3", "-n", "4", "--show-steps")
    assert told["out"] == ["samples.png", "samples.gif", "samples-steps.png"]
    assert Image.open("samples.gif").n_frames == 3  # type: ignore[attr-defined]


def test_shards_resume_grow_and_equal_small_batches(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SYMBOLS_PER_SHARD", 1600)  # 100 samples of 16
    words = ["--teacher", models["codes"], "--steps", "2", "--out", "many", "--label", "all"]
    result(*words, "-n", "250")
    folder = Path("many")
    names = ["ids-00000.npy", "ids-00001.npy", "ids-00002.npy", "manifest.json"]
    assert sorted(p.name for p in folder.iterdir()) == names
    before = read_shards(folder)
    (folder / names[1]).unlink()
    (folder / names[2]).write_bytes(b"half a file")
    kept = os.stat(folder / names[0]).st_mtime_ns
    result(*words, "-n", "330", "--batch-size", "7")
    assert os.stat(folder / names[0]).st_mtime_ns == kept
    after = read_shards(folder)
    assert np.array_equal(after[:250], before) and after.shape == (330, 16)
    assert json.loads((folder / "manifest.json").read_text())["n"] == 330
    other = run(*words, "-n", "250", "--seed", "1")
    assert other.exit_code == 2 and "seed" in other.stderr and len(other.stderr.strip().splitlines()) == 2
    foreign = run("--teacher", models["codes"], "--out", ".")
    assert foreign.exit_code == 2


def test_sample_without_a_name_takes_the_newest_run(models: dict[str, str]) -> None:
    Path("runs/mine").mkdir(parents=True)
    os.symlink(models["student"], "runs/mine/student")
    done = run("--steps", "2", "-n", "1", "--json")
    assert done.exit_code == 0 and "runs/mine" in done.stderr
    assert json.loads(done.stdout)["model"] == "pupil"


LONG_PROMPT = "we the people " * 9
MISTAKES = [
    (["--teacher", "text", "--prompt", LONG_PROMPT], "Shorten the prompt"),
    (["--teacher", "text", "--prompt", "we ☃ people"], "no symbol for '☃'"),
    (["--teacher", "text", "--infill", "short"], "positions but the model has 12"),
    (["--teacher", "codes", "--infill", "wrong"], "not a symbol of this model"),
    (["--teacher", "text", "--infill", "missing"], "There is no file"),
    (["--teacher", "codes", "--label", "3"], "Label 3 is out of range"),
    (["--teacher", "codes", "--label", "-1"], "out of range"),
    (["--teacher", "codes", "--label", "cat"], "is not a number"),
    (["--teacher", "text", "--label", "1"], "no class labels"),
    (["--teacher", "text", "--steps", "0"], "impossible"),
    (["--teacher", "text", "-n", "0"], "impossible"),
    (["--student", "student", "--steps", "2", "--hybrid", "3"], "exceeds the"),
    (["--student", "codes", "--steps", "2", "--hybrid", "1"], "does not record its teacher"),
    (["--teacher", "text", "--guidance", "2"], "class labels"),
    (["--teacher", "codes", "--prompt", "hello"], "takes no text"),
    (["--teacher", "codes", "--sampler", "tau-leaping"], "τ-leaping"),
    (["--teacher", "grey", "--sampler", "confidence"], "masked process"),
    (["--teacher", "text", "--sampler", "magic"], "Choose one of"),
    (["--teacher", "text", "--sample-dtype", "float16"], "Choose one of"),
    (["--teacher", "text", "--prompt", "a", "--infill", "short"], "exclude each other"),
    (["--teacher", "text", "--student", "codes"], "Two models"),
    (["--teacher", "text", "--out", "x.png"], "not a .txt file"),
    (["--teacher", "text", "--device", "abacus"], "no device"),
    (["--teacher", "no-such-thing"], "no-such-thing"),
]


@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_sample_tells_a_mistake_in_one_sentence_with_exit_code_2(
    models: dict[str, str], words: list[str], reason: str
) -> None:
    Path("short").write_text("we [MASK]")
    Path("wrong").write_text("0 1 blue [MASK]")
    done = run(
        *(
            models.get(word, word) if words[i - 1] in ("--teacher", "--student") else word
            for i, word in enumerate(words)
        )
    )
    assert done.exit_code == 2 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 and reason in done.stderr
    assert sorted(p.name for p in Path().iterdir()) == ["short", "wrong"]
