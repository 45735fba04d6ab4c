"""The variational method: a conditional VAE over λ whose decoder is the student.

In the paper's terms it trains the mixture of section 3.2, p^θ(x0|x_t) = E_λ Π_d p^{θ,d}(x0^d|x_t; λ), on the data term
(eq. data-loss), with a variational bound in place of Monte Carlo over λ. An encoder q(λ|x0, x_t) proposes λ, and

    -log p^θ(x0|x_t) ≤ E_q[-Σ_d log p^{θ,d}(x0^d|x_t; λ)] + KL(q(λ|x0, x_t) ‖ N(0, I)).

The first part is the reconstruction, the sum the negative ELBO of the mixture with a standard normal prior. Training
weights the KL with β, which rises to 1 (KL annealing): with β = 1 from the first step the posterior collapses. L Monte
Carlo draws of λ can show at most log L nats of correlation; the encoder has no such limit. With several samples of q
the bound is the importance-weighted one (IWAE). The learned prior of the student (`latent.prior: learned`) is trained
on detached samples of q, beside the bound; it replaces N(0, I) in sampling and does not enter the bound.

Teacher and data enter through x0 alone: data, the teacher's own samples (`training.synthetic_share`), or both.
Relatives in the literature: VADD, Coupling Models and DiLaDiff, which train a latent with an encoder and a (learned)
prior from data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from di4c_cli import memory
from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.draw import finest
from di4c_cli.errors import UserError
from di4c_cli.latent.encoder import Encoder, kl_to_standard_normal
from di4c_cli.methods.base import Loss, Method, MethodSetup, repeat, repeat_label
from di4c_cli.methods.diagnostics import MIN_NATS, CollapseDetector, RunningMeans
from di4c_cli.methods.kernels import negative_log_likelihood
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.methods.times import sample_time
from di4c_cli.methods.variational_config import KLWeightConfig, VariationalConfig
from di4c_cli.noise import Noise

# The names of the noise streams ("lam/posterior", "law", ":posterior:") decide the draws; new names change results.
PRIOR_SAMPLES, LOCAL_PRIOR_SAMPLES = 16, 4
"""Samples of q per x0 in the loss of the learned prior, for one vector λ and for λ at every position."""


def kl_weight(config: KLWeightConfig, progress: float) -> float:
    """β: `start` at first, then a line from 0 at `anneal_from` to 1 at `anneal_until` where it exceeds `start`."""
    low, high = config.anneal_from, config.anneal_until
    if progress >= high:
        return 1.0
    share = (progress - low) / max(high - low, 1e-9)  # anneal_from = anneal_until is a jump
    return min(1.0, max(config.start, share))


class Variational(Method):
    """Reconstruction + β KL, plus the loss of the learned prior if the student has one."""

    config: VariationalConfig

    def __init__(
        self,
        config: VariationalConfig,
        student: Denoiser,
        teacher: Denoiser | None = None,
        setup: MethodSetup | None = None,
    ) -> None:
        super().__init__(config, student, teacher, setup)
        if student.latent is None or student.latent.distribution != "normal":
            # the recipe is checked; a mixture teacher brings its own λ
            raise UserError("The variational method needs a normal λ.", "Add --set latent.distribution=normal.")
        seed = f"{self.setup.seed}:posterior:{self.setup.round_number}"
        states = student.process.states
        encoder = Encoder(student.latent, states, student.length, config.encoder_width, seed)
        self.encoder = encoder.to(student.dtype)

    def collapse_detector(self) -> CollapseDetector:
        return CollapseDetector(kl_warnings)

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        """The negative ELBO of one batch at the present β."""
        with torch.no_grad():
            t = sample_time(self.config.time, noise)
            x_t, x0 = corrupt_data(self.student.process, batch, t, noise)
        return self.loss_of(x0, x_t, t, batch.label, noise, progress)

    def loss_of(
        self, x0: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None, noise: Noise, progress: float = 1.0
    ) -> Loss:
        """The loss of x0 and x_t `(B, D)` at times t `(B,)`."""
        assert self.student.latent is not None
        count, size = self.config.iwae_samples, self.student.latent.size
        beta = kl_weight(self.config.kl_weight, progress)
        mean, log_variance = self.encoder(x0, x_t)
        draw = noise.normal("lam/posterior", *((count, size) if count > 1 else (size,)))
        draw = draw.to(mean).view(-1, count, size)
        lam = mean[:, None] + (0.5 * log_variance[:, None]).exp() * draw
        prediction = self._decode(x_t, t, label, lam)
        kl = kl_to_standard_normal(mean, log_variance)
        if count == 1:
            nll, reconstruction = self._reconstruction(prediction, x0, torch.ones_like(t))
            total = nll + beta * kl.mean().to(nll)
            known_kl = kl.detach().to(reconstruction)
            each, elbo = reconstruction + beta * known_kl, reconstruction + known_kl
        else:
            ratio = 0.5 * (draw.square() + log_variance[:, None] - lam.square()).sum(-1)  # log p(λ) - log q(λ)
            total, each, elbo, reconstruction = self._importance_weighted(prediction, x0, ratio, beta)
        terms = {"reconstruction": reconstruction, "kl": kl.detach().to(reconstruction), "negative_elbo": elbo}
        if self.student.learned_prior is not None:
            prior = self.prior_loss(mean.detach(), log_variance.detach(), x_t, t, label, noise)
            total, each = total + prior.mean().to(total), each + prior.detach().to(each)
            terms["prior_loss"] = prior.detach().to(reconstruction)
        return Loss(total, terms | {"total": each})

    def _decode(self, x_t: Tensor, t: Tensor, label: Tensor | None, lam: Tensor) -> Prediction:
        """The student at x_t under every λ `(B, K, size)`, B·K samples in all."""
        count, size = lam.shape[1:]
        flat = lam.flatten(0, 1).to(self.student.time_dtype)
        return self.student.predict(
            repeat(x_t, count),
            repeat(t, count),
            repeat_label(label, count),
            flat.squeeze(-1) if size == 1 else flat,
            self.setup.dropout,
        )

    def _reconstruction(self, prediction: Prediction, x0: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted mean of -log p(x0|x_t; λ) with a graph, and its values per λ."""
        sizes = self.config.loss_memory(memory.gpu_memory(x0.device))
        return negative_log_likelihood(prediction, repeat(x0, len(weight) // len(x0)), weight, *sizes)

    def _importance_weighted(
        self, prediction: Prediction, x0: Tensor, ratio: Tensor, beta: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The IWAE bound E_q[-log 1/K Σ_k p(x0|x_t; λ_k) (p(λ_k)/q(λ_k))^β] from log ratios `(B, K)`.

        Returns its mean with a graph; its value per sample at β and at 1; the weighted -log p(x0|x_t; λ_k). Since
        ∇ -log Σ_k exp(s_k) = -Σ_k softmax(s)_k ∇s_k, one evaluation with known weights gives the gradient.
        """
        count = ratio.shape[1]
        with torch.no_grad():
            ones = torch.ones(ratio.numel(), dtype=finest(ratio.device), device=ratio.device)
            nll = self._reconstruction(prediction, x0, ones)[1].view(-1, count)
        known = ratio.detach().to(nll)
        each, elbo = (math.log(count) - torch.logsumexp(b * known - nll, 1) for b in (beta, 1.0))
        weight = torch.softmax(beta * known - nll, 1)
        surrogate = self._reconstruction(prediction, x0, (count * weight).flatten())[0]
        surrogate = surrogate - beta * (weight.to(ratio) * ratio).sum(1).mean().to(surrogate)
        return surrogate + (each.mean() - surrogate).detach(), each, elbo, (weight * nll).sum(1)

    def prior_loss(
        self, mean: Tensor, log_variance: Tensor, x_t: Tensor, t: Tensor, label: Tensor | None, noise: Noise
    ) -> Tensor:
        """Flow-matching loss `(B,)` of the learned prior on samples of q; about 1, with labels 2, at the start."""
        prior = self.student.learned_prior
        assert prior is not None
        count = LOCAL_PRIOR_SAMPLES if prior.places > 1 else PRIOR_SAMPLES
        draw = noise.normal("law", count, 2, mean.shape[1]).to(mean)
        lam = mean[:, None] + (0.5 * log_variance[:, None]).exp() * draw[:, :, 0]
        return prior.flow_matching_loss(lam, draw[:, :, 1], x_t, t, label)


def kl_warnings(figures: RunningMeans) -> tuple[str, str] | None:
    """The check of the variational method: posterior collapse."""
    kl = figures.mean.get("kl")
    if kl is None or kl >= MIN_NATS:
        return None
    return "posterior collapse", (
        f"The posterior has collapsed: KL(q ‖ p) is {kl:.1e} nats, so λ carries no information about a sample and "
        "the student is a product model like its teacher. Keep the KL weight low for longer "
        "(--set method.kl_weight.start=0.02, a later method.kl_weight.anneal_from), inject λ at every position "
        "(--set latent.inject=field), or start it further from zero (--set latent.init=0.3)."
    )
