"""The encoder q(λ|x0, x_t): a normal distribution of λ for every sample. It is used in training only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from di4c_cli.latent.prior import LatentPrior
from di4c_cli.noise import sample_seeds

SYMBOL_WIDTH, LOCAL_SYMBOL_WIDTH = 16, 64
"""Embedding width of a symbol, for one vector λ and for λ at every position."""
ENCODER_REACH = 3
"""Neighbours on each side in the receptive field of one layer of a local encoder."""
MAX_LOG_VARIANCE = 5.0
"""Bound of |log variance|; without it the variance may diverge in the first steps."""


class LocalEncoderNet(nn.Module):
    """Two convolutions along the positions, `(B, D, in)` -> `(B, D, out)`.

    A learned offset per position breaks the symmetry between neighbours, which must encode different things.
    """

    def __init__(self, length: int, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.1 * torch.randn(length, inputs))
        self.first = nn.Conv1d(inputs, width, 2 * ENCODER_REACH + 1, padding=ENCODER_REACH)
        self.second = nn.Conv1d(width, width, 2 * ENCODER_REACH + 1, padding=ENCODER_REACH)
        self.last = nn.Linear(width, outputs)

    def forward(self, embedded: Tensor) -> Tensor:
        """Embedded symbols -> parameters of q at every position."""
        h = nn.functional.gelu(self.first((embedded + self.place).transpose(1, 2)))
        h = h + nn.functional.gelu(self.second(h))
        out: Tensor = self.last(h.transpose(1, 2))
        return out


class Encoder(nn.Module):
    """Mean and log variance of λ from the symbols of a sample before and after corruption."""

    def __init__(self, latent: LatentPrior, states: int, length: int, width: int, seed: str) -> None:
        super().__init__()
        self.local = latent.places > 1
        embedded, outputs = LOCAL_SYMBOL_WIDTH if self.local else SYMBOL_WIDTH, 2 * latent.dim
        (number,) = sample_seeds(seed, [0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.clean, self.noisy = nn.Embedding(states, embedded), nn.Embedding(states, embedded)
            self.net: nn.Module
            if self.local:
                self.net = LocalEncoderNet(length, embedded, width, outputs)
                last = self.net.last
            else:
                first, second = nn.Linear(length * embedded, width), nn.Linear(width, width)
                last = nn.Linear(width, outputs)
                self.net = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)
            nn.init.normal_(last.weight, std=0.05)
            nn.init.zeros_(last.bias)

    def forward(self, x0: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
        """x0, x_t `(B, D)` -> mean and log variance of λ, `(B, size)` each, in float32 or wider.

        The KL divergence sums thousands of numbers; half precision would be off by more than a nat.
        """
        embedded = self.clean(x0) + self.noisy(x_t)
        out = self.net(embedded if self.local else embedded.flatten(1))
        mean, log_variance = out.to(torch.promote_types(out.dtype, torch.float32)).chunk(2, -1)
        return mean.flatten(1), MAX_LOG_VARIANCE * torch.tanh(log_variance / MAX_LOG_VARIANCE).flatten(1)


def kl_to_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(q ‖ N(0, I)) in nats, `(B,)`."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
