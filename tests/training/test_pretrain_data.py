"""Pretraining on the user's own text and images: tokenizer, sizes, held-out part, and the commands that follow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from typer.testing import CliRunner

import di4c_cli
from di4c_cli.cli.app import app
from di4c_cli.data.items import TensorItems
from di4c_cli.data.tokens import PackedItems
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.pretrain_data import select, split, train_tokenizer

WORDS = [
    "the",
    "sea",
    "and",
    "a",
    "land",
    "over",
    "many",
    "old",
    "ship",
    "of",
    "wind",
    "great",
    "white",
    "whale",
    "king",
]
TEXT = ("--iterations", "2", "--batch", "4", "--set", "network.width=16", "--set", "network.depth=1")
TEXT += ("--set", "network.heads=2", "--set", "network.length=8", "--set", "vocabulary=300")
IMAGES = ("--iterations", "2", "--batch", "4", "--set", "network.channels=8", "--set", "network.time_dim=8")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI4C_CACHE", str(tmp_path / "cache"))


def document(number: int, words: int = 60) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, words))


def call(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.stderr
    return done.stdout + done.stderr


def corpus(folder: Path, documents: int = 40) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": document(number)}) + "\n" for number in range(documents)))
    return path


def test_pretrain_on_text_gives_a_teacher_to_sample_and_distil(tmp_path: Path) -> None:
    data, out = corpus(tmp_path), tmp_path / "run"
    said = call("pretrain", "--data", data, "--out", out, *TEXT)
    assert "The recipe is pretrain/text" in said and "Training a byte-level BPE tokenizer" in said
    model = di4c_cli.load(str(out))
    tokenizer = Tokenizer.from_file(str(out / "teacher" / "tokenizer.json"))
    assert model.config.codec == {"type": "text", "file": "tokenizer.json"}
    assert model.denoiser.symbols == model.config.process["symbols"] == tokenizer.get_vocab_size() <= 300
    assert model.codec.encode("the sea") == tokenizer.encode("the sea").ids
    assert str(tmp_path) not in (out / "teacher" / "config.json").read_text()
    assert "text" in call("sample", "--teacher", out, "-n", "2", "--steps", "2")
    small = ("--iterations", "1", "--batch", "2", "--latents", "2", "--recipe", "di4c/words")
    call("distill", "--teacher", out / "teacher", "--data", data, "--out", tmp_path / "student", *small)
    student = di4c_cli.load(str(tmp_path / "student"))
    assert isinstance(student.decode(student.sample(1, steps=2))[0], str)


def test_pretrain_takes_a_tokenizer_and_held_out_text(tmp_path: Path) -> None:
    data = corpus(tmp_path)
    given = train_tokenizer(data, 280, lambda text: None).parent
    (tmp_path / "held.txt").write_text(document(99, 200))
    out = tmp_path / "run"
    call("pretrain", "--data", data, "--held-out", tmp_path / "held.txt", "--tokenizer", given, "--out", out, *TEXT)
    assert (
        di4c_cli.load(str(out)).denoiser.symbols == Tokenizer.from_file(str(given / "tokenizer.json")).get_vocab_size()
    )
    assert not (out / "tokenizer.json").exists()  # only a tokenizer of the run itself is kept there


def test_tokenizer_training_is_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, texts = corpus(tmp_path), []
    for number in range(3):
        monkeypatch.setenv("DI4C_CACHE", str(tmp_path / f"cache-{number}"))
        texts.append(train_tokenizer(data, 300, lambda text: None).read_text())
    assert texts[0] == texts[1] == texts[2]


def test_resumed_pretrain_keeps_its_tokenizer(tmp_path: Path) -> None:
    data, out = corpus(tmp_path), tmp_path / "run"
    call("pretrain", "--data", data, "--out", out, *TEXT)
    before = (out / "tokenizer.json").read_text()
    for folder in (out / "teacher", out / "round-1" / "teacher"):  # as if the run had been killed before its end
        folder.rename(folder.with_name("gone"))
    data.write_text(json.dumps({"text": "quite other words, 0123456789 " * 400}) + "\n")
    call("pretrain", "--data", data, "--out", out, *TEXT)
    assert (out / "teacher" / "tokenizer.json").read_text() == before
    assert len(read_rows(out / "metrics.jsonl")) == 2


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_pretrain_on_images_gives_a_teacher_of_their_size(tmp_path: Path, form: str) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (30, 4, 6, 3), dtype=np.uint8)
    data = tmp_path / "pictures"
    if form == "npz":
        data = tmp_path / "pictures.npz"
        np.savez(data, images=pictures)
    else:
        data.mkdir()
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(data / f"{number:02d}.png")
    said = call("pretrain", "--data", data, "--out", tmp_path / "run", *IMAGES)
    assert "The recipe is pretrain/images" in said
    model = di4c_cli.load(str(tmp_path / "run"))
    assert model.config.codec == {"type": "pixels", "shape": [3, 4, 6], "levels": 16}
    assert model.decode(model.sample(2, steps=2)).shape == (2, 4, 6, 3)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "holds no images"),
        (("--recipe", "pretrain/text"), "holds no text to train a tokenizer on"),
        (("--recipe", "pretrain/text", "--tokenizer", "nowhere.json"), "There is no tokenizer file nowhere.json"),
        (("--recipe", "digits"), "is not a pretraining recipe"),
        (("--recipe", "pretrain/text", "--set", "network.widht=3"), "widht"),
    ],
)
def test_pretrain_refuses_in_one_sentence(tmp_path: Path, flags: tuple[str, ...], told: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("")
    data = tmp_path / "empty"
    if "network.widht=3" in flags:
        data = corpus(tmp_path)
    elif not flags or "--tokenizer" in flags:
        (data / "a.txt").unlink()
    elif "pretrain/text" in flags:
        data = tmp_path / "missing.txt"
    said = call("pretrain", "--data", data, "--out", tmp_path / "run", *flags, code=2)
    assert told in said and len([line for line in said.splitlines() if line.startswith("di4c:")]) == 1
    assert not (tmp_path / "run").exists()


def test_pretrain_refuses_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("the sea and the land")
    said = call("pretrain", "--data", tmp_path / "short.txt", "--out", tmp_path / "run", *TEXT, code=2)
    assert "too small for training and held-out samples of 8 positions" in said


def test_split_holds_out_whole_documents() -> None:
    documents = [np.array([number] * (3 + number) + [9], np.uint16) for number in range(8)]
    train, held_out = split(PackedItems(np.concatenate(documents), 2, "x"), 9, 0.25)
    assert np.array_equal(held_out.ids, np.concatenate([documents[3], documents[7]]))
    assert np.array_equal(train.ids, np.concatenate(documents[:3] + documents[4:7]))


@pytest.mark.parametrize("separator", [9, None])
def test_split_of_few_documents_holds_out_the_end(separator: int | None) -> None:
    train, held_out = split(PackedItems(np.arange(100, dtype=np.uint16) % 8, 2, "x"), separator, 0.25)
    assert (len(train.ids), len(held_out.ids)) == (75, 25)


def test_select_holds_out_every_nth_image() -> None:
    train, held_out = select(TensorItems(torch.arange(8)[:, None].repeat(1, 2)), 0.25)
    assert held_out.rows([0, 1])[0][:, 0].tolist() == [3, 7]
    assert train.rows(list(range(len(train))))[0][:, 0].tolist() == [0, 1, 2, 4, 5, 6]


def test_packed_items_overlap_on_request() -> None:
    items = PackedItems(np.arange(10, dtype=np.uint16), 4, "x", per_length=2)
    assert items.rows(list(range(len(items))))[0].tolist() == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]
