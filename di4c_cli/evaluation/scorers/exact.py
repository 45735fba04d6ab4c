"""Exact figures of models whose space can be enumerated: distance of the N-step distribution from the data's."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.sample_files import read_array
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, register_scorer
from di4c_cli.foreign.arrays import as_integers
from di4c_cli.metric.exact import divergence, empirical, enumerable, step_distribution, total_variation

ENUMERATED_LATENTS = 256


@register_scorer("exact")
class ExactScorer(Scorer):
    """Total variation and KL between data `(n, D)` and the model's distribution, without sampling noise."""

    main = "tv"

    def __init__(self, data: Tensor, symbols: int, name: str) -> None:
        if data.ndim != 2 or len(data) == 0 or int(data.min()) < 0 or int(data.max()) >= symbols:
            raise UserError(f"'{name}' does not hold sequences of symbols below {symbols}.", "Check --reference.")
        self.data, self.name = data.long(), name
        self.data_distribution = empirical(self.data, symbols)
        self.cell: CellSampling | None = None

    @classmethod
    def create(cls, context: ScorerContext) -> ExactScorer:
        model, path = context.model, context.options.reference
        if model is None or path is None or not enumerable(model.denoiser):
            raise UserError(
                "A model without a codec can only be measured if its space is small enough to enumerate.",
                "Name data as --reference FILE.npy, an array (n, D) of ids.",
            )
        stored = read_array(path)
        ids = as_integers(stored[: len(stored)], f"The ids of {path}").astype(np.int64)
        return cls(torch.from_numpy(ids), model.denoiser.symbols, path.name)

    def instrument(self) -> Instrument:
        digest = hashlib.blake2b(self.data.numpy().tobytes(), digest_size=8).hexdigest()
        return Instrument(
            name="enumeration",
            kind="exact",
            digest="-",
            reference=self.name,
            reference_n=len(self.data),
            reference_digest=digest,
            detail={"latents": ENUMERATED_LATENTS},
        )

    def prepare(self, sampling: CellSampling | None) -> None:
        self.cell = sampling

    def score(self, x: Tensor, decoded: Any) -> Scores:
        return {"x": x.numpy()}

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        assert self.cell is not None
        settings = self.cell.settings
        plain = settings["sampler"] == "analytical" and settings["last"] == "sample"
        if not plain or settings.keys() & {"temperature", "top_p", "guidance", "hybrid", "corrector"}:
            raise UserError("Only plain analytical sampling can be enumerated.", "Leave the other settings out.")
        distribution = step_distribution(
            self.cell.model.denoiser, settings["steps"], ENUMERATED_LATENTS, settings["grid"]
        )
        sampled = empirical(torch.from_numpy(parts.column("x")), self.cell.model.denoiser.symbols)
        kl = divergence(self.data_distribution, distribution)
        out = {
            "tv": Figure(value=total_variation(distribution, self.data_distribution), interval="exact"),
            "tv_sampled": Figure(
                value=total_variation(sampled, self.data_distribution), note="of the drawn samples, with their noise"
            ),
        }
        if math.isfinite(kl):
            out["kl"] = Figure(value=kl, interval="exact", unit="nats")
        return out
