"""Prompts as the users of masked language models have them: files, templates, answers of fixed length, blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app

GOLDEN = Path(__file__).parents[1] / "golden"
LLADA = ("--teacher", str(GOLDEN / "llada"), "--steps", "4")


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["sample", *words])
    return done.exit_code, done.stdout, done.stderr


def result(*words: str) -> dict[str, Any]:
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.txt"
    file.write_text("w1 w2\n\nw3\nw4 w5 w6\n")
    return str(file)


def test_every_prompt_gets_a_template_and_an_answer_of_its_own(prompts: str) -> None:
    """Sample i answers prompt i in turn, with the bits that it has alone."""
    told = result(*LLADA, "--prompts", prompts, "--template", "w7 {prompt} w8", "--answer", "4", "--block", "2")
    texts = [text.split() for text in told["samples"]]
    asked = [["w7", *words, "w8"] for words in (["w1", "w2"], ["w3"], ["w4", "w5", "w6"])]
    assert [text[: len(words)] for text, words in zip(texts, asked, strict=True)] == asked
    assert [len(text) for text in texts] == [8, 7, 9]
    assert (told["prompts"], told["given"], told["block"]) == (3, 12, 2)
    more = result(
        *LLADA, "--prompts", prompts, "--template", "w7 {prompt} w8", "--answer", "4", "--block", "2", "-n", "5"
    )
    assert more["samples"][:3] == told["samples"]
    assert more["samples"][3].startswith("w7 w1 w2 w8") and more["samples"][3] != told["samples"][0]
    alone = result(*LLADA, "--prompt", "w1 w2", "--template", "w7 {prompt} w8", "--answer", "4", "--block", "2")
    assert alone["samples"] == told["samples"][:1]


def test_tokens_per_forward_pass_counts_the_answers_alone(prompts: str) -> None:
    told = result(*LLADA, "--sampler", "confidence", "--prompts", prompts, "--answer", "4", "--steps", "2")
    assert told["tokens_per_pass"] == 2.0
    code, _, err = run(*LLADA, "--sampler", "confidence", "--answer", "8", "--steps", "2")
    assert code == 0 and "4 tokens per forward pass." in err


def test_infill_of_a_masked_lm_may_be_shorter_than_the_model(tmp_path: Path) -> None:
    file = tmp_path / "hole.txt"
    file.write_text("w1 [MASK] w2 [MASK*2] w3\n")
    (text,) = result(*LLADA, "--infill", str(file))["samples"]
    words = text.split()
    assert len(words) == 6 and (words[0], words[2], words[5]) == ("w1", "w2", "w3")


def test_line_break_of_a_template_is_written_as_in_a_shell() -> None:
    told = result("--teacher", "words", "--prompt", "the", "--template", r"we\n{prompt}")
    assert told["samples"][0].replace("\n", " ").startswith("we the")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--prompt", "w1", "--template", "w2"], "--template must contain {prompt} once."),
        (["--template", "{prompt}"], "--template needs a prompt."),
        (["--prompt", "w1", "--answer", "0"], "An answer of 0 tokens is impossible."),
        (["--prompt", "w1 w2", "--answer", "11"], "The prompt has 2 tokens and the answer 11 but the model writes 12"),
        (
            ["--prompt", "w1", "--answer", "4", "--block", "2", "--steps", "3"],
            "over 2 blocks of 2 positions. Use --steps 4.",
        ),
        (["--infill", "hole", "--answer", "3"], "--infill takes no --template and no --answer."),
        (["--teacher", "pixels", "--block", "2"], "Blocks need a masked process."),
        (["--teacher", "fashion", "--answer", "2"], "This model makes images"),
        (["--prompts", "prompts", "--answer", "2", "--out", "folder"], "do not fit into shards"),
    ],
)
def test_mistakes_in_prompts_are_told_in_one_sentence(
    words: list[str], reason: str, prompts: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hole").write_text("w1 [MASK]")
    given = [prompts if word == "prompts" else word for word in words]
    code, _, err = run(*(() if "--teacher" in given else LLADA[:2]), *given)
    last = err.strip().splitlines()[-1]
    assert code == 2 and reason in last and last.startswith("di4c: ")
