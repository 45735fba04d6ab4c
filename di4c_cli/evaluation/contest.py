"""Who takes part: teacher and student by name, by run, or the embedded pair when nobody is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from di4c_cli import embedded
from di4c_cli.errors import UserError
from di4c_cli.evaluation.sampling import Entrant
from di4c_cli.model import Model, load, newest_run


def entrants(
    student: str | None,
    teacher: str | None,
    others: Mapping[str, str] | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> list[Entrant]:
    """Teacher, student and further rows as loaded models.

    With no name at all: the newest run here, else the embedded default. A student alone brings its teacher
    along if its history names one that can be found; a teacher alone is evaluated alone.
    """
    if student is None and teacher is None and not others:
        student = _default(say)
    out: list[Entrant] = []
    pupil = None if student is None else load(student, device=device)
    if pupil is not None and teacher is None:
        teacher = _teacher_of(pupil)
    if teacher is not None:
        out.append(Entrant("teacher", _load_teacher(teacher, pupil, device, say), teacher))
    if pupil is not None:
        out.append(Entrant("student", pupil, student or ""))
    out += [Entrant(row, load(ref, device=device), ref) for row, ref in (others or {}).items()]
    return out


def _default(say: Callable[[str], None]) -> str:
    run = newest_run()
    if run is not None:
        say(f"No model named: evaluating the newest run here, {run.parent}.")
        return str(run)
    say(f"No model named and no run here: evaluating the embedded {embedded.DEFAULT} pair.")
    return f"{embedded.DEFAULT}-student"


def _teacher_of(student: Model) -> str | None:
    """The teacher a student's history names."""
    name = student.config.provenance.get("teacher")
    return str(name) if name else None


def _load_teacher(ref: str, student: Model | None, device: str, say: Callable[[str], None]) -> Model:
    try:
        model = load(ref, device=device)
    except UserError as error:
        if student is None:
            raise
        raise UserError(
            f"The student's teacher '{ref}' cannot be loaded: {error.message}", "Name it with --teacher."
        ) from error
    if student is not None and model.denoiser.length != student.denoiser.length:
        raise UserError(
            f"Teacher samples have length {model.denoiser.length}, the student's {student.denoiser.length}.",
            "Use the student's own teacher.",
        )
    return model


def run_folder(ref: str) -> Path | None:
    """The run a student folder belongs to: the folder itself or its parent, if a recipe lies there."""
    path = Path(ref)
    return next((p for p in (path, path.parent) if path.is_dir() and (p / "recipe.yaml").is_file()), None)


def default_out(ref: str) -> Path:
    """`<run>/evaluation` for a run, else `evaluations/<name>`."""
    run = run_folder(ref)
    if run is not None:
        return run / "evaluation"
    path = Path(ref)
    words = [part for part in path.parts if part not in ("/", ".", "..", "student", "teacher")]
    return Path("evaluations") / (words[-1] if path.exists() and words else "-".join(words) or "model")


def parse_rows(rows: list[str]) -> dict[str, str]:
    """`ROW=REF` pairs of --model."""
    out = {}
    for text in rows:
        row, _, ref = text.partition("=")
        if not row or not ref:
            raise UserError(f"--model {text} is not ROW=REF.", "Write e.g. --model di4c-d=runs/second.")
        out[row] = ref
    return out
