"""Protocols by name: the paper's tables and figures with its numbers, and those of the toy tasks.

Row names: `teacher`, `student` (the paper's di4c), `hybrid` (student, then teacher for the second half),
`di4c-d` (with data loss) and others that the user fills with `--model ROW=REF`. Labels of tables are those of
the paper's source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import (
    HALF_OF_THE_STEPS,
    CellSpec,
    EvaluationProtocol,
    PromptSpec,
    column,
    steps_protocol,
)
from di4c_cli.recipe_file import nearest
from di4c_cli.tasks.base import ToyTask
from di4c_cli.tasks.registry import TASKS

FIGURE_ONLY = "The paper shows this as a figure without numbers ({}): there is nothing to print beside ours."


def _cells(rows: Sequence[str], steps: Sequence[int]) -> tuple[CellSpec, ...]:
    return tuple(CellSpec(row, column(k), k) for row in rows for k in steps)


def _cifar_cell(row: str, steps: int, fid: float, score: float) -> CellSpec:
    options = {"hybrid": HALF_OF_THE_STEPS} if row == "hybrid" else {}
    return CellSpec(row, column(steps), steps, options, {"frechet": fid, "is": score})


def cifar10_table1() -> EvaluationProtocol:
    """tab:tldr: teacher, student and hybrid at 10, 20 and 40 steps."""
    figures = {
        "teacher": {10: (32.61, 7.59), 20: (12.36, 8.55), 40: (8.01, 8.77)},
        "student": {10: (20.64, 8.29), 20: (9.77, 8.52), 40: (9.66, 8.28)},
        "hybrid": {10: (25.54, 8.00), 20: (9.47, 8.56), 40: (8.02, 8.43)},
    }
    cells = [_cifar_cell(row, steps, *pair) for row, line in figures.items() for steps, pair in line.items()]
    title, metrics = (
        "CIFAR-10, tab:tldr (FID against the training set / IS, 50 000 samples)",
        ("frechet", "is"),
    )
    return EvaluationProtocol(
        "cifar10-table1", title, tuple(cells), 50_000, metrics, labels="none", shape="together"
    )


def cifar10_steps() -> EvaluationProtocol:
    """tab:more-tldr: 2 to 20 steps, 10 000 samples."""
    steps = range(2, 21, 2)
    fid = {
        "teacher": (392.24, 173.29, 78.24, 49.44, 34.70, 26.33, 21.47, 18.05, 15.80, 14.42),
        "student": (411.70, 147.67, 59.62, 33.85, 22.57, 17.46, 14.37, 12.86, 12.28, 11.81),
    }
    score = {
        "teacher": (1.17, 2.99, 5.90, 7.01, 7.45, 7.82, 7.96, 8.16, 8.35, 8.46),
        "student": (1.25, 3.48, 6.71, 7.68, 8.17, 8.33, 8.37, 8.50, 8.38, 8.39),
    }
    cells = [_cifar_cell(row, k, fid[row][i], score[row][i]) for row in fid for i, k in enumerate(steps)]
    title = "CIFAR-10, tab:more-tldr (FID / IS, 10 000 samples)"
    return EvaluationProtocol("cifar10-steps", title, tuple(cells), 10_000, ("frechet", "is"), labels="none")


def cifar10_tau() -> EvaluationProtocol:
    """tab:experiment, first rows: the teacher by τ-leaping and by analytical steps."""
    figures = {
        "tau-leaping": {40: (315.75, 1.66), 1000: (8.10, 8.74)},
        "analytical": {10: (32.61, 7.59), 20: (12.36, 8.55), 40: (8.01, 8.77)},
    }
    names = {"tau-leaping": "τ-leaping", "analytical": "analytical"}
    cells = tuple(
        CellSpec(
            "teacher",
            f"{names[sampler]}, {column(steps)}",
            steps,
            {"sampler": sampler},
            {"frechet": fid, "is": score},
            place=(f"teacher, {names[sampler]}", column(steps)),
        )
        for sampler, line in figures.items()
        for steps, (fid, score) in line.items()
    )
    notes = (
        "τ-leaping at 1000 steps is quoted from Campbell et al.; at 10 and 20 steps there is no figure.",
    )
    title = "CIFAR-10, tab:experiment (FID / IS, 50 000 samples)"
    metrics = ("frechet", "is")
    return EvaluationProtocol("cifar10-tau", title, cells, 50_000, metrics, notes, "none", shape="together")


def cifar10_pc() -> EvaluationProtocol:
    """tab:pc: 20 function evaluations shared between denoising and corrector steps."""
    fid = {"teacher": (57.57, 32.74, 21.32, 14.42), "student": (44.57, 22.63, 14.25, 11.81)}
    sizes = tuple({"corrector_step": size} for size in (1e-3, 1e-4, 1e-5))
    cells = []
    for row, line in fid.items():
        for (steps, corrector), value in zip(((6, 7), (10, 5), (14, 3), (20, 0)), line, strict=True):
            name = f"{steps}+{corrector}+{corrector}"
            tries = sizes if corrector else ()
            cells.append(CellSpec(row, name, steps, {"corrector": corrector}, {"frechet": value}, tries))
    notes = ("m+n+n: n corrector steps before each of the last two of m; the best of three step sizes.",)
    title = "CIFAR-10, tab:pc (FID, 10 000 samples, 20 evaluations)"
    return EvaluationProtocol("cifar10-pc", title, tuple(cells), 10_000, ("frechet",), notes, "none")


def imagenet_fid_is() -> EvaluationProtocol:
    """fig:maskgit: FID against IS over guidance weights."""
    cells = [_guided(row, 4, float(w)) for row in ("teacher", "student", "di4c-d") for w in range(5, 13)]
    cells += [_guided("teacher", 8, w) for w in (2.0, 2.5, 3.0, 3.5, 4.0)]
    notes = (
        FIGURE_ONLY.format("fig:maskgit"),
        "Its best points are the rows of tab:cfg-choice: protocol imagenet-best.",
    )
    title = "ImageNet 256×256, fig:maskgit (FID, IS, 50 images a class)"
    return EvaluationProtocol(
        "imagenet-fid-is", title, tuple(cells), 50_000, ("frechet", "is"), notes, shape="lines"
    )


def _guided(row: str, steps: int, weight: float, paper: dict[str, float] | None = None) -> CellSpec:
    options = {"sampler": "confidence", "guidance": weight}
    return CellSpec(row, f"{column(steps)}, w {weight:g}", steps, options, paper or {})


def imagenet_best() -> EvaluationProtocol:
    """tab:cfg-choice: every model at its best guidance weight."""
    table = (
        ("teacher", 8, 3.0, 6.57, 202.0, 0.7939, 0.5499),
        ("teacher", 4, 11.0, 7.97, 216.0, 0.7737, 0.5057),
        ("student", 4, 6.0, 6.79, 209.2, 0.7910, 0.5363),
        ("di4c-d", 4, 7.0, 6.57, 213.6, 0.7866, 0.5391),
    )
    names = ("frechet", "is", "precision", "recall")
    cells = tuple(_guided(row, k, w, dict(zip(names, line, strict=True))) for row, k, w, *line in table)
    title = "ImageNet 256×256, tab:cfg-choice (FID, IS, precision, recall, 50 images a class)"
    return EvaluationProtocol("imagenet-best", title, cells, 50_000, names, shape="lines")


def imagenet_samples() -> EvaluationProtocol:
    """fig:maskgit-samples: Ostrich, Burger, Volcano."""
    models = (("teacher", 8, 3.0), ("teacher", 4, 11.0), ("student", 4, 6.0), ("di4c-d", 4, 7.0))
    cells = tuple(
        replace(_guided(row, k, w), column=f"label {label}, {column(k)}, w {w:g}", label=str(label))
        for label in (9, 933, 980)
        for row, k, w in models
    )
    title = "ImageNet 256×256, fig:maskgit-samples"
    return EvaluationProtocol("imagenet-samples", title, cells, 16, scorers=())


TEXT_ROWS = ("teacher", "student", "di4c-d", "student-2", "di4c-d-2")
"""`student-2`: a second round (di4c²)."""
TEXT_STEPS = (8, 16, 32, 64, 128)


def owt_uncond() -> EvaluationProtocol:
    """fig:uncond-ppl and fig:language-app-c: generative perplexity against steps."""
    cells = _cells(TEXT_ROWS, TEXT_STEPS)
    notes = (FIGURE_ONLY.format("fig:uncond-ppl, fig:language-app-c"),)
    title = "OpenWebText, unconditional (generative perplexity, 1024 samples)"
    metrics = ("perplexity", "perplexity_strict", "entropy")
    return EvaluationProtocol("owt-uncond", title, cells, 1024, metrics, notes)


def owt_cond() -> EvaluationProtocol:
    """fig:ppl-sbleu and fig:language-app-d: perplexity against Self-BLEU of five continuations."""
    cells = _cells(TEXT_ROWS, TEXT_STEPS)
    notes = (FIGURE_ONLY.format("fig:ppl-sbleu, fig:language-app-d"),)
    title = "WebText prompts, 50 of 100 tokens given, 5 continuations of 256 prompts"
    metrics = ("perplexity", "entropy", "self_bleu")
    return EvaluationProtocol("owt-cond", title, cells, 256 * 5, metrics, notes, prompts=PromptSpec())


def owt_mauve() -> EvaluationProtocol:
    """fig:mauve: MAUVE of the unconditional samples."""
    cells = _cells(TEXT_ROWS, TEXT_STEPS)
    notes = (FIGURE_ONLY.format("fig:mauve"),)
    title = "OpenWebText, MAUVE (100 tokens, scale 5, 5 runs, 1024 samples)"
    return EvaluationProtocol("owt-mauve", title, cells, 1024, ("mauve",), notes, scorers=("mauve",))


def owt_samples() -> EvaluationProtocol:
    """Generated samples of section mdlm: the abstract's first 50 tokens continued."""
    cells = tuple(CellSpec(row, column(k), k) for k in (4, 16, 64, 256) for row in ("teacher", "student"))
    prompts = PromptSpec(50, 100, 1)
    return EvaluationProtocol("owt-samples", "The abstract continued", cells, 1, scorers=(), prompts=prompts)


ABSTRACT = (
    "Diffusion models have demonstrated exceptional performances in various fields of generative modeling. "
    "While they often outperform competitors including VAEs and GANs in sample quality and diversity, they "
    "suffer from slow sampling speed due to their iterative nature. Recently, dist"
)
"""The prompt of `owt-samples`."""


def task_protocol(task: ToyTask) -> EvaluationProtocol:
    """A toy task's models against steps."""
    title = f"{task.name}: quality against steps"
    plain = steps_protocol(task.name, title, ("teacher", "student"), task.protocol_steps, TASK_SAMPLES)
    return replace(plain, metrics=task.figures, labels="none")


def tiny_text_frontier() -> EvaluationProtocol:
    """Quality against entropy over temperatures: models are compared at equal entropy."""
    title = "tiny-text: quality against entropy over temperatures"
    heats = (0.6, 0.8, 0.9, 1.0, 1.1)
    plain = steps_protocol("tiny-text-frontier", title, ("teacher", "student"), (2, 4, 8), 500, heats)
    return replace(plain, metrics=("bits_per_char", "entropy", "distinct"), shape="lines")


def steps_saved_protocol(task: ToyTask, steps: Sequence[int] | None = None) -> EvaluationProtocol:
    """Teacher and student of a toy task against steps, repeated: `steps_saved` summarises the results.

    The teacher is also sampled at the student's step counts.
    """
    own = list(steps or STUDENT_STEPS)
    cells = _cells(["teacher"], sorted({*TEACHER_STEPS, *own})) + _cells(["student"], own)
    return EvaluationProtocol(
        STEPS_SAVED,
        f"{task.name}: steps saved at equal quality",
        cells,
        task.steps_saved_samples,
        (task.main, task.diversity, "nearer_to_training"),
        labels="none",
        extra_scorers=("memorisation",),
        repeats=STEPS_SAVED_REPEATS,
    )


TASK_SAMPLES = 2000
STEPS_SAVED = "tiny-speedup"
STEPS_SAVED_REPEATS = 6
TEACHER_STEPS = (1, 2, 4, 8, 16, 32)
STUDENT_STEPS = (1, 2, 4, 8, 16)
PROTOCOLS: dict[str, Callable[[], EvaluationProtocol]] = {
    "cifar10-table1": cifar10_table1,
    "cifar10-steps": cifar10_steps,
    "cifar10-tau": cifar10_tau,
    "cifar10-pc": cifar10_pc,
    "imagenet-fid-is": imagenet_fid_is,
    "imagenet-best": imagenet_best,
    "imagenet-samples": imagenet_samples,
    "owt-uncond": owt_uncond,
    "owt-cond": owt_cond,
    "owt-mauve": owt_mauve,
    "owt-samples": owt_samples,
    **{task.name: partial(task_protocol, task) for task in TASKS.values()},
    "tiny-text-frontier": tiny_text_frontier,
}


def protocol_names() -> list[str]:
    """All names, `tiny-speedup` included, which is one protocol for each toy task."""
    return [*PROTOCOLS, STEPS_SAVED]


def get_protocol(
    name: str, task: ToyTask | None = None, steps: Sequence[int] | None = None
) -> EvaluationProtocol:
    """A protocol by name; `task` and `steps` are those of `tiny-speedup`."""
    if name == STEPS_SAVED:
        if task is None:
            raise UserError(
                f"{STEPS_SAVED} compares models of a toy task.", "Name one with --student, or leave it out."
            )
        return steps_saved_protocol(task, steps)
    check_name(name)
    return PROTOCOLS[name]()


def check_name(name: str) -> None:
    """Reject an unknown protocol."""
    known = protocol_names()
    if name not in known:
        raise UserError(f"Unknown protocol '{name}'.{nearest(name, known)}", f"Known: {', '.join(known)}.")
