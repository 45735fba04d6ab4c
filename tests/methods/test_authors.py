"""The loss with the authors' keys against dense ports of the authors' three training codes, in float64.

The ports are written from the paper and from facts about the published code (sony/di4c): SDTT's SUBS parameterisation
with a time that is rounded up twice, MaskGIT's loss over all positions and 1025 symbols, and CIFAR-10's loss with a
distillation term of its own. Each port gets the weights of the networks, x0, the uniforms and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.methods.base import MethodSetup
from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.methods.loss_domain import whole
from di4c_cli.network import build
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.recipe_file import read
from di4c_cli.training.sweep_recipe import read_sweep
from tests.helpers.kernel_inputs import NETWORKS, denoiser, scatter

LATENTS = 3


def config_of(recipe: str, **changes: Any) -> Di4CConfig:
    """The method section of a recipe with fewer latents."""
    method = read(recipe, {"method.latents": LATENTS} | {f"method.{k}": v for k, v in changes.items()}).method
    assert isinstance(method, Di4CConfig)
    return method


def pair(kind: str, schedule: str | None = None, mixture_teacher: bool = False) -> tuple[Denoiser, Denoiser]:
    """Student and teacher of one domain; the student's λ is a token where the paper's is."""
    models = []
    for seed, mixture in ((1, True), (2, mixture_teacher)):
        made = denoiser(kind, mixture, seed)
        if schedule is not None:
            settings = dict(NETWORKS[kind]) | ({"latent": {"inject": "token"}} if mixture else {})
            network = build(settings).double()
            scatter(network, seed, 0.3)
            process = Masked(int(str(settings["symbols"])), schedule)
            made = Denoiser(network, process, LatentPrior() if mixture else None, made.labels)
        models.append(made)
    return models[0], models[1]


def data(model: Denoiser) -> tuple[Batch, Noise]:
    """Samples on both sides of δ where the loss has two branches; labels, some of them dropped."""
    index = list(range(4 if model.process.mask is None else 24))
    x0 = (Noise(7, index, "data").uniform("x0", model.length) * model.symbols).long()
    label = None if model.labels is None else torch.arange(len(index)) % (model.labels + 1) - 1
    return Batch(index, x0, label), Noise(3, index, "train/1")


def compare(method: Di4C, port: Callable[[Di4C, Batch, Noise], Tensor]) -> None:
    """Value to 1e-9 and every weight's gradient to 1e-7."""
    batch, noise = data(method.student)
    results = []
    for total in (lambda: method.loss(batch, noise).total, lambda: port(method, batch, noise)):
        method.zero_grad(set_to_none=True)
        value = total()
        value.backward()
        results.append((value.detach(), {n: p.grad for n, p in method.named_parameters() if p.grad is not None}))
    (ours, our_grads), (theirs, their_grads) = results
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert sum(float(g.norm()) for g in their_grads.values()) > 0.1
    for name, grad in their_grads.items():
        torch.testing.assert_close(our_grads.get(name, torch.zeros_like(grad)), grad, rtol=0, atol=1e-7)


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(LATENTS, 0)


def choose(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Symbols from log-probabilities `(..., V)` and uniforms `(...)` by the inverse CDF."""
    return (log_p.exp().cumsum(-1) < uniform[..., None]).sum(-1).clamp_max(log_p.shape[-1] - 1)


def mean_of(log_p: Tensor) -> Tensor:
    return torch.logsumexp(log_p, 1) - math.log(log_p.shape[1])


def likelihood(log_t: Tensor, x: Tensor, cv: bool) -> Tensor:
    """-log p(x|x_t), with the control variate minus the same of the product of marginals; x `(B, D)`."""
    at = log_t.gather(3, x[:, None, :, None].expand(-1, log_t.shape[1], -1, 1)).squeeze(3)  # (B, L, D)
    joint = mean_of(at.sum(2))
    return mean_of(at).sum(1) - joint if cv else -joint


def published_terms(log_t: Tensor, log_k: Tensor, log_u: Tensor, x0: Tensor, x_j: Tensor, cv: bool = True) -> Any:
    """data_cor, data_indep, consis of the published codes; log_t, log_u `(B, L, D, V)`, log_k `(B, D, V)`."""
    p_u, log_mean_u, log_mean_t = log_u.exp().mean(1), mean_of(log_u), mean_of(log_t)
    indep = (p_u * (log_mean_u - log_mean_t)).sum((1, 2))
    cor = torch.stack([likelihood(log_t, x_j[:, j], cv) for j in range(x_j.shape[1])]).mean(0)
    data_indep = (log_k.exp() * (log_k - log_mean_t)).sum((1, 2))
    if not cv:
        indep, data_indep = torch.zeros_like(cor), torch.zeros_like(cor)
    return likelihood(log_t, x0, cv), data_indep, cor + indep


def kl_each(log_t: Tensor, log_k: Tensor) -> Tensor:
    """The published distillation loss: Σ KL(teacher ‖ student under λ), averaged over λ."""
    return (log_k.exp()[:, None] * (log_k[:, None] - log_t)).sum((1, 2, 3)) / log_t.shape[1]


def g(t: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(10 - 20 * t))


# SDTT: t on a grid of 1/1024 with P(t < δ) = 0.3, x_t at the next grid time, SUBS logits.


def subs(model: Denoiser, x: Tensor, lam: Tensor | None) -> Tensor:
    """log p `(N, D, S + 1)`: the mask has -10⁶; a known position is certain."""
    prediction = model.predict(x, torch.zeros(len(x), dtype=torch.float64), None, lam)
    every = torch.ones_like(x, dtype=torch.bool).nonzero(as_tuple=True)
    logits = model.network.head(prediction.hidden[every], every[1]).view(*x.shape, -1)  # type: ignore[operator]
    logits = torch.cat([logits, torch.full_like(logits[..., :1], -1e6)], -1)
    log_p = logits - torch.logsumexp(logits, -1, keepdim=True)
    sure = torch.full_like(log_p, -1e6).scatter(2, x[..., None], 0.0)
    return torch.where((x == model.symbols)[..., None], log_p, sure)


def sdtt_port(method: Di4C, batch: Batch, noise: Noise) -> Tensor:
    student, teacher, x0, length = method.student, method.teacher, batch.x0, method.student.length
    assert x0 is not None
    r, small = noise.uniform("t"), noise.uniform("t/choose") < 0.3
    t = (1 + torch.floor(1024 * torch.where(small, 0.02 * r, 0.02 + 0.98 * r))) / 1024
    later = (1 + torch.floor(1024 * t)) / 1024  # the second rounding
    assert 0 < (t < 0.02).sum() < len(t)
    x_t = torch.where(noise.uniform("corrupt", length) < (0.999 * later)[:, None], student.symbols, x0)
    mixture = teacher.latent is not None
    with torch.no_grad():
        lam_k = noise.uniform("lam/teacher", LATENTS).flatten() if mixture else None
        log_k = subs(teacher, repeated(x_t) if mixture else x_t, lam_k).unflatten(0, (len(x_t), -1))
        reveal, value = noise.uniform("step/u", LATENTS, length, 2).unbind(-1)
        proposal = choose(log_k.expand(-1, LATENTS, -1, -1)[..., :-1], value)
        masked = (x_t == student.symbols)[:, None].expand_as(proposal)
        x_u = torch.where(masked & (reveal < (1 / 1024 / t)[:, None, None]), proposal, x_t[:, None])
        log_u = subs(student, x_u.flatten(0, 1), noise.uniform("lam/u", LATENTS).flatten())
        log_u = log_u.unflatten(0, (-1, LATENTS))
        x_j = choose(log_u[..., :-1], noise.uniform("draw/u", LATENTS, length))
    log_t = subs(student, repeated(x_t), noise.uniform("lam/t", LATENTS).flatten()).unflatten(0, (-1, LATENTS))
    log_k = mean_of(log_k)
    cor, indep, consis = published_terms(log_t, log_k, log_u, x0, x_j)
    alpha = method.config.alpha.scale * g(t) if method.config.alpha.kind == "sigmoid" else 0.0
    return (torch.where(t < 0.02, kl_each(log_t, log_k), consis) + alpha * cor + indep).mean()


@pytest.mark.parametrize("mixture_teacher", [False, True], ids=["round1", "round2"])
@pytest.mark.parametrize("alpha", [{"kind": "zero"}, {"kind": "sigmoid", "scale": 0.1}], ids=["di4c", "di4c-d"])
def test_sdtt_loss_equals_the_authors(alpha: dict[str, Any], mixture_teacher: bool) -> None:
    student, teacher = pair("dit", "linear", mixture_teacher)
    compare(Di4C(config_of("authors/sdtt-7", alpha=alpha), student, teacher), sdtt_port)


@pytest.mark.parametrize("later", [False, True])
def test_corrupt_later_masks_as_at_the_next_grid_time(later: bool) -> None:
    """On a coarse grid, where the two shares differ by more than a few symbols."""
    student, teacher = pair("dit", "linear")
    time = {"grid": 8, "small_share": 0.3, "corrupt_later": later}
    batch, noise = data(student)
    drawn = Di4C(config_of("sdtt-7", time=time), student, teacher).noised(batch, noise)
    share = 0.999 * (drawn.times.t + 1 / 8) if later else drawn.times.t
    masked = noise.uniform("corrupt", student.length) < share[:, None]
    assert torch.equal(drawn.x_t == student.symbols, masked)
    assert 0 < masked.sum() < masked.numel()


# MaskGIT: r = 1 - t uniform, all positions and symbols, one confidence step of the teacher.


def whole_log_probs(model: Denoiser, x: Tensor, label: Tensor | None, lam: Tensor | None) -> Tensor:
    """log p `(N, D, S + 1)` at every position."""
    hidden = model.predict(x, torch.zeros(len(x), dtype=torch.float64), label, lam).hidden
    symbols, net = model.symbols + 1, model.network
    logits = hidden @ net.tok_emb.weight[:symbols].T + net.bias[: model.length, :symbols]  # type: ignore[union-attr, index]
    return logits.log_softmax(-1)


def maskgit_step(log_k: Tensor, x_t: Tensor, r: Tensor, noise: Noise) -> Tensor:
    """x_u `(B, L, D)`: as many most confident positions as bring the number of masks to D m_u, rounded down."""
    batch, length = x_t.shape
    mask, steps = log_k.shape[-1] - 1, 8
    share = torch.arccos((r + 0.05).clamp_max(1)) / (math.pi / 2)
    drawn = choose(log_k[:, None].expand(-1, LATENTS, -1, -1), noise.uniform("step/u", LATENTS, length))
    confidence = log_k[:, None].expand(-1, LATENTS, -1, -1).gather(3, drawn[..., None]).squeeze(3)
    scale = 4.5 * (1 - r * steps / (steps - 1))
    confidence = confidence + scale[:, None, None] * noise.gumbel("step/gumbel", LATENTS, length)
    x_u = x_t[:, None].expand(-1, LATENTS, -1).clone()
    for b in range(batch):
        masked = x_t[b] == mask
        number = int(((1 - share[b]) * length - (length - masked.sum())).clamp(0, int(masked.sum())))
        for j in range(LATENTS):
            order = confidence[b, j].masked_fill(~masked, -torch.inf).topk(number).indices
            x_u[b, j, order] = drawn[b, j, order]
    return x_u


def maskgit_port(method: Di4C, batch: Batch, noise: Noise) -> Tensor:
    student, teacher, x0, length = method.student, method.teacher, batch.x0, method.student.length
    label = batch.label
    assert x0 is not None and label is not None
    r = 1 - noise.uniform("t")
    t, share = 1 - r, torch.arccos(r) / (math.pi / 2)
    x_t = torch.where(noise.uniform("corrupt", length) < share[:, None], student.symbols, x0)
    with torch.no_grad():
        log_k = whole_log_probs(teacher, x_t, label, None)
        x_u = maskgit_step(log_k, x_t, r, noise)
        lam = noise.uniform("lam/u", LATENTS).flatten()
        log_u = whole_log_probs(student, x_u.flatten(0, 1), repeated(label), lam).unflatten(0, (-1, LATENTS))
        x_j = choose(log_u, noise.uniform("draw/u", LATENTS, length))
    lam = noise.uniform("lam/t", LATENTS).flatten()
    log_t = whole_log_probs(student, repeated(x_t), repeated(label), lam).unflatten(0, (-1, LATENTS))
    cor, indep, consis = published_terms(log_t, log_k, log_u, x0, x_j)
    small = r >= 1 - 0.05
    assert 0 < small.sum() < len(t)
    alpha = method.config.alpha.scale * g(t) if method.config.alpha.kind == "sigmoid" else 0.0
    return (torch.where(small, kl_each(log_t, log_k) / 0.05, consis) + alpha * cor + indep).mean()


@pytest.mark.parametrize("alpha", [{"kind": "zero"}, {"kind": "sigmoid", "scale": 0.1}], ids=["di4c", "di4c-d"])
def test_maskgit_loss_equals_the_authors(alpha: dict[str, Any]) -> None:
    student, teacher = pair("maskgit", "arccos")
    compare(Di4C(config_of("authors/maskgit-imagenet256", alpha=alpha), student, teacher), maskgit_port)


@pytest.mark.parametrize("key, value", [("teacher_step", "confidence"), ("loss_domain", "unknown")])
def test_maskgit_loss_needs_each_of_the_authors_keys(key: str, value: str) -> None:
    student, teacher = pair("maskgit", "arccos")
    with pytest.raises(AssertionError, match="not close"):
        compare(Di4C(config_of("authors/maskgit-imagenet256", **{key: value}), student, teacher), maskgit_port)


def test_loss_domain_all_needs_a_logit_for_the_mask() -> None:
    model = denoiser("unet", False)
    prediction = model.predict(torch.zeros(1, model.length, dtype=torch.long), torch.ones(1))
    with pytest.raises(UserError, match="masked"):
        whole(prediction)


def test_corrupt_later_needs_a_linear_mask_schedule() -> None:
    student, teacher = pair("maskgit", "arccos")
    with pytest.raises(UserError, match="linear"):
        Di4C(config_of("authors/sdtt-6"), student, teacher)
    with pytest.raises(UserError, match="grid"):
        config_of("maskgit-imagenet256", time={"corrupt_later": True})


# CIFAR-10: Δt log-uniform, t uniform above it, distillation at its own δ, analytical step of the teacher.


def pixel_log_probs(model: Denoiser, x: Tensor, t: Tensor, lam: Tensor | None) -> Tensor:
    hidden = model.predict(x, t, None, lam).hidden
    return model.network.head(hidden.flatten(0, 1)).view(*x.shape, -1).log_softmax(-1)  # type: ignore[operator]


def cifar_port(method: Di4C, batch: Batch, noise: Noise, cv: bool = True) -> Tensor:
    student, teacher, x0, length = method.student, method.teacher, batch.x0, method.student.length
    assert x0 is not None
    process, config = teacher.process, method.config
    step = 0.001 * torch.exp(noise.uniform("step") * math.log(10))
    t = noise.uniform("t") * (1 - 0.01 - step) + 0.01 + step
    u = t - step

    def noised(clean: Tensor, time: Tensor, uniform: Tensor) -> Tensor:
        rows = process.transition(torch.zeros_like(time), time)[torch.arange(len(time))[:, None], clean]
        return choose(rows.log(), uniform)

    x_t = noised(x0, t, noise.uniform("corrupt", length))
    chosen, spread = noise.uniform("delta/choose", LATENTS), noise.uniform("delta", LATENTS)
    delta = (0.01 + torch.where(chosen < 0.5, 0.0, 0.01 * spread)).flatten()
    x_delta = noised(repeated(x0), delta, noise.uniform("corrupt/delta", LATENTS, length).flatten(0, 1))
    with torch.no_grad():
        log_k = pixel_log_probs(teacher, x_t, t, None)
        log_k_delta = pixel_log_probs(teacher, x_delta, delta, None)
        uniform = noise.uniform("step/u", LATENTS, length, 2)

        def rows(b: Tensor, d: Tensor) -> Tensor:
            return log_k[b, d]

        x_u = process.step(rows, x_t, t, u, uniform)  # tests/golden/test_posterior.py compares this step
        lam = noise.uniform("lam/u", LATENTS).flatten()
        log_u = pixel_log_probs(student, x_u.flatten(0, 1), repeated(u), lam).unflatten(0, (-1, LATENTS))
        x_j = choose(log_u, noise.uniform("draw/u", LATENTS, length))
    lam = noise.uniform("lam/t", LATENTS).flatten()
    log_t = pixel_log_probs(student, repeated(x_t), repeated(t), lam).unflatten(0, (-1, LATENTS))
    log_delta = pixel_log_probs(student, x_delta, delta, noise.uniform("lam/delta", LATENTS).flatten())
    distil = (log_k_delta.exp() * (log_k_delta - log_delta)).view(len(x0), -1).sum(1) / LATENTS
    cor, indep, consis = published_terms(log_t, log_k, log_u, x0, x_j, cv)
    alpha = {"zero": 0 * t, "const": 0 * t + 1, "linear": t, "sigmoid": g(t)}[config.alpha.kind]
    return (distil + alpha * cor + indep + consis).mean()


def test_cifar_loss_equals_the_authors() -> None:
    compare(Di4C(config_of("authors/tauldr-cifar10"), *pair("unet")), cifar_port)


def test_ablation_rows_are_the_papers_objectives() -> None:
    """Rows of table alpha-ab on the paper's base; "w/o CV" has neither control variates nor a marginal term."""
    sweep = read_sweep("ablations/alpha")
    student, teacher = pair("unet")
    for row in sweep.rows:
        method = read("tauldr-cifar10", row.set | {"method.latents": LATENTS}).method
        assert isinstance(method, Di4CConfig)
        cv = "w/o CV" not in row.label
        compare(Di4C(method, student, teacher), lambda *given, cv=cv: cifar_port(*given, cv=cv))  # type: ignore[misc]


def test_dropout_at_u_acts_on_the_student_at_u() -> None:
    student, teacher = pair("unet")
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    config = config_of("authors/tauldr-cifar10")
    drawn = {}
    for at_u in (False, True):
        method = Di4C(config, student, teacher, MethodSetup(dropout=True, dropout_at_u=at_u))
        hidden = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            inputs = method.inputs_at_t(method.noised(*data(student)))
            assert inputs.student_u is not None
            hidden.append(inputs.student_u.hidden)
        drawn[at_u] = torch.equal(*hidden)
    assert drawn == {False: True, True: False}
