"""A sampling request, checked and loaded: which model, which plan, which labels and given symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli import embedded
from di4c_cli.errors import UserError
from di4c_cli.evaluation.sample_files import read_texts
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
    prompts: Path | None = None
    infill: Path | None = None
    template: str | None = None
    answer: int | None = None
    device: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class PreparedSample:
    """A request that is checked and loaded. `labels` repeat over the samples, and so do the rows `(D,)` of `given`.

    `tokens` and `passes` count the symbols drawn so far and the forward passes of samples that they took.
    """

    model: Model
    teacher: Model | None
    plan: SamplingPlan
    n: int
    seed: int
    labels: list[int] | None
    given: list[Tensor] | None
    tokens: int = 0
    passes: int = 0

    @property
    def length(self) -> int:
        """Of the longest sample."""
        return self.model.denoiser.length if self.given is None else max(map(len, self.given))

    def draw(self, first: int, count: int, **more: Any) -> Tensor:
        """Samples number `first` … as `(count, D)`, shorter ones with -1 after their ends.

        `more` are arguments of `Model.sample`.
        """
        import torch  # slow; flags are checked without it

        teacher = None if self.teacher is None else self.teacher.denoiser
        size = min(count, more.get("batch_size") or self.plan.batch_size(self.length))
        width = getattr(self.model.denoiser.network, "width", TYPICAL_WIDTH)
        check_sampling_memory(max(size, self.plan.tile), self.length, int(width))
        more |= {"plan": self.plan, "seed": self.seed, "teacher": teacher}
        networks = [self.model.denoiser, *([] if teacher is None else [teacher])]
        before = sum(one.passes for one in networks)
        x = torch.full((count, self.length), prompt.FREE_POSITION)
        together: dict[int, list[int]] = {}  # by the length of the samples
        for i in range(first, first + count):
            together.setdefault(0 if self.given is None else len(self.given[i % len(self.given)]), []).append(i)
        for rows in together.values():
            label = None if self.labels is None else [self.labels[i % len(self.labels)] for i in rows]
            given = None if self.given is None else torch.stack([self.given[i % len(self.given)] for i in rows])
            own = self.model.sample(len(rows), label=label, given=given, numbers=rows, **more)
            x[torch.tensor(rows) - first, : own.shape[1]] = own
            self.tokens += own.numel() if given is None else int((given < 0).sum())
        self.passes += sum(one.passes for one in networks) - before
        return x

    def decode(self, x: Tensor) -> Any:
        """Text or images of samples as `draw` gives them."""
        if self.given is None or len(set(map(len, self.given))) == 1:
            return self.model.decode(x)
        return [self.model.decode(row[row >= 0][None])[0] for row in x]

    def tokens_per_pass(self, group: ProcessGroup) -> float | None:
        """Symbols per forward pass of a sample, over all processes; None if nothing was drawn."""
        tokens, passes = map(sum, zip(*group.gather((self.tokens, self.passes))))
        return tokens / passes if passes else None

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
        facts["given"] = sum(int((row >= 0).sum()) for row in self.given or [])
        if self.given is not None and len(self.given) > 1:
            facts["prompts"] = len(self.given)
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
        for key in ("block", "guidance", "temperature", "top_p", "corrector"):
            if key in settings:
                parts.append(f"{key.replace('_', '-')} {settings[key]:g}")
        if "hybrid" in settings:
            parts.append(f"the last {settings['hybrid']} by the teacher")
        return f"{self.n} from {self.model.name}: {', '.join(parts)}, seed {self.seed}."


def prepare(request: SampleRequest, say: Say) -> PreparedSample:
    """Check a request and load what it needs. Mistakes in flags are found before anything is loaded."""
    flags = {"steps": request.steps, **request.options}
    check_ranges(flags)
    if request.answer is not None and request.answer < 1:
        raise UserError(f"An answer of {request.answer} tokens is impossible.", "Use --answer 1 or more.")
    if request.n is not None and not 1 <= request.n <= MAX_SAMPLES:
        raise UserError(f"{request.n} samples are impossible.", f"Use -n 1 to {MAX_SAMPLES}.")
    texts = _texts(request)
    model, alone = _model(request, flags.get("hybrid"), say)
    labels = parse_labels(request.label, model.config.labels)
    plan = model.plan(labels is not None, **flags)
    teacher = _teacher(request, model, alone, plan.hybrid)
    given = _given(request, texts, model)
    # the sampling loop checks the same, but only after the first file is written
    for row in [None] if given is None else given:
        plan.check_inputs(model.denoiser, None, row, None if teacher is None else teacher.denoiser)
    n = request.n or len(given or [0])
    if request.n is None and model.codec.kind not in ("text", "none"):  # three of every class, if the classes are few
        n = 3 * len(labels) if labels and 1 < len(labels) <= FEW_CLASSES else 16
    return PreparedSample(model, teacher, plan, n, request.seed, labels, given)


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


def _texts(request: SampleRequest) -> list[str] | None:
    """The given texts; at most one of the four flags."""
    named = [request.prompt, request.prompt_file, request.prompts, request.infill]
    if sum(flag is not None for flag in named) > 1:
        raise UserError("--prompt, --prompt-file, --prompts and --infill exclude each other.", "Use one of them.")
    if request.infill is not None:
        if request.template is not None or request.answer is not None:
            raise UserError("--infill takes no --template and no --answer.", "Write all of it into the file.")
        return [prompt.read(request.infill)]
    texts = None if request.answer is None else [""]  # an answer to nothing
    if request.prompt is not None:
        texts = [request.prompt]
    elif request.prompt_file is not None:
        texts = [prompt.read(request.prompt_file)]
    elif request.prompts is not None:
        texts = read_texts(request.prompts)
    elif request.template is not None:
        raise UserError("--template needs a prompt.", "Add --prompt, --prompt-file or --prompts.")
    return None if texts is None else [prompt.in_template(request.template, text) for text in texts]


def _given(request: SampleRequest, texts: list[str] | None, model: Model) -> list[Tensor] | None:
    """Rows of given symbols, -1 where free."""
    import torch  # slow; flags are checked without it

    if texts is None:
        return None
    length, symbols = model.denoiser.length, model.denoiser.symbols
    if request.infill is None:
        if model.codec.kind != "text":
            model.codec.encode("")  # says that this model takes no text
        found = [prompt.prefix(model.codec, text, length, request.answer) for text in texts]
    else:
        any_length = bool(getattr(model.denoiser.network, "any_length", False))
        found = [prompt.infill(model.codec, text, length, symbols, any_length) for text in texts]
    return [torch.tensor(ids, dtype=torch.long) for ids in found]


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
