import json
from pathlib import Path

import numpy as np
import pytest

from di4c_cli.metric.ngram import NgramModel
from tools import english

SENTENCES = "the people of the states and the government of this union have been in peace with the world. "


def corpus(folder: Path) -> Path:
    for name, times in (("train", 60), ("held-out", 40)):
        (folder / name).mkdir(parents=True)
        (folder / name / "speech.txt").write_text(SENTENCES * times, encoding="utf-8")
    return folder


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_control_rows_are_made_of_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(english, "SAMPLES", 6)
    monkeypatch.setattr(english, "PROMPTS", 3)
    english.main(["words", str(corpus(tmp_path / "corpus")), str(tmp_path / "out")])
    rows = {path.stem: texts(path) for path in (tmp_path / "out").glob("*.jsonl")}
    assert {name: len(lines) for name, lines in rows.items()} == {
        **dict.fromkeys(("reference", "real", "five-gram", "unigram", "shuffled", "repeated"), 6),
        "prompts": 3,
    }
    assert [sorted(line.split()) for line in rows["shuffled"]] == [sorted(line.split()) for line in rows["real"]]
    assert len(set(rows["repeated"])) == 1
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < figures["five_gram"] < 1, "a 5-gram model knows a text that repeats itself"
    assert figures["teacher_bound"] > figures["five_gram"]


def test_draws_of_an_ngram_model_have_its_probabilities() -> None:
    text = np.array([1, 2, 1, 3, 1, 2, 2, 3, 3, 1, 2, 3])
    model = NgramModel([text], base=4, start=1, order=3)
    history = [3, 1]
    generator = np.random.default_rng(0)
    draws = [english.draw(model, history, generator) for _ in range(20_000)]
    found = np.bincount(draws, minlength=4) / len(draws)
    expected = [2.0 ** _log2_after(model, history, symbol) for symbol in range(4)]
    assert sum(expected) == pytest.approx(1)
    np.testing.assert_allclose(found, expected, atol=0.015)


def _log2_after(model: NgramModel, history: list[int], symbol: int) -> float:
    return float(model.log2_of(np.array([*history, symbol]))[-1])
