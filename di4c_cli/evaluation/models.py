"""Evaluated models: teacher and student by name or by run, and the folder of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import HYBRID_ROW
from di4c_cli.evaluation.results import ModelEntry, run_folder
from di4c_cli.generate.request import default_model
from di4c_cli.lineage import recorded_teacher
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model import Model, load

OWN_ROWS = {
    "teacher": "Use --teacher REF.",
    "student": "Use --student REF.",
    HYBRID_ROW: "A hybrid consists of --student and --teacher.",
}


@dataclass
class EvaluatedModel:
    """A model under the name of its row."""

    row: str
    model: Model
    ref: str = ""

    @cached_property
    def digest(self) -> str:
        """A hash of the model's tensors."""
        return tensors_digest(self.model.denoiser.network.state_dict())

    def entry(self) -> ModelEntry:
        """The model in the result file."""
        config, provenance = self.model.config, self.model.config.provenance
        plain = {key: value for key, value in provenance.items() if isinstance(value, (str, int, float))}
        return ModelEntry(
            row=self.row,
            ref=self.ref or config.name,
            name=config.name,
            kind=config.kind,
            revision=str(provenance.get("revision", "")),
            digest=self.digest,
            parameters=sum(p.numel() for p in self.model.denoiser.network.parameters()),
            teacher=str(provenance.get("teacher", "")),
            information=str(provenance.get("information", "")),
            provenance=plain,
        )


def load_models(
    student: str | None,
    teacher: str | None,
    others: Mapping[str, str] | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> list[EvaluatedModel]:
    """Teacher, student and further rows as loaded models.

    Without any name: the newest run in this folder, else the embedded default. A student without `teacher` is
    compared with the teacher in its provenance if that can be found; a teacher alone is evaluated alone.
    """
    if student is None and teacher is None and not others:
        student = default_model(say)
    trained = None if student is None else load(student, device=device)
    out: list[EvaluatedModel] = []
    if teacher is not None:
        out.append(EvaluatedModel("teacher", load(teacher, device=device), teacher))
    elif trained is not None:
        out += _own_teacher(trained, say)
    if trained is not None:
        out.append(EvaluatedModel("student", trained, student or ""))
    lengths = [one.model.denoiser.length for one in out]
    if len(set(lengths)) > 1:
        raise UserError(
            f"Teacher samples have length {lengths[0]}, the student's {lengths[1]}.", "Use the student's own teacher."
        )
    out += [EvaluatedModel(row, load(ref, device=device), ref) for row, ref in (others or {}).items()]
    return out


def _own_teacher(trained: Model, say: Callable[[str], None]) -> list[EvaluatedModel]:
    """The student's teacher if it can be found; a student with a hand-off cannot sample without it."""
    if not recorded_teacher(trained.config.provenance):
        return []
    try:
        return [EvaluatedModel("teacher", trained.teacher, trained.teacher_ref)]
    except UserError as error:
        if trained.config.sampling.handoff is not None:
            raise
        say(f"{error.message} The student is evaluated alone; --teacher adds a teacher.")
        return []


def default_out(ref: str) -> Path:
    """`<run>/evaluation` for a run, else `evaluations/<name>`."""
    path = Path(ref)
    run = run_folder(path)
    if run is not None:
        return run / "evaluation"
    words = [part for part in path.parts if part not in ("/", ".", "..", "student", "teacher")]
    return Path("evaluations") / (words[-1] if path.exists() and words else "-".join(words) or "model")


def parse_rows(rows: list[str]) -> dict[str, str]:
    """`ROW=REF` pairs of --model."""
    out = {}
    for text in rows:
        row, _, ref = text.partition("=")
        if not row or not ref:
            raise UserError(f"--model {text} is not ROW=REF.", "Write e.g. --model di4c-d=runs/second.")
        if row in OWN_ROWS:
            raise UserError(f"--model cannot name the row {row}.", OWN_ROWS[row])
        if row in out:
            raise UserError(f"--model names the row {row} twice.", "Give each model a row of its own.")
        out[row] = ref
    return out
