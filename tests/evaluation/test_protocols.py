"""Protocols by name: the paper's numbers, the shape of its tables, and what they ask of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import EvaluationConfig, ScorerOptions
from di4c_cli.evaluation.pipeline import prepare
from di4c_cli.evaluation.protocols import PROTOCOLS, get_protocol
from di4c_cli.evaluation.results import Results
from di4c_cli.report.summary import equal_entropy


def _run(name: str, pair: tuple[Path | None, Path | None], out: Path, limit: int = 6, **more: object) -> Results:
    student, teacher = (None if path is None else str(path) for path in (pair[1], pair[0]))
    config = EvaluationConfig(
        student=student,
        teacher=teacher,
        protocol=name,
        limit=limit,
        out=out,
        **more,  # type: ignore[arg-type]
    )
    return prepare(config).run()


def test_protocols_have_the_papers_sizes() -> None:
    sizes = {name: (one.n, len(one.cells)) for name, one in PROTOCOLS.items()}
    assert sizes["cifar10-table1"] == (50_000, 9)
    assert sizes["cifar10-steps"] == (10_000, 20)
    assert sizes["cifar10-pc"] == (10_000, 8)
    assert sizes["imagenet-fid-is"] == (50_000, 3 * 8 + 5)
    assert sizes["owt-uncond"][0] == 1024 and sizes["owt-cond"][0] == 256 * 5
    assert {"cifar10-tau", "imagenet-best", "imagenet-samples", "owt-mauve", "owt-samples"} <= sizes.keys()
    assert all(one.name == name for name, one in PROTOCOLS.items())


def test_protocols_have_the_papers_numbers_in_their_cells() -> None:
    def paper(name: str, row: str, column: str) -> dict[str, float]:
        return next(c.paper for c in get_protocol(name).cells if (c.row, c.column) == (row, column))

    assert paper("cifar10-table1", "hybrid", "20 steps") == {"frechet": 9.47, "is": 8.56}
    assert paper("cifar10-steps", "student", "6 steps") == {"frechet": 59.62, "is": 6.71}
    assert paper("cifar10-tau", "teacher", "τ-leaping, 40 steps") == {"frechet": 315.75, "is": 1.66}
    assert paper("cifar10-pc", "student", "14+3+3") == {"frechet": 14.25}
    best = {"frechet": 6.57, "is": 213.6, "precision": 0.7866, "recall": 0.5391}
    assert paper("imagenet-best", "di4c-d", "4 steps, w 7") == best


def test_protocols_of_figures_say_that_there_are_no_numbers() -> None:
    for name in ("imagenet-fid-is", "owt-uncond", "owt-cond", "owt-mauve"):
        assert any("without numbers" in note for note in get_protocol(name).notes)


def test_with_row_gives_the_cells_of_the_student_without_the_papers_figures() -> None:
    for protocol in PROTOCOLS.values():
        more = protocol.with_row("mine")
        mine, theirs = ([c for c in more.cells if c.row == row] for row in ("mine", "student"))
        assert [(c.column, c.steps, c.options, c.label) for c in mine] == [
            (c.column, c.steps, c.options, c.label) for c in theirs
        ]
        assert mine and not any(c.paper for c in mine) and more.rows == [*protocol.rows, "mine"]
        assert all(c.place is None or c.place[0] == "mine" for c in mine)


def test_with_draws_names_precisions_and_keeps_poisson_jumps_in_64_bits() -> None:
    both = get_protocol("cifar10-tau").with_draws(["float32", "float64"])
    found = {c.column: (c.options["dtype"], c.place) for c in both.cells if c.row == "teacher"}
    assert found["τ-leaping, 40 steps, 64-bit"] == ("float64", ("teacher, τ-leaping", "40 steps, 64-bit"))
    assert found["analytical, 40 steps, 32-bit"] == ("float32", ("teacher, analytical", "40 steps, 32-bit"))
    assert "τ-leaping, 40 steps, 32-bit" not in found and "64 bits only" in both.notes[-1]
    one = get_protocol("cifar10-pc").with_draws(["float32"])
    assert [c.column for c in one.cells] == [c.column for c in get_protocol("cifar10-pc").cells]
    assert {c.options["dtype"] for c in one.cells if c.options["corrector"] == 0} == {"float32"}
    assert {c.options["dtype"] for c in one.cells if c.options["corrector"]} == {"float64"}
    assert get_protocol("owt-uncond").with_draws(["float64"]).notes == get_protocol("owt-uncond").notes


def test_get_protocol_suggests_the_nearest_name() -> None:
    with pytest.raises(UserError, match="Did you mean 'cifar10-steps'"):
        get_protocol("cifar10-step")


def test_prepare_rejects_labels_a_model_does_not_have(digits: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Label 933 is out of range"):
        _run("imagenet-samples", digits, tmp_path / "b")


def test_prepare_rejects_fewer_samples_than_continuations(
    text_pair: tuple[Path, Path], judge_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="continues each prompt 5 times, more than the 4 samples"):
        _run("owt-cond", text_pair, tmp_path / "a", 4, options=ScorerOptions(judge=str(judge_folder)))


@pytest.mark.slow
def test_evaluation_of_text_runs_with_a_judge(text_pair: tuple[Path, Path], judge_folder: Path, tmp_path: Path) -> None:
    options = ScorerOptions(judge=str(judge_folder))
    free = _run("owt-uncond", (text_pair[0], None), tmp_path / "a", 4, options=options)
    assert {"perplexity", "perplexity_strict", "bits_per_byte", "entropy", "distinct"} == set(free.cells[0].figures)
    assert free.instruments[0].detail["protocols"] == ["published", "strict"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(
        "It is a truth universally acknowledged, that a single man\nCall me Ishmael. Some years ago, never mind\n"
    )
    given = _run("owt-cond", (text_pair[0], None), tmp_path / "b", 10, options=options, prompts=prompts)
    assert {"perplexity", "entropy", "self_bleu"} == set(given.cells[0].figures)
    assert any("20 are given" in note for note in given.notes)
    shared = [text[:30] for text in given.cells[0].samples[:5]]
    assert len(set(shared)) == 1 and len(set(given.cells[0].samples[:5])) > 1


@pytest.mark.slow
def test_mauve_protocol_compares_with_real_texts(
    text_pair: tuple[Path, Path], judge_folder: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real.txt"
    real.write_text("\n".join(f"some real text number {i}" for i in range(30)))
    options = ScorerOptions(judge=str(judge_folder), reference=real)
    results = _run("owt-mauve", (text_pair[0], None), tmp_path / "a", 20, options=options)
    assert 0 <= results.cells[0].figures["mauve"].value <= 1
    assert results.instruments[0].reference_n == 30
    with pytest.raises(UserError, match="MAUVE compares texts"):
        prepare(EvaluationConfig(student="digits-student", protocol="owt-mauve", out=tmp_path / "c"))
    with pytest.raises(UserError, match="MAUVE compares with real texts"):
        _run("owt-mauve", text_pair, tmp_path / "b", options=ScorerOptions(judge=str(judge_folder)))


def test_owt_samples_continues_the_abstract(text_pair: tuple[Path, Path], tmp_path: Path) -> None:
    results = _run("owt-samples", text_pair, tmp_path / "a")
    prompts = get_protocol("owt-samples").prompts
    assert prompts is not None and prompts.text.startswith("Diffusion models have")
    assert [(c.column, c.row) for c in results.cells[:2]] == [("4 steps", "teacher"), ("4 steps", "student")]
    assert all(cell.samples[0].startswith(prompts.text[:12]) and not cell.figures for cell in results.cells)


def test_evaluation_over_temperatures_is_a_frontier(
    text_pair: tuple[Path, Path], judge_folder: Path, tmp_path: Path
) -> None:
    config = EvaluationConfig(
        student=str(text_pair[1]),
        teacher=str(text_pair[0]),
        steps=[2],
        temperatures=[0.3, 1.0],
        n=6,
        out=tmp_path / "a",
        options=ScorerOptions(judge=str(judge_folder)),
    )
    results = prepare(config).run()
    assert [cell.column for cell in results.cells[:2]] == ["2 steps, T 0.3", "2 steps, T 1"]
    cold, warm = (cell.figures["entropy"].value for cell in results.cells[:2])
    assert cold < warm
    for entropy, _, _ in equal_entropy(results, 2, "perplexity"):
        assert cold <= entropy <= warm
