"""Exact figures of models whose space can be listed: distance of the N-step law from the data's."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.metric.exact import divergence, empirical, step_law, total_variation

LATENTS = 256


class ExactScorer(Scorer):
    """Total variation and KL between data `(n, D)` and the model's law, without sampling noise."""

    main = "tv"

    def __init__(self, data: Tensor, symbols: int, name: str) -> None:
        if data.ndim != 2 or len(data) == 0 or int(data.min()) < 0 or int(data.max()) >= symbols:
            raise UserError(
                f"'{name}' does not hold sequences of symbols below {symbols}.", "Check --reference."
            )
        self.data, self.name = data.long(), name
        self.law = empirical(self.data, symbols)
        self.cell: CellSampling | None = None

    def instrument(self) -> Instrument:
        digest = hashlib.blake2b(self.data.numpy().tobytes(), digest_size=8).hexdigest()
        return Instrument(
            name="enumeration",
            kind="exact",
            digest="-",
            reference=self.name,
            reference_n=len(self.data),
            reference_digest=digest,
            detail={"latents": LATENTS},
        )

    def prepare(self, sampling: CellSampling) -> None:
        self.cell = sampling

    def score(self, x: Tensor, decoded: Any) -> Scores:
        return {"x": x.numpy()}

    def summarise(self, parts: Parts) -> dict[str, Figure]:
        assert self.cell is not None
        settings = self.cell.settings
        plain = settings["sampler"] == "analytical" and settings["last"] == "sample"
        if not plain or settings.keys() & {"temperature", "top_p", "guidance", "hybrid", "corrector"}:
            raise UserError(
                "Only plain analytical sampling can be enumerated.", "Leave the other settings out."
            )
        law = step_law(self.cell.model.denoiser, settings["steps"], None, LATENTS, settings["grid"])
        sampled = empirical(torch.from_numpy(parts.column("x")), self.cell.model.denoiser.symbols)
        kl = divergence(self.law, law)
        out = {
            "tv": Figure(value=total_variation(law, self.law), interval="exact"),
            "tv_sampled": Figure(
                value=total_variation(sampled, self.law), note="of the drawn samples, with their noise"
            ),
        }
        if math.isfinite(kl):
            out["kl"] = Figure(value=kl, interval="exact", unit="nats")
        return out
