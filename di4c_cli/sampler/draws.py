"""Ways of drawing symbols that `process.step` is given: the head runs in chunks, and only symbols are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import JointDraw, SymbolDraw, categorical, gumbel32
from di4c_cli.noise import Noise
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.tiles import chunks

CACHED_ROWS = 16
"""Rows drawn at a time on the CPU: their float64 weights stay in the processor's cache between the passes."""


@dataclass(frozen=True)
class RowNoise:
    """Uniforms over all symbols, one stream per (sample, position), drawn only where a symbol is drawn.

    `(B, D, S)` of them would not fit into memory.
    """

    noise: Noise
    length: int

    def uniform(self, b: Tensor, d: Tensor, symbols: int) -> Tensor:
        """`(n, symbols)` for rows `(b, d)`."""
        index = self.noise.index[b] * self.length + d
        return Noise(self.noise.seed, index, self.noise.stream, self.noise.device).uniform("symbol", symbols)


@dataclass(frozen=True)
class HeadChunks:
    """Draws from a prediction in chunks of at most `rows` rows, each of one sample if `alone`.

    The draw is the exact inverse CDF; `confident` with `gumbel` takes the 32-bit arg-max instead.
    """

    rows: int = 64
    alone: bool = False
    gumbel: RowNoise | None = None

    @classmethod
    def of(cls, predictor: Predictor, gumbel: RowNoise | None = None) -> HeadChunks:
        """The chunks of a sampling plan."""
        return cls(predictor.plan.head_rows, predictor.plan.tile == 1, gumbel)

    def symbols(self, prediction: Prediction, b: Tensor, d: Tensor, uniform: Tensor) -> Tensor:
        """x0 at rows `(b, d)` from uniforms `(n,)` -> `(n,)` long."""
        out = torch.empty_like(b)
        for piece in chunks(b, self.rows, self.alone):
            logits = prediction.logits(b[piece], d[piece])
            size = CACHED_ROWS if logits.device.type == "cpu" else max(1, len(logits))
            for start in range(0, len(logits), size):
                own = slice(piece.start + start, min(piece.start + start + size, piece.stop))
                out[own] = categorical(logits[start : start + size], uniform[own])
        return out

    def confident(self, prediction: Prediction, b: Tensor, d: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """x0 and log p(x0) at rows `(b, d)` from uniforms `(n, M)`: two `(n, M)`; M draws share a prediction."""
        value = torch.empty(uniform.shape, dtype=torch.long, device=b.device)
        log_p = torch.empty_like(uniform)
        for piece in chunks(b, self.rows, self.alone):
            row_log_p = prediction.log_probs(b[piece], d[piece])
            if self.gumbel is None:
                drawn = categorical(row_log_p[:, None].expand(-1, uniform.shape[1], -1), uniform[piece])
            else:
                noise = self.gumbel.uniform(b[piece], d[piece], row_log_p.shape[-1])
                drawn = gumbel32(row_log_p, noise)[:, None]
            value[piece], log_p[piece] = drawn, row_log_p.gather(1, drawn).to(log_p.dtype)
        return value, log_p

    def argmax(self, prediction: Prediction, b: Tensor, d: Tensor) -> Tensor:
        """The most probable x0 at rows `(b, d)` -> `(n,)` long; the first of equals."""
        out = torch.empty_like(b)
        for piece in chunks(b, self.rows, self.alone):
            out[piece] = prediction.logits(b[piece], d[piece]).argmax(-1)
        return out


class ChunkedDraw(SymbolDraw):
    """Exact float64 draws from x_t `(B, D)` at times t `(B,)`.

    The body runs only for samples that have a row, the head only at the rows.
    """

    def __init__(self, predictor: Predictor, x_t: Tensor, t: Tensor, noise: Noise) -> None:
        super().__init__(self._log_probs)
        self.predictor, self.x_t, self.t, self.noise = predictor, x_t, t, noise

    def _predict(self, b: Tensor, d: Tensor) -> tuple[Prediction, Tensor]:
        """A prediction of the samples in `b`, and the number of each row's sample in it."""
        active, own = torch.unique_consecutive(b, return_inverse=True)
        wanted = torch.zeros(len(active), self.x_t.shape[1], dtype=torch.bool, device=b.device)
        wanted[own, d] = True
        return self.predictor(self.x_t, self.t, self.noise, active, wanted), own

    def _log_probs(self, b: Tensor, d: Tensor) -> Tensor:
        prediction, own = self._predict(b, d)
        return prediction.log_probs(own, d)

    def symbols(self, b: Tensor, d: Tensor, uniform: Tensor, row: Tensor | None = None) -> Tensor:
        """x0 `(n,)` at rows `(b, d)`, which come sample by sample."""
        if row is not None:
            return super().symbols(b, d, uniform, row)
        prediction, own = self._predict(b, d)
        return HeadChunks.of(self.predictor).symbols(prediction, own, d, uniform)


class PublishedDraw(ChunkedDraw, JointDraw):
    """The published draw: one 32-bit Gumbel arg-max over all symbols and the mask (`--sample-dtype float32`).

    In exact arithmetic it has the distribution of the exact draw. With 32-bit noise rare symbols become rarer: the
    mask takes most of the probability, and the symbols lie in the part of the tail that 32 bits cannot reach (arXiv
    2409.02908).
    """

    def states(self, b: Tensor, d: Tensor, reveal: Tensor, stay: Tensor) -> Tensor:
        """x_s `(n,)` at rows `(b, d)` from log-weights, with uniforms of their own."""
        prediction, own = self._predict(b, d)
        noise = RowNoise(self.noise, self.x_t.shape[1])
        out = torch.empty_like(b)
        ways = HeadChunks.of(self.predictor)
        for piece in chunks(b, ways.rows, ways.alone):
            log_q = prediction.log_probs(own[piece], d[piece]).float() + reveal[piece, None].float()
            log_q = torch.cat((log_q, stay[piece, None].float()), dim=1)
            out[piece] = gumbel32(log_q, noise.uniform(b[piece], d[piece], log_q.shape[1]))
        return out
