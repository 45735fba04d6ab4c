"""Prompts of conditional protocols: which are used, what is said about the others, intervals over prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import EvaluationConfig, ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts
from di4c_cli.evaluation.pipeline import prepare
from di4c_cli.evaluation.prompts import Continuations, fit_prompts, load_prompts
from di4c_cli.evaluation.protocol import EvaluationProtocol, PromptSpec
from di4c_cli.evaluation.protocols import get_protocol
from di4c_cli.evaluation.scorers.text import TextScorer
from di4c_cli.metric.interval import of_mean
from di4c_cli.model import Model
from di4c_cli.tasks.registry import TASKS
from tests.helpers.small_models import small_model

LONG = "It is a truth universally acknowledged, that a single man in possession"
OTHER = "Call me Ishmael. Some years ago, never mind how long precisely, having"


@pytest.fixture(scope="module")
def text_model() -> Model:
    return small_model("teacher", 0, "text")


def conditional(model: Model) -> EvaluationProtocol:
    return fit_prompts(get_protocol("owt-cond"), model)


def load(model: Model, *lines: str) -> Continuations:
    Path("prompts.txt").write_text("\n".join(lines))
    found = load_prompts(conditional(model), model, None, Path("prompts.txt"))
    assert found is not None
    return found


def test_load_prompts_names_short_and_repeated_ones(text_model: Model) -> None:
    found = load(text_model, LONG, "too short", OTHER, LONG, LONG + " of a good fortune")
    assert len(found.given) == 2 and found.max_samples == 10
    assert found.notes == (
        "1 of 5 prompts have fewer than 20 tokens: left out.",
        "2 of 5 prompts repeat the first 20 tokens of another one: left out.",
    )
    with pytest.raises(UserError, match="No prompt has 20 tokens"):
        load(text_model, "too short")


def test_load_prompts_reads_ids(text_model: Model) -> None:
    protocol = conditional(text_model)
    np.save("ids.npy", np.tile(np.arange(30), (4, 1)) + np.array([[0], [1], [0], [2]]))
    found = load_prompts(protocol, text_model, None, Path("ids.npy"))
    assert found is not None and found.given[:, 0].tolist() == [0, 1, 2] and found.given[0, 19:21].tolist() == [19, -1]
    np.save("floats.npy", np.zeros((4, 30)))
    with pytest.raises(UserError, match="does not hold ids"):
        load_prompts(protocol, text_model, None, Path("floats.npy"))


def test_load_prompts_of_the_toy_task_are_distinct() -> None:
    task = TASKS["words"]
    model = small_model("teacher", 0, "text")
    protocol = EvaluationProtocol("p", "t", (), 10, prompts=PromptSpec(8, 16, 5))
    found = load_prompts(protocol, model, task, None)
    assert found is not None and found.notes == ()
    assert len(found.given) == 256 == len(found.given.unique(dim=0))


def test_continuations_never_repeat_a_prompt() -> None:
    found = Continuations(torch.arange(6).view(3, 2), 2)
    assert found.rows(1, 4)[:, 0].tolist() == [0, 2, 2, 4]
    with pytest.raises(IndexError):
        found.rows(5, 2)


def test_continuations_say_how_many_prompts_are_used() -> None:
    found = Continuations(torch.zeros(3, 2), 5, ("note",))
    assert found.usage(15, 1280, 1) == (
        "note",
        "Prompts continued: 3; continuations of each: 5. Intervals are over prompts."
        " 1280 samples need 256 prompts, and no prompt is used twice.",
    )
    assert found.usage(10, 10, 1)[1].startswith("Prompts continued: 2 of 3;")
    assert "share their prompts" in found.usage(15, 15, 4)[2]


@pytest.mark.slow
def test_evaluation_with_few_prompts_has_fewer_samples(
    text_pair: tuple[Path, Path], judge_folder: Path, tmp_path: Path
) -> None:
    """The 256 prompts of the protocol were once made of copies, and the intervals of 1280 samples."""
    Path("prompts.txt").write_text("\n".join([LONG, OTHER, LONG, "too short"]))
    said: list[str] = []
    config = EvaluationConfig(
        teacher=str(text_pair[0]),
        protocol="owt-cond",
        prompts=Path("prompts.txt"),
        out=tmp_path / "out",
        options=ScorerOptions(judge=str(judge_folder)),
    )
    evaluation = prepare(config, said.append)
    results = evaluation.run()
    assert {cell.n for cell in results.cells} == {10}
    for part in ("1 of 4 prompts have fewer", "1 of 4 prompts repeat", "Prompts continued: 2;", "need 256 prompts"):
        assert any(part in line for line in said) and any(part in note for note in results.notes)
    assert all(figure.interval == "none" for figure in results.cells[0].figures.values()), "two values have no interval"


def test_text_scorer_has_intervals_over_prompts(tmp_path: Path) -> None:
    """Five equal continuations of each prompt are one value."""
    values = np.random.default_rng(0).normal(size=40)
    scorer = type("Bare", (TextScorer,), {"instrument": None, "score": None, "summarise": None})(PromptSpec(5, 10, 5))
    figure = scorer.mean(np.repeat(values, 5), "lower")
    alone = of_mean(values)
    assert (figure.low, figure.high) == (alone.low, alone.high)
    parts = ScoreParts(tmp_path, 200, 200)
    parts.fill(lambda first, count: {"self_bleu": values})
    assert scorer.self_bleu(parts)["self_bleu"].se == alone.se
