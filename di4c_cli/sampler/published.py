"""The published masked step: the full head, and one 32-bit Gumbel arg-max over all symbols and the mask.

Kept to reproduce published numbers (`--sample-dtype float32`) and to be measured against. In exact arithmetic
it has the law of the analytical step; 32-bit noise makes rare symbols rarer, because the mask takes most of
the probability and leaves them in the part of the tail that 32 bits cannot reach (arXiv 2409.02908).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.draw import gumbel32
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.tiles import chunks


@dataclass(frozen=True)
class RowNoise:
    """Uniforms over all symbols, one stream per (sample, position), drawn only where a symbol is drawn.

    `(B, D, S)` of them would not fit into memory.
    """

    noise: Noise
    length: int

    def uniform(self, b: Tensor, d: Tensor, symbols: int) -> Tensor:
        """`(n, symbols)` for rows `(b, d)`."""
        index = [self.noise.index[i] * self.length + j for i, j in zip(b.tolist(), d.tolist())]
        return Noise(self.noise.seed, index, self.noise.stream, self.noise.device).uniform("symbol", symbols)


def published_step(
    ask: Predictor, process: Masked, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise
) -> Tensor:
    """x_t `(B, D)` -> x_s: arg max of log q + Gumbel with q = (p(x0) (m_t - m_s), m_s), unnormalised."""
    b, d = process.unknown(x_t).nonzero(as_tuple=True)
    if len(b) == 0:
        return x_t
    prediction = ask(x_t, t, noise, wanted=process.unknown(x_t))
    own = RowNoise(noise, x_t.shape[1])
    reveal = (process.mask_share(t) - process.mask_share(s)).log().float()
    stay = process.mask_share(s).log().float()
    x_s = x_t.clone()
    for piece in chunks(b, ask.head_rows, ask.tile == 1):
        rows, places = b[piece], d[piece]
        law = prediction.log_probs(rows, places).float() + reveal[rows, None]
        law = torch.cat((law, stay[rows, None]), dim=1)
        x_s[rows, places] = gumbel32(law, own.uniform(rows, places, process.states))
    return x_s
