"""Models as users meet them: `load(ref)` gives something to sample from and to ask for probabilities."""

from __future__ import annotations

import tempfile
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
from di4c_cli.sampler.settings import resolve
from di4c_cli.teacher import resolve as resolve_ref


class Model:
    """A denoiser with its codec, its defaults and its history."""

    def __init__(
        self,
        config: ModelConfig,
        denoiser: Denoiser,
        folder: Path | None = None,
        load_report: LoadReport | None = None,
        codec_tensors: dict[str, Tensor] | None = None,
    ) -> None:
        """`codec_tensors`: weights of a decoder that came from a foreign file and stands in no folder yet."""
        self.config, self.denoiser, self.load_report = config, denoiser, load_report
        self._folder, self._codec_tensors = folder, codec_tensors
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._codec: codec.Codec | None = None
        self._teacher: Model | None = None

    @property
    def name(self) -> str:
        """As config.json has it."""
        return self.config.name

    @property
    def codec(self) -> codec.Codec:
        """Built when first needed: probabilities need no decoder."""
        if self._codec is None:
            built = codec.build(self.config.codec, self._folder, self._codec_tensors)
            self._codec = built.to(self.denoiser.device)
        return self._codec

    @property
    def folder(self) -> Path | None:
        """Where the codec's file is.

        A decoder that stands in no folder yet is put into a temporary one that lives as long as the model.
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
        """Who taught this student, found through its run or by a listed name when first needed."""
        if self._teacher is None:
            self._teacher = self._load_teacher()
        return self._teacher

    @property
    def teacher_ref(self) -> str:
        """What the teacher can be loaded by unasked; empty if the user has to name it."""
        found = find_teacher(self.config.provenance, self._folder)
        return "" if found is None else found.ref

    def _load_teacher(self) -> Model:
        name = recorded_teacher(self.config.provenance)
        if not name:
            raise UserError(f"'{self.name}' does not say who taught it.", "Name the teacher with --teacher.")
        found = find_teacher(self.config.provenance, self._folder)
        if found is None:
            raise UserError(
                f"The teacher '{name}' of '{self.name}' is not known here.", "Name it with --teacher."
            )
        try:
            return load(found.ref, device=self.denoiser.device, **found.options)
        except UserError as error:
            raise UserError(
                f"The teacher '{found.ref}' of '{self.name}' cannot be loaded: {error.message}",
                "Name it with --teacher.",
            ) from error

    def taught_by(self, teacher: Model) -> Model:
        """The same model with its teacher at hand, wherever that came from."""
        self._teacher = teacher
        return self

    def to(self, device: torch.device | str) -> Model:
        """Move the network, its decoder, and those of a teacher at hand."""
        self.denoiser.to(device)
        if self._codec is not None:
            self._codec.to(device)
        if self._teacher is not None:
            self._teacher.to(device)
        return self

    @torch.no_grad()
    def log_probs(
        self,
        x_t: Tensor,
        t: Tensor | float,
        label: Tensor | None = None,
        latent: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """log p(x0|xt; λ) `(B, D, S)` over the real symbols; a known position is 0 at its symbol, else -inf.

        `label=None` is unconditional; `latent=None` draws one λ per sample from `seed`. A λ of one number is `(B,)`,
        any other `(B, size)` with `size = denoiser.latent.size`.
        """
        times = torch.as_tensor(t, dtype=finest(x_t.device)).expand(len(x_t)).to(x_t.device)
        noise = Noise(seed, range(len(x_t)), "log-probs", x_t.device)
        lam = self.denoiser.draw_latent(noise, "lam", x_t, times, label) if latent is None else latent
        return self.denoiser.predict(x_t, times, label, lam).dense()

    def sample(
        self,
        n: int,
        steps: int | None = None,
        seed: int = 0,
        label: int | list[int] | Tensor | None = None,
        batch_size: int | None = None,
        first: int = 0,
        **options: Any,
    ) -> Tensor:
        """`(n, D)` samples number `first` … of `seed`; the same for any `batch_size`.

        `label`: one for all, or one per sample; None is unconditional. Other options are those of
        `di4c_cli.sampler.Settings`, plus `given` and `teacher` (for hybrid sampling; else the student's own).
        """
        from di4c_cli.sampler.run import sample_many

        _check_rows(n, label, options.get("given"))
        defaults = self.config.sampling
        if options.get("teacher") is None and self.helped(steps, options.get("hybrid"), label is not None):
            options["teacher"] = self.teacher.denoiser
        return sample_many(self.denoiser, defaults, n, steps, seed, label, batch_size, first, **options)

    def helped(self, steps: int | None = None, hybrid: int | None = None, labelled: bool = False) -> bool:
        """Whether a teacher makes some of `steps` steps: `hybrid` of them, or what the model's defaults say."""
        if hybrid is not None:
            return hybrid > 0
        defaults = self.config.sampling
        return resolve(defaults, self.denoiser.length, steps, labelled).hybrid > 0

    def decode(self, x: Tensor) -> Any:
        """Ids to a list of strings, or to uint8 images `(n, H, W)` or `(n, H, W, 3)`."""
        return self.codec.decode(x)


def _check_rows(n: int, label: int | list[int] | Tensor | None, given: Tensor | None) -> None:
    """Labels and given symbols: one for all or one per sample."""
    count = 1 if label is None else torch.as_tensor(label).numel()
    rows = 1 if given is None or given.dim() < 2 else len(given)
    for found, what in ((count, "labels"), (rows, "rows of given symbols")):
        if found not in (1, n):
            raise UserError(f"{found} {what} do not fit {n} samples.", "Give one, or one per sample.")


def load(ref: str, device: torch.device | str = "cpu", **options: Any) -> Model:
    """A teacher or student by name, Hub id (`user/name@revision`), folder or file.

    `tiny-digits` is the embedded teacher, `tiny-digits-student` its student.
    """
    return Model(*resolve_ref(ref, **options)).to(device)


def load_folder(folder: Path) -> Model:
    """A folder in our own format."""
    if not folder.is_dir():
        raise UserError(f"There is no model folder {folder}.", "Check the path.")
    config, denoiser, report = model_folder.load_folder(folder)
    return Model(config, denoiser, folder, report)


def newest_run(root: Path = Path("runs")) -> Path | None:
    """The most recently written student under `runs/`, or None."""
    found = [path.parent for path in root.glob("*/student/config.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
