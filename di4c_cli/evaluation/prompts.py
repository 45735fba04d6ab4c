"""Prompts of the conditional protocols: from a file, the paper's abstract, or the embedded held-out text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from di4c_cli.codec.text import Text
from di4c_cli.data.embedded import load_world
from di4c_cli.errors import UserError
from di4c_cli.evaluation.plan import Plan
from di4c_cli.evaluation.protocols import ABSTRACT
from di4c_cli.evaluation.sampling import Continuations
from di4c_cli.evaluation.stored import read_array, read_texts
from di4c_cli.model import Model


def fitted(plan: Plan, model: Model) -> Plan:
    """The plan with prompts cut to a model that is shorter than they are, and a note that says so."""
    prompts, length = plan.prompts, model.denoiser.length
    if prompts is None or prompts.length <= length:
        return plan
    given = prompts.given * length // prompts.length
    note = f"Of this model's {length} tokens {given} are given, not {prompts.given} of {prompts.length}."
    return replace(plan, prompts=replace(prompts, given=given, length=length), notes=(*plan.notes, note))


def continuations(plan: Plan, model: Model, world: str, file: Path | None) -> Continuations | None:
    """The prompts a plan asks for, as ids with room for what the model writes."""
    if plan.prompts is None:
        if file is not None:
            raise UserError("Only the conditional protocols take prompts.", "Leave --prompts out.")
        return None
    if not isinstance(model.codec, Text):
        raise UserError("Prompts need a text model.", "Name one with --student or --teacher.")
    ids = _ids(plan, model.codec, world, file)
    given = torch.full((len(ids), plan.prompts.length), -1, dtype=torch.long)
    given[:, : plan.prompts.given] = ids
    return Continuations(given, plan.prompts.times)


def _ids(plan: Plan, codec: Text, world: str, file: Path | None) -> Tensor:
    assert plan.prompts is not None
    count = plan.prompts.given
    if file is not None and file.suffix == ".npy":
        array = np.array(read_array(file), dtype=np.int64)
        if array.ndim != 2 or array.shape[1] < count:
            raise UserError(f"{file} does not hold ids (n, {count} or more).", "Check the prompts.")
        return torch.from_numpy(array[:, :count])
    if file is None and world == "tiny-text":
        return load_world(world).held_out[:256, :count]
    if file is None and plan.kind != "samples":
        raise UserError(f"{plan.name} continues prompts.", "Name them with --prompts FILE.txt, one a line.")
    texts = [ABSTRACT] if file is None else read_texts(file)
    encoded = [codec.encode(text)[:count] for text in texts]
    long = [ids for ids in encoded if len(ids) == count]
    if not long:
        raise UserError(f"No prompt has {count} tokens.", "Use longer texts.")
    return torch.tensor(long)
