"""Prompts of conditional protocols: distinct, long enough, each continued several times and never recycled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from di4c_cli.codec.text import Text
from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import EvaluationProtocol, PromptSpec
from di4c_cli.evaluation.sample_files import read_array, read_texts
from di4c_cli.foreign.arrays import as_integers
from di4c_cli.model import Model
from di4c_cli.tasks.base import ToyTask

MAX_TASK_PROMPTS = 256


@dataclass(frozen=True)
class Continuations:
    """Distinct prompts `(P, length)` with -1 at the positions the model fills; each is continued `times` times in a
    row. `notes` say which prompts were left out.
    """

    given: Tensor
    times: int
    notes: tuple[str, ...] = ()

    def rows(self, first: int, count: int) -> Tensor:
        """`(count, length)` for samples `first` …"""
        return self.given[torch.arange(first, first + count) // self.times]

    @property
    def max_samples(self) -> int:
        """Continuations of all prompts: more samples would repeat prompts, which are not independent."""
        return len(self.given) * self.times

    @property
    def digest(self) -> str:
        content = self.given.to(torch.int64).numpy().tobytes()
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def usage(self, n: int, wanted: int, repeats: int) -> tuple[str, ...]:
        """What `n` samples use of the prompts, where `wanted` samples were asked for."""
        used = n // self.times
        found = f"{used} of {len(self.given)}" if used < len(self.given) else str(used)
        text = f"Prompts continued: {found}; continuations of each: {self.times}."
        if self.times > 1:
            text += " Intervals are over prompts."
        if n < wanted:
            text += f" {wanted} samples need {wanted // self.times} prompts, and no prompt is used twice."
        shared = ("The repeats share their prompts, so their interval is that of these prompts.",) * (repeats > 1)
        return (*self.notes, text, *shared)


def fit_prompts(protocol: EvaluationProtocol, model: Model) -> EvaluationProtocol:
    """The protocol with prompts cut to a model that is shorter than they are, and a note that says so."""
    prompts, length = protocol.prompts, model.denoiser.length
    if prompts is None or prompts.length <= length:
        return protocol
    given = prompts.given * length // prompts.length
    note = f"Of this model's {length} tokens {given} are given, not {prompts.given} of {prompts.length}."
    return replace(protocol, prompts=replace(prompts, given=given, length=length), notes=(*protocol.notes, note))


def load_prompts(
    protocol: EvaluationProtocol, model: Model, task: ToyTask | None, file: Path | None
) -> Continuations | None:
    """The distinct prompts of a protocol as ids, with -1 at the positions the model fills."""
    spec = protocol.prompts
    if spec is None:
        if file is not None:
            raise UserError("Only the conditional protocols take prompts.", "Leave --prompts out.")
        return None
    if not isinstance(model.codec, Text):
        raise UserError("Prompts need a text model.", "Name one with --student or --teacher.")
    if file is None and task is None and not spec.text:
        raise UserError(f"{protocol.name} continues prompts.", "Name them with --prompts FILE.txt, one per line.")
    found = _read(spec, model.codec, task, file)
    long = [tuple(ids[: spec.given]) for ids in found if len(ids) >= spec.given]
    if not long:
        raise UserError(f"No prompt has {spec.given} tokens.", "Use longer texts.")
    distinct = list(dict.fromkeys(long))[: MAX_TASK_PROMPTS if file is None else None]
    left_out = {
        f"have fewer than {spec.given} tokens": len(found) - len(long),
        f"repeat the first {spec.given} tokens of another one": len(long) - len(set(long)),
    }
    notes = [f"{count} of {len(found)} prompts {why}: left out." for why, count in left_out.items() if count and file]
    given = torch.full((len(distinct), spec.length), -1, dtype=torch.long)
    given[:, : spec.given] = torch.tensor(distinct)
    return Continuations(given, spec.times, tuple(notes))


def _read(spec: PromptSpec, codec: Text, task: ToyTask | None, file: Path | None) -> list[list[int]]:
    """Ids of all prompts of the file, else of the toy task's held-out data, else of the protocol's own text."""
    if file is None and task is not None:
        return task.data.held_out[:, : spec.given].tolist()
    if file is not None and file.suffix == ".npy":
        stored = read_array(file)
        if stored.ndim != 2 or stored.shape[1] < spec.given or not np.issubdtype(stored.dtype, np.integer):
            raise UserError(f"{file} does not hold ids (n, {spec.given} or more).", "Check the prompts.")
        ids: list[list[int]] = as_integers(stored[: len(stored)], f"The ids of {file}").tolist()
        return ids
    return [codec.encode(text) for text in ([spec.text] if file is None else read_texts(file))]
