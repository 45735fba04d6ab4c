"""Who takes part: teacher and student by name, by run, or the embedded pair when nobody is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.sampling import Entrant
from di4c_cli.generate.request import default_model
from di4c_cli.lineage import recorded_teacher
from di4c_cli.model import Model, load


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
        student = default_model(say)
    pupil = None if student is None else load(student, device=device)
    out: list[Entrant] = []
    if teacher is not None:
        out.append(Entrant("teacher", load(teacher, device=device), teacher))
    elif pupil is not None:
        out += _own_teacher(pupil, say)
    if pupil is not None:
        _check_lengths(out, pupil)
        out.append(Entrant("student", pupil, student or ""))
    out += [Entrant(row, load(ref, device=device), ref) for row, ref in (others or {}).items()]
    return out


def _own_teacher(pupil: Model, say: Callable[[str], None]) -> list[Entrant]:
    """The student's teacher if it can be found; a student that never samples alone cannot do without."""
    if not recorded_teacher(pupil.config.provenance):
        return []
    try:
        return [Entrant("teacher", pupil.teacher, pupil.teacher_ref)]
    except UserError as error:
        if pupil.config.sampling.handoff is not None:
            raise
        say(f"{error.message} The student is evaluated alone; --teacher adds a teacher.")
        return []


def _check_lengths(teachers: list[Entrant], pupil: Model) -> None:
    length = pupil.denoiser.length
    for teacher in teachers:
        if teacher.model.denoiser.length != length:
            raise UserError(
                f"Teacher samples have length {teacher.model.denoiser.length}, the student's {length}.",
                "Use the student's own teacher.",
            )


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
