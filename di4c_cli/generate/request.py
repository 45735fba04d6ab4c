"""A sampling request, checked and loaded: which model, which plan, which labels and given symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli import embedded
from di4c_cli.errors import UserError
from di4c_cli.generate import prompt
from di4c_cli.limits import check_sampling_memory
from di4c_cli.sampler.plan import SamplingPlan, check_ranges
from di4c_cli.schema import MAX_SAMPLES

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.model import Model
    from di4c_cli.process_group import ProcessGroup

Say = Callable[[str], None]
DEVICES = ("cpu", "cuda", "mps")
FEW_CLASSES = 32
"""Classes that fit beside each other in a picture."""
TYPICAL_WIDTH = 256
"""Numbers per position in a network whose width is not one number (U-Net)."""


@dataclass
class SampleRequest:
    """The flags of `di4c sample`; None is not given. `options` are fields of `sampler.plan.SamplingPlan`."""

    student: str | None = None
    teacher: str | None = None
    steps: int | None = None
    n: int | None = None
    seed: int = 0
    label: str | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    infill: Path | None = None
    device: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class PreparedSample:
    """A request that is checked and loaded. `labels` repeat over the samples, `given` is `(D,)`."""

    model: Model
    teacher: Model | None
    plan: SamplingPlan
    n: int
    seed: int
    labels: list[int] | None
    given: Tensor | None

    @property
    def length(self) -> int:
        return self.model.denoiser.length

    def draw(self, first: int, count: int, **more: Any) -> Tensor:
        """Samples number `first` … as `(count, D)`; `more` are arguments of `Model.sample`."""
        labels = self.labels
        label = None if labels is None else [labels[i % len(labels)] for i in range(first, first + count)]
        teacher = None if self.teacher is None else self.teacher.denoiser
        size = min(count, more.get("batch_size") or self.plan.batch_size(self.length))
        width = getattr(self.model.denoiser.network, "width", TYPICAL_WIDTH)
        check_sampling_memory(max(size, self.plan.tile), self.length, int(width))
        more |= {"plan": self.plan, "seed": self.seed, "given": self.given, "teacher": teacher}
        return self.model.sample(count, label=label, first=first, **more)

    def draw_together(
        self, group: ProcessGroup, first: int, count: int, batch_size: int | None = None, **more: Any
    ) -> Tensor:
        """As `draw`, divided over the processes; every process gets all samples. Batches are those of one process."""
        import torch  # slow; flags are checked without it

        size = batch_size or self.plan.batch_size(self.length)
        unit = self.plan.tile or size  # with tiles, samples do not depend on the batch
        units = -(-count // unit)
        begin, end = (min(count, units * rank // group.size * unit) for rank in (group.rank, group.rank + 1))
        own = self.draw(first + begin, end - begin, batch_size=size, **more)
        return torch.cat(group.gather(own))

    def facts(self) -> dict[str, Any]:
        """How the samples were drawn, for every result."""
        import torch  # slow; flags are checked without it

        facts = {"model": self.model.name, "seed": self.seed, "n": self.n, **self.plan.settings()}
        facts["device"], facts["threads"] = str(self.model.denoiser.device), torch.get_num_threads()
        facts["labels"] = self.labels
        facts["given"] = 0 if self.given is None else int((self.given >= 0).sum())
        if self.teacher is not None:
            facts["teacher"] = self.teacher.name
        return facts

    def sentence(self) -> str:
        """The settings of the samples as one line of text."""
        settings = self.plan.settings()
        parts = [
            f"{self.plan.sampler} sampler",
            "1 step" if self.plan.steps == 1 else f"{self.plan.steps} steps",
            f"{self.plan.dtype} draws",
        ]
        for key in ("guidance", "temperature", "top_p", "hybrid", "corrector"):
            if key in settings:
                parts.append(f"{key.replace('_', '-')} {settings[key]:g}")
        return f"{self.n} from {self.model.name}: {', '.join(parts)}, seed {self.seed}."


def prepare(request: SampleRequest, say: Say) -> PreparedSample:
    """Check a request and load what it needs. Mistakes in flags are found before anything is loaded."""
    flags = {"steps": request.steps, **request.options}
    check_ranges(flags)
    if request.n is not None and not 1 <= request.n <= MAX_SAMPLES:
        raise UserError(f"{request.n} samples are impossible.", f"Use -n 1 to {MAX_SAMPLES}.")
    texts = _texts(request)
    model, alone = _model(request, flags.get("hybrid"), say)
    labels = parse_labels(request.label, model.config.labels)
    plan = model.plan(labels is not None, **flags)
    teacher = _teacher(request, model, alone, plan.hybrid)
    given = _given(texts, model)
    # the sampling loop checks the same, but only after the first file is written
    plan.check_inputs(model.denoiser, None, given, None if teacher is None else teacher.denoiser)
    n = request.n or (1 if model.codec.kind in ("text", "none") else default_images(labels))
    return PreparedSample(model, teacher, plan, n, request.seed, labels, given)


def default_images(labels: list[int] | None) -> int:
    """Images without -n: three of every class, if the classes are few."""
    return 3 * len(labels) if labels and 1 < len(labels) <= FEW_CLASSES else 16


def parse_labels(text: str | None, classes: int | None) -> list[int] | None:
    """`3`, `0,1,2`, `all` or `none` as labels to repeat over the samples; None is unconditional.

    Without --label a model with classes gets each of them in turn.
    """
    if text is None:
        return list(range(classes)) if classes else None
    if text == "none":
        return None
    if not classes:
        raise UserError("This model has no class labels.", "Leave --label out.")
    if text == "all":
        return list(range(classes))
    try:
        labels = [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--label {text} is not a number.", "Use e.g. 3, 0,1,2, all or none.") from None
    for label in labels:
        if not 0 <= label < classes:
            raise UserError(f"Label {label} is out of range.", f"Labels go from 0 to {classes - 1}.")
    return labels


def _texts(request: SampleRequest) -> tuple[str, str] | None:
    """The kind and content of the given text; at most one of the three flags."""
    named = [request.prompt is not None, request.prompt_file is not None, request.infill is not None]
    if sum(named) > 1:
        raise UserError("--prompt, --prompt-file and --infill exclude each other.", "Use one of them.")
    if request.prompt is not None:
        return "prompt", request.prompt
    if request.prompt_file is not None:
        return "prompt", prompt.read(request.prompt_file)
    return None if request.infill is None else ("infill", prompt.read(request.infill))


def _given(texts: tuple[str, str] | None, model: Model) -> Tensor | None:
    import torch  # slow; flags are checked without it

    if texts is None:
        return None
    kind, text = texts
    length, symbols = model.denoiser.length, model.denoiser.symbols
    if kind == "prompt":
        ids = prompt.prefix(model.codec, text, length)
    else:
        ids = prompt.infill(model.codec, text, length, symbols)
    return torch.tensor(ids, dtype=torch.long)


def _model(request: SampleRequest, hybrid: int | None, say: Say) -> tuple[Model, bool]:
    """The model that samples, and whether it is the one that --teacher names, all by itself."""
    from di4c_cli.model import load  # imports torch

    alone = request.student is None and request.teacher is not None and not hybrid
    ref = request.teacher if alone else request.student or default_model(say)
    assert ref is not None
    return load(ref, device=choose_device(request.device)), alone


def _teacher(request: SampleRequest, model: Model, alone: bool, hybrid: int) -> Model | None:
    """The teacher that makes the last steps of a hybrid; it may be a student itself."""
    from di4c_cli.model import load  # imports torch

    if request.teacher is None or alone:
        return model.teacher if hybrid else None
    if not hybrid:
        raise UserError("Two models are named, but only one of them samples.", "Drop one, or add --hybrid K.")
    return load(request.teacher, device=choose_device(request.device))


def default_model(say: Say) -> str:
    """The newest run in `runs/`, else the embedded student; `say` prints which one it is."""
    from di4c_cli.model import newest_run  # imports torch

    run = newest_run()
    if run is not None:
        say(f"No model named: the newest run here, {run.parent}.")
        return str(run)
    say(f"No model named and no run here: the embedded {embedded.DEFAULT} student.")
    return f"{embedded.DEFAULT}-student"


def choose_device(name: str | None) -> str:
    """The named device if it exists; without a name CUDA or the CPU."""
    import torch  # slow; flags are checked without it

    from di4c_cli.numerics import allow_tf32  # imports torch

    allow_tf32()
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.partition(":")[0] not in DEVICES:  # torch knows more kinds, some without memory
            raise AssertionError
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise UserError(f"There is no device '{name}' here.", "Use --device cpu.") from None
    return name
