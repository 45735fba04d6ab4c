"""Network + process + λ = p(x0|xt; λ), with hidden states and head kept apart."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from di4c_cli.latent.prior import LatentPrior, LearnedPrior
from di4c_cli.network import Network
from di4c_cli.noise import Noise
from di4c_cli.process import Process


class Prediction:
    """p(x0|xt; λ) for one batch: the body has run, the head runs only where it is asked.

    Rows given to `logits` and `log_probs` must be unknown positions of x_t; `dense` takes care of the known ones.
    """

    def __init__(self, network: nn.Module, process: Process, x_t: Tensor, hidden: Tensor) -> None:
        self.network, self.process = network, process
        self.x_t, self.hidden = x_t, hidden

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` unnormalised log-probabilities at rows `(b, d)`."""
        return cast(Network, self.network).head(self.hidden[b, d], d)

    def log_probs(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` log p(x0^d|xt) at rows `(b, d)`, in float32 or wider."""
        logits = self.logits(b, d)
        return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)

    def dense(self) -> Tensor:
        """`(B, D, S)` for all positions; known ones are 0 at their symbol and -inf elsewhere."""
        unknown = self.process.unknown(self.x_t)
        b, d = unknown.nonzero(as_tuple=True)
        rows = self.log_probs(b, d)
        full = torch.full((*self.x_t.shape, self.process.symbols), -torch.inf, dtype=rows.dtype, device=rows.device)
        known_b, known_d = (~unknown).nonzero(as_tuple=True)
        full[known_b, known_d, self.x_t[known_b, known_d]] = 0
        full[b, d] = rows
        return full


class Denoiser(nn.Module):
    """A model of p(x0|xt; λ). A model without λ is a product model; the teacher of the first round is one."""

    def __init__(
        self, network: nn.Module, process: Process, latent: LatentPrior | None = None, labels: int | None = None
    ) -> None:
        super().__init__()
        self.network, self.process = network, process
        self.latent, self.labels = latent, labels
        self.passes = 0
        """Samples that samplers have sent through the network so far; a guided prediction sends each one twice."""

    @property
    def symbols(self) -> int:
        """Real symbols, the mask not counted."""
        return self.process.symbols

    @property
    def length(self) -> int:
        """Positions of a sample."""
        return cast(Network, self.network).length

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.network.parameters()).dtype

    @property
    def time_dtype(self) -> torch.dtype:
        """Of t and λ: at least float32, because the features stretch them a thousandfold."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return next(self.network.parameters()).device

    @property
    def learned_prior(self) -> LearnedPrior | None:
        """The learned prior of λ, if the student has one; without it λ is the noise."""
        return getattr(self.network, "latent_prior", None)

    def draw_latent(
        self,
        noise: Noise,
        name: str,
        x_t: Tensor,
        t: Tensor,
        label: Tensor | None,
        *count: int,
        stratified: bool = False,
    ) -> Tensor | None:
        """λ for each sample, or `count` of them; None for a product model.

        With a learned prior λ depends on x_t, `(B, D)` or `(B, *count, D)`, on t, `(B,)` or `(B, *count)`, and on the
        label.
        """
        if self.latent is None:
            return None
        draw = self.latent.stratified if stratified else self.latent.draw
        drawn = draw(noise, name, *count).to(self.time_dtype)
        if self.learned_prior is None:
            return drawn

        def each(values: Tensor, *own: int) -> Tensor:
            """Expand values that the λ of a sample share, or have each, to `(B·count, *own)`."""
            missing = [1] * (1 + len(count) + len(own) - values.dim())
            values = values.view(len(values), *missing, *values.shape[1:])
            return values.expand(len(values), *count, *own).flatten(0, len(count))

        given = each(x_t, x_t.shape[-1]), each(t), None if label is None else each(label)
        return self.learned_prior.transport(drawn.view(-1, self.latent.size), *given).view(drawn.shape)

    def predict(
        self, x_t: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, dropout: bool = False
    ) -> Prediction:
        """Run the body on x_t `(B, D)` at times t `(B,)`; dropout is off unless asked for."""
        self.network.train(dropout)
        return Prediction(self.network, self.process, x_t, self(x_t, t, label, lam))

    def forward(self, x_t: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        """Hidden states `(B, D, H)`; the call that wrappers (DDP, autocast, compile) see."""
        return cast(Network, self.network).body(x_t, t.to(self.time_dtype), label, lam)
