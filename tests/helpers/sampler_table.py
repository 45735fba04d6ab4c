"""Denoisers given by tables, on spaces small enough to list, and the laws of their samplers by enumeration.

Nothing here uses the samplers' code: laws are sums over all states, in numpy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import expm
from scipy.stats import chi2, poisson
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.process import Process

DRAWS = 200_000
LEVEL = 1e-3
"""Level of each χ² test; the seeds are fixed, so a test that passes goes on passing."""


class Table(nn.Module):
    """Logits `(labels + 1, K, states^D, D, S)` at t = 0 and t = 1, linear between; ⌊Kλ⌋ chooses the row."""

    def __init__(self, process: Process, length: int, components: int, labels: int, seed: int) -> None:
        super().__init__()
        self.length, self.states, self.components = length, process.states, components
        rng = np.random.default_rng(seed)
        shape = (2, labels + 1, components, process.states**length, length, process.symbols)
        self.table = nn.Parameter(torch.tensor(rng.normal(size=shape) * 1.3), requires_grad=False)

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        code = (x * self.states ** torch.arange(self.length - 1, -1, -1)).sum(1)
        row = torch.full_like(code, -1) if label is None else label
        part = torch.zeros_like(code) if lam is None else (lam * self.components).long()
        low, high = self.table[:, row, part, code]
        return low + t[:, None, None] * (high - low)

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return h

    def law(self, x: tuple[int, ...], t: float, label: int = -1, component: int = 0) -> np.ndarray:
        """p(x0^d|xt; λ) `(D, S)`, positions that x already knows included."""
        code = sum(v * self.states ** (self.length - 1 - d) for d, v in enumerate(x))
        low, high = self.table[:, label, component, code].numpy()
        weight = np.exp(low + t * (high - low))
        weight /= weight.sum(1, keepdims=True)
        if self.states > weight.shape[1]:
            for d, v in enumerate(x):
                if v < weight.shape[1]:
                    weight[d] = np.eye(weight.shape[1])[v]
        return weight


def tabulated(process: Process, length: int, components: int = 1, labels: int = 0, seed: int = 0) -> Denoiser:
    """A denoiser from a random table; more than one component makes it a mixture."""
    net = Table(process, length, components, labels, seed)
    return Denoiser(net, process, LatentPrior() if components > 1 else None, labels or None)


def states(process: Process, length: int) -> list[tuple[int, ...]]:
    """All x, last position fastest."""
    return list(itertools.product(range(process.states), repeat=length))


def product(parts: list[np.ndarray]) -> np.ndarray:
    """The joint law `(states^D,)` of independent positions."""
    out = np.ones(1)
    for part in parts:
        out = np.outer(out, part).reshape(-1)
    return out


Kernel = Callable[[tuple[int, ...], np.ndarray], np.ndarray]
"""State and p(x0|xt) `(D, S)` to the law of the next state `(states^D,)`."""


def move(law: np.ndarray, net: Table, process: Process, t: float, kernel: Kernel, label: int = -1) -> np.ndarray:
    """One step of the chain: a fresh λ, then `kernel`."""
    out = np.zeros_like(law)
    for x, weight in zip(states(process, net.length), law):
        if weight > 0:
            for part in range(net.components):
                out += weight / net.components * kernel(x, net.law(x, t, label, part))
    return out


def bayes(process: Process, q_s0: np.ndarray, q_ts: np.ndarray) -> Kernel:
    """The analytical step by Bayes' rule in every position (eq. dimiwise-analytical)."""
    q_t0 = q_s0 @ q_ts

    def kernel(x: tuple[int, ...], p0: np.ndarray) -> np.ndarray:
        parts = []
        for d, v in enumerate(x):
            if v != process.mask and process.mask is not None:  # a known symbol stays, also where 0/0 says nothing
                parts.append(np.eye(process.states)[v])
                continue
            back = np.zeros(process.states)
            for x0 in range(process.symbols):
                if q_t0[x0, v] > 0:
                    back += p0[d, x0] * q_s0[x0] * q_ts[:, v] / q_t0[x0, v]
            parts.append(back)
        return product(parts)

    return kernel


def masked_q(symbols: int, m_s: float, m_t: float) -> np.ndarray:
    """q_{t|s} of the masked process, rows the source (eq. masking-t|s)."""
    q = np.eye(symbols + 1)
    hide = (m_t - m_s) / (1 - m_s) if m_s < 1 else 1.0
    q[:symbols] *= 1 - hide
    q[:symbols, symbols] = hide
    return q


def chain_q(rate: np.ndarray, span: float) -> np.ndarray:
    """q_{t|s} of a chain with base rates `rate` after `span` of its own time."""
    return expm(rate * span)


def likeliest(process: Process) -> Kernel:
    """The arg-max as last step."""
    return lambda x, p0: product([np.eye(process.states)[row.argmax()] for row in p0])


def plackett_luce(weight: np.ndarray, count: int) -> dict[tuple[int, ...], float]:
    """P(set of the first `count` drawn without replacement), each draw proportional to `weight`."""
    out: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(weight)), count):
        chance, left = 1.0, weight.sum()
        for i in order:
            chance *= weight[i] / left
            left -= weight[i]
        key = tuple(sorted(order))
        out[key] = out.get(key, 0.0) + chance
    return out


def confidence(process: Process, count: int, scale: float) -> Kernel:
    """Confidence step: values first, then Plackett–Luce with weights p^{1/c} (section mg-sampling)."""
    mask = process.mask

    def kernel(x: tuple[int, ...], p0: np.ndarray) -> np.ndarray:
        out = np.zeros(process.states ** len(x))
        hidden = [d for d, v in enumerate(x) if v == mask]
        for values in itertools.product(range(process.symbols), repeat=len(hidden)):
            chosen = np.array([p0[d, v] for d, v in zip(hidden, values)])
            if scale > 0:
                sets = plackett_luce(chosen ** (1 / scale), min(count, len(hidden)))
            else:
                sets = {tuple(sorted(np.argsort(-chosen, kind="stable")[:count])): 1.0}
            for kept, chance in sets.items():
                y = list(x)
                for i in kept:
                    y[hidden[i]] = values[i]
                code = sum(v * process.states ** (len(x) - 1 - d) for d, v in enumerate(y))
                out[code] += chosen.prod() * chance
        return out

    return kernel


def reverse_rate(q_t0: np.ndarray, rate: np.ndarray, p0: np.ndarray, v: int) -> np.ndarray:
    """R̂(v→y) for one position, summed by hand."""
    size = len(p0)
    return np.array(
        [0.0 if y == v else rate[y, v] * sum(p0[a] * q_t0[a, y] / q_t0[a, v] for a in range(size)) for y in range(size)]
    )


def leap(mean: np.ndarray, v: int, ordinal: bool, most: int = 60) -> np.ndarray:
    """Law of one position after Poisson(mean) jumps to each symbol."""
    size = len(mean)
    if not ordinal:
        out = mean * math.exp(-mean.sum())
        out[v] = 1 - out.sum() + out[v]
        return out
    reach = most * size
    line = np.zeros(2 * reach + 1)
    line[reach] = 1.0
    for y in range(size):
        if y == v or mean[y] == 0:
            continue
        jump = np.zeros_like(line)
        jump[reach + np.arange(most) * (y - v)] = poisson.pmf(np.arange(most), mean[y])
        line = np.convolve(line, jump)[reach:-reach]
    out = np.zeros(size)
    for i, weight in enumerate(line):
        out[min(max(v + i - reach, 0), size - 1)] += weight
    return out


def tau(q_t0: np.ndarray, rate: np.ndarray, span: float, ordinal: bool, both: bool = False) -> Kernel:
    """τ-leaping for a time `span`; `both` adds the forward rates (corrector)."""

    def kernel(x: tuple[int, ...], p0: np.ndarray) -> np.ndarray:
        parts = []
        for d, v in enumerate(x):
            total = reverse_rate(q_t0, rate, p0[d], v)
            if both:
                total = total + np.where(np.arange(len(total)) == v, 0.0, rate[v])
            parts.append(leap(total * span, v, ordinal))
        return product(parts)

    return kernel


def frequencies(x: Tensor, process: Process) -> np.ndarray:
    """Counts of every state `(states^D,)` among samples x `(n, D)`."""
    length = x.shape[1]
    code = (x * process.states ** torch.arange(length - 1, -1, -1)).sum(1)
    return np.bincount(code.numpy(), minlength=process.states**length)


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """p-value of the counts under the law; cells expected fewer than five times are put together."""
    expected = law * counts.sum()
    assert counts[law < 1e-15].sum() == 0, "a state of probability zero was drawn"
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    if wanted[-1] < 5:
        observed[-2] += observed[-1]
        wanted[-2] += wanted[-1]
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1))
