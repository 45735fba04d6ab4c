"""Models as users meet them: `load(ref)` gives a model to sample from and to ask for probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from di4c_cli import codec, model_folder
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.draw import finest
from di4c_cli.errors import UserError
from di4c_cli.lineage import find_teacher, recorded_teacher
from di4c_cli.load_report import LoadReport
from di4c_cli.noise import Noise
from di4c_cli.sampler.loop import OnStep, sample_many
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.teacher import resolve as resolve_ref


class Model:
    """A denoiser with its codec, its sampling defaults and its provenance."""

    def __init__(
        self,
        config: ModelConfig,
        denoiser: Denoiser,
        folder: Path | None = None,
        load_report: LoadReport | None = None,
        codec_tensors: dict[str, Tensor] | None = None,
    ) -> None:
        """`codec_tensors`: weights of a decoder that came from a foreign file and are in no folder yet."""
        self.config, self.denoiser, self.load_report = config, denoiser, load_report
        self._folder, self._codec_tensors = folder, codec_tensors
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._codec: codec.Codec | None = None
        self._teacher: Model | None = None

    @property
    def name(self) -> str:
        """The name in config.json."""
        return self.config.name

    @property
    def codec(self) -> codec.Codec:
        """Built when first needed: probabilities need no decoder."""
        if self._codec is None:
            built = codec.build(self.config.codec, self._folder, self._codec_tensors)
            built.check_fits(self.denoiser.length, self.denoiser.symbols)
            self._codec = built.to(self.denoiser.device)
        return self._codec

    @property
    def folder(self) -> Path | None:
        """The folder of the codec's file.

        A decoder that is in no folder yet is written to a temporary one that lives as long as the model.
        """
        if self._folder is None and self._codec_tensors is not None:
            self._scratch = tempfile.TemporaryDirectory(prefix="di4c-")
            self._folder = Path(self._scratch.name)
            save_file(self._codec_tensors, self._folder / str(self.config.codec["file"]))
        return self._folder

    @property
    def codec_file(self) -> Path | None:
        """The tokenizer or VQGAN that belongs beside config.json."""
        name = self.config.codec.get("file")
        return None if name is None or self.folder is None else self.folder / str(name)

    @property
    def teacher(self) -> Model:
        """This student's teacher, found through its run or by a listed name when first needed."""
        if self._teacher is not None:
            return self._teacher
        name = recorded_teacher(self.config.provenance)
        if not name:
            raise UserError(f"'{self.name}' does not record its teacher.", "Name the teacher with --teacher.")
        found = find_teacher(self.config.provenance, self._folder)
        if found is None:
            raise UserError(f"The teacher '{name}' of '{self.name}' is not known here.", "Name it with --teacher.")
        try:
            self._teacher = load(found.ref, device=self.denoiser.device, **found.options)
        except UserError as error:
            problem = f"The teacher '{found.ref}' of '{self.name}' cannot be loaded: {error.message}"
            raise UserError(problem, "Name it with --teacher.") from error
        return self._teacher

    @property
    def teacher_ref(self) -> str:
        """The reference that `teacher` loads; empty if the user has to name the teacher."""
        found = find_teacher(self.config.provenance, self._folder)
        return "" if found is None else found.ref

    def with_teacher(self, teacher: Model) -> Model:
        """The same model with a teacher that is loaded already."""
        self._teacher = teacher
        return self

    def to(self, device: torch.device | str) -> Model:
        """Move the network, the decoder if it is built, and the teacher if it is loaded."""
        self.denoiser.to(device)
        if self._codec is not None:
            self._codec.to(device)
        if self._teacher is not None:
            self._teacher.to(device)
        return self

    @torch.no_grad()
    def log_probs(
        self, x_t: Tensor, t: Tensor | float, label: Tensor | None = None, latent: Tensor | None = None, seed: int = 0
    ) -> Tensor:
        """log p(x0|xt; λ) `(B, D, S)` over the real symbols; a known position is 0 at its symbol, else -inf.

        `label=None` is unconditional; `latent=None` draws one λ per sample from `seed`. A λ of one number is `(B,)`,
        any other `(B, size)` with `size = denoiser.latent.size`. Inputs are moved to the model's device.
        """
        device = self.denoiser.device
        label, latent = (x if x is None else x.to(device) for x in (label, latent))
        x_t = x_t.to(device)
        times = torch.as_tensor(t).to(device, finest(device)).expand(len(x_t))
        noise = Noise(seed, range(len(x_t)), "log-probs", device)
        lam = self.denoiser.draw_latent(noise, "lam", x_t, times, label) if latent is None else latent
        return self.denoiser.predict(x_t, times, label, lam).dense()

    def plan(self, labelled: bool = False, length: int | None = None, **flags: Any) -> SamplingPlan:
        """The sampling plan of a request; `flags` are fields of `SamplingPlan`, None leaves the model's default."""
        return SamplingPlan.resolve(self.denoiser, self.config.sampling, labelled, length, **flags)

    def sample(
        self,
        n: int,
        steps: int | None = None,
        seed: int = 0,
        label: int | Sequence[int] | Tensor | None = None,
        batch_size: int | None = None,
        first: int = 0,
        given: Tensor | None = None,
        teacher: Denoiser | None = None,
        plan: SamplingPlan | None = None,
        on_step: OnStep | None = None,
        advance: Callable[[int], None] = lambda count: None,
        numbers: Sequence[int] | None = None,
        **flags: Any,
    ) -> Tensor:
        """`(n, D)` samples number `first` …, or those of `numbers`, of `seed`; the same for any `batch_size`.

        `label`: one for all, or one per sample; None is unconditional. `given`: symbols that must appear, -1 where
        free. `teacher` makes the last steps of a hybrid; None is the student's own. `flags` are fields of
        `SamplingPlan`; a `plan` that is resolved already replaces them and `steps`.
        """
        if plan is None:
            length = None if given is None else int(given.shape[-1])
            plan = self.plan(label is not None, length, steps=steps, **flags)
        if plan.hybrid and teacher is None:
            teacher = self.teacher.denoiser
        more = (batch_size, first, given, teacher, on_step, advance, numbers)
        return sample_many(self.denoiser, plan, n, seed, label, *more)

    def decode(self, x: Tensor) -> Any:
        """Ids to a list of strings, or to uint8 images `(n, H, W)` or `(n, H, W, 3)`."""
        return self.codec.decode(x)


def load(ref: str, device: torch.device | str = "cpu", **options: Any) -> Model:
    """A teacher or student by name, Hub id (`user/name@revision`), folder or file.

    `fashion` is an embedded teacher, `fashion-student` its student.
    """
    return Model(*resolve_ref(ref, **options)).to(device)


def load_folder(folder: Path, base: Model | None = None) -> Model:
    """A folder in our own format; `base` is the model whose weights an adapter changes."""
    weights = None if base is None else base.denoiser.network.state_dict()
    config, denoiser, report = model_folder.load_folder(folder, weights)
    return Model(config, denoiser, folder, report)


def newest_run(root: Path = Path("runs")) -> Path | None:
    """The most recently written student under `runs/`, or None."""
    found = [path.parent for path in root.glob("*/student/config.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
