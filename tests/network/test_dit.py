"""The DiT's interface and the properties its forward pass must have; stored outputs are in tests/golden."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.network import build
from di4c_cli.network.dit import DiT
from tests.helpers.other_sizes import full_logits

S, D, B = 11, 9, 3
SIZES: dict[str, Any] = {"symbols": S, "length": D, "width": 16, "depth": 2, "heads": 2, "cond_dim": 6}
LATENTS: list[dict[str, Any] | None] = [
    None,
    {},
    {"inject": "film"},
    {"dim": 3},
    {"inject": "film", "dim": 3, "features": "sinusoid"},
    {"inject": "field", "dim": 3},
    {"inject": "local", "dim": 2},
]


def make(latent: dict[str, Any] | None = None, **changes: Any) -> DiT:
    """A DiT with all weights random: a fresh one leaves every modulation at the identity."""
    torch.manual_seed(0)
    network = DiT(**{**SIZES, **changes}, latent=latent)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def inputs(network: DiT, seed: int = 1) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, times, λ (None for a plain network)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, S + 1, (B, D), generator=generator)
    t = torch.rand(B, generator=generator)
    each = D if network.latent and network.latent.inject == "local" else 1
    lam = torch.rand(B, each * network.latent.dim, generator=generator) if network.latent else None
    return x, t, lam


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("time_conditioning", [False, True])
def test_dit_body_and_head_have_their_shapes(latent: dict[str, Any] | None, time_conditioning: bool) -> None:
    network = make(latent, time_conditioning=time_conditioning)
    x, t, lam = inputs(network)
    h = network.body(x, t, None, lam)
    logits = full_logits(network, h)
    assert h.shape == (B, D, 16)
    assert logits.shape == (B, D, S + 1)
    rows = network.head(h[[0, 2], [4, 1]], torch.tensor([4, 1]))
    assert rows.is_contiguous()
    torch.testing.assert_close(rows, logits[[0, 2], [4, 1], :S])


@pytest.mark.parametrize("latent", LATENTS)
def test_dit_is_built_by_its_type(latent: dict[str, Any] | None) -> None:
    network = make(latent, dropout=0.1, time_conditioning=True)
    twin = build({"type": "dit", **SIZES, "dropout": 0.1, "time_conditioning": True, "latent": latent})
    assert isinstance(twin, DiT)
    twin.eval().load_state_dict(network.state_dict())
    x, t, lam = inputs(network)
    assert torch.equal(twin.body(x, t, None, lam), network.body(x, t, None, lam))


@pytest.mark.parametrize("latent", LATENTS[1:])
def test_dit_student_without_lambda_is_the_plain_network(latent: dict[str, Any]) -> None:
    student, plain = make(latent), make()
    weights = {key: value for key, value in student.state_dict().items() if not key.startswith("latent")}
    plain.load_state_dict(weights)
    x, t, lam = inputs(student)
    assert torch.equal(student.body(x, t), plain.body(x, t))
    assert (student.body(x, t, None, lam) - plain.body(x, t)).abs().max() > 0.01


def test_dit_modulation_paths_agree_at_time_zero() -> None:
    """σ(0) = 0: vectors per sample must do what the shared vectors folded into the norm do."""
    network = make()
    x, t, _ = inputs(network)
    shared = network.body(x, t)
    network.time_conditioning = True
    torch.testing.assert_close(network.body(x, torch.zeros(B)), shared, rtol=0, atol=1e-5)
    assert (network.body(x, t) - shared).abs().max() > 0.01


@pytest.mark.parametrize("time_conditioning", [False, True])
def test_dit_film_adds_to_the_modulation_of_each_block(time_conditioning: bool) -> None:
    """Oracle: the same vectors added to the modulation biases of a plain network, one sample at a time."""
    network = make({"inject": "film"}, time_conditioning=time_conditioning)
    x, t, lam = inputs(network)
    assert lam is not None
    h, film = network.body(x, t, None, lam), network.latent_film(lam)
    for b in range(B):
        single = copy.deepcopy(network)
        with torch.no_grad():
            for i, block in enumerate(single.stack):
                block.adaLN_modulation.bias.add_(film[b, i].flatten())
        torch.testing.assert_close(h[b], single.body(x[b : b + 1], t[b : b + 1])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("latent", LATENTS)
def test_dit_samples_do_not_see_each_other(latent: dict[str, Any] | None) -> None:
    network = make(latent, time_conditioning=True)
    x, t, lam = inputs(network)
    whole = network.body(x, t, None, lam)
    alone = network.body(x[1:2], t[1:2], None, None if lam is None else lam[1:2])
    torch.testing.assert_close(whole[1], alone[0], rtol=0, atol=1e-5)


def test_dit_positions_are_exchangeable_without_rotary_angles() -> None:
    network = make({})
    x, t, lam = inputs(network)
    order = torch.randperm(D, generator=torch.Generator().manual_seed(3))
    assert not torch.allclose(network.body(x[:, order], t, None, lam), network.body(x, t, None, lam)[:, order])
    network.rotary_emb.inv_freq.zero_()
    torch.testing.assert_close(
        network.body(x[:, order], t, None, lam), network.body(x, t, None, lam)[:, order], rtol=0, atol=1e-5
    )


def test_dit_attention_depends_on_relative_positions_only() -> None:
    """Shifting all angles by a constant changes nothing in a plain network."""
    network = make()
    x = inputs(network)[0]
    cos, sin = network.rotary_emb(D + 4, 0, torch.float32)
    block, u = network.stack[0], network.vocab_embed(x)
    early, late = block.attention(u, cos[:D], sin[:D]), block.attention(u, cos[4:], sin[4:])
    torch.testing.assert_close(early, late, rtol=0, atol=1e-5)


def test_dit_latent_token_has_angle_zero() -> None:
    cos, sin = make().rotary_emb(D, 1, torch.float32)
    assert cos.shape == (D + 1, 1, 1, 4)
    assert torch.equal(cos[-1], cos[0])
    assert not sin[-1].any()


@pytest.mark.parametrize("length", [1, D - 4, D + 3])
def test_dit_runs_at_other_lengths(length: int) -> None:
    network = make({})
    x = torch.full((2, length), S)
    assert network.body(x, torch.ones(2), None, torch.rand(2)).shape == (2, length, 16)


def gradients(network: DiT, lam: Tensor | None, checkpointing: bool) -> tuple[Tensor, dict[str, Tensor]]:
    network.checkpointing = checkpointing
    network.zero_grad()
    torch.manual_seed(5)  # dropout
    x, t, _ = inputs(network)
    h = network.body(x, t, None, lam)
    full_logits(network, h).square().mean().backward()
    return h.detach(), {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("latent", LATENTS[:3])
def test_dit_checkpointing_changes_nothing(latent: dict[str, Any] | None) -> None:
    network = make(latent, dropout=0.2).train()
    lam = inputs(network)[2]
    plain, wanted = gradients(network, lam, checkpointing=False)
    h, found = gradients(network, lam, checkpointing=True)
    assert torch.equal(h, plain)
    assert set(found) == set(dict(network.named_parameters()))
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, msg=name)


def test_dit_dropout_acts_in_training_only() -> None:
    network = make(dropout=0.5)
    x, t, _ = inputs(network)
    assert torch.equal(network.body(x, t), network.body(x, t))
    network.train()
    assert not torch.equal(network.body(x, t), network.body(x, t))


@pytest.mark.parametrize("latent", LATENTS)
def test_dit_works_in_other_precisions(latent: dict[str, Any] | None) -> None:
    network = make(latent, time_conditioning=True)
    x, t, lam = inputs(network)
    single = full_logits(network, network.body(x, t, None, lam))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = full_logits(network, network.body(x, t, None, lam))
    double = network.double()
    exact = full_logits(double, double.body(x, t, None, lam))
    assert exact.dtype == torch.float64
    # float32 angles up to 1000 are off by some 1e-4
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=5e-4)
    torch.testing.assert_close(mixed.double(), exact, rtol=0, atol=0.05 * exact.std().item() + 0.05)


def test_dit_outputs_are_moderate_when_fresh() -> None:
    network = DiT(symbols=S, length=D, width=32, depth=4, heads=2, cond_dim=8, latent={"inject": "film"})
    x, t, lam = inputs(network)
    h = network.body(x, t, None, lam)
    assert 0.5 < h.std() < 2
    assert (h - network.body(x, t, None, lam.flip(0))).std() > 0.01
    full_logits(network, h).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_dit_rejects_impossible_sizes() -> None:
    with pytest.raises(UserError, match="multiple"):
        make(width=18, heads=4)
    with pytest.raises(UserError, match="labels"):
        make(labels=10)
