"""The MaskGIT transformer's interface and properties; stored outputs are in tests/golden."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.network import build
from di4c_cli.network.maskgit import FusedAttention, MaskGit
from tests.helpers.other_sizes import full_logits

S, D, B, CLASSES = 11, 6, 3, 4
SIZES: dict[str, Any] = {"symbols": S, "length": D, "width": 16, "depth": 2, "heads": 2, "mlp": 24, "labels": CLASSES}
LATENTS: list[dict[str, Any] | None] = [
    None,
    {},
    {"inject": "film"},
    {"dim": 3},
    {"inject": "film", "dim": 3},
    {"inject": "field", "dim": 3},
    {"inject": "local", "dim": 2},
]


def make(latent: dict[str, Any] | None = None, **changes: Any) -> MaskGit:
    """A network with all weights random, biases and norms included."""
    torch.manual_seed(0)
    network = MaskGit(**{**SIZES, **changes}, latent=latent)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def inputs(network: MaskGit) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Tokens, times, labels (one of them -1), λ (None for a plain network)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, S + 1, (B, D), generator=generator)
    each = D if network.latent and network.latent.inject == "local" else 1
    lam = torch.rand(B, each * network.latent.dim, generator=generator) if network.latent else None
    return x, torch.rand(B, generator=generator), torch.tensor([0, -1, CLASSES - 1]), lam


@pytest.mark.parametrize("latent", LATENTS)
def test_maskgit_body_and_head_have_their_shapes(latent: dict[str, Any] | None) -> None:
    network = make(latent)
    x, t, label, lam = inputs(network)
    h = network.body(x, t, label, lam)
    logits = full_logits(network, h)
    assert h.shape == (B, D, 16)
    assert logits.shape == (B, D, S + 1)
    rows = network.head(h[[0, 2, 2], [4, 1, 5]], torch.tensor([4, 1, 5]))
    assert rows.is_contiguous()
    torch.testing.assert_close(rows, logits[[0, 2, 2], [4, 1, 5], :S])


@pytest.mark.parametrize("latent", LATENTS)
def test_maskgit_is_built_by_its_type(latent: dict[str, Any] | None) -> None:
    network = make(latent, dropout=0.1)
    twin = build({"type": "maskgit", **SIZES, "dropout": 0.1, "latent": latent})
    assert isinstance(twin, MaskGit)
    twin.eval().load_state_dict(network.state_dict())
    x, t, label, lam = inputs(network)
    assert torch.equal(twin.body(x, t, label, lam), network.body(x, t, label, lam))


def test_maskgit_uses_labels() -> None:
    network = make()
    x, t, label, _ = inputs(network)
    nothing = network.body(x, t)
    torch.testing.assert_close(network.body(x, t, torch.full((B,), -1)), nothing)
    h = network.body(x, t, label)
    torch.testing.assert_close(h[1], nothing[1])
    assert (h - nothing)[[0, 2]].abs().amax(dim=(1, 2)).min() > 1e-3


@pytest.mark.parametrize("labels", [0, None])
def test_maskgit_without_classes_keeps_the_table_layout(labels: int | None) -> None:
    network = make(labels=labels)
    assert network.tok_emb.weight.shape == (S + 2, 16)
    assert network.bias.shape == (D + 1, S + 2)
    x, t, _, _ = inputs(network)
    assert network.body(x, t).shape == (B, D, 16)


@pytest.mark.parametrize("latent", LATENTS[1:])
def test_maskgit_student_without_lambda_is_the_plain_network(latent: dict[str, Any]) -> None:
    student, plain = make(latent), make()
    weights = {key: value for key, value in student.state_dict().items() if not key.startswith("latent")}
    plain.load_state_dict(weights)
    x, t, label, lam = inputs(student)
    assert torch.equal(student.body(x, t, label), plain.body(x, t, label))
    assert (student.body(x, t, label, lam) - plain.body(x, t, label)).abs().max() > 0.01


def test_maskgit_attention_equals_torchs() -> None:
    ours, theirs = FusedAttention(16, 4, 0.0), nn.MultiheadAttention(16, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], rtol=0, atol=1e-6)


def test_maskgit_film_scales_and_shifts_each_norm() -> None:
    """Oracle: the same vectors folded into the norms of a plain network, one sample at a time."""
    network = make({"inject": "film"})
    x, t, label, lam = inputs(network)
    assert lam is not None
    h, film = network.body(x, t, label, lam), network.latent_film(lam)
    for b in range(B):
        single = copy.deepcopy(network)
        with torch.no_grad():
            for i, layer in enumerate(single.transformer.layers):
                for norm, shift, scale in zip((layer[0].norm, layer[1].norm), film[b, i, ::2], film[b, i, 1::2]):
                    norm.weight.mul_(1 + scale)
                    norm.bias.mul_(1 + scale).add_(shift)
        alone = single.body(x[b : b + 1], t[b : b + 1], label[b : b + 1])
        torch.testing.assert_close(h[b], alone[0], rtol=0, atol=1e-5)


def test_maskgit_knows_positions_by_their_embedding_only() -> None:
    network = make({})
    x, t, label, lam = inputs(network)
    order = torch.randperm(D, generator=torch.Generator().manual_seed(3))
    h = network.body(x, t, label, lam)
    with torch.no_grad():
        network.pos_emb[:, :D] = network.pos_emb[:, order]
    torch.testing.assert_close(network.body(x[:, order], t, label, lam), h[:, order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("latent", LATENTS)
def test_maskgit_samples_do_not_see_each_other(latent: dict[str, Any] | None) -> None:
    network = make(latent)
    x, t, label, lam = inputs(network)
    whole = network.body(x, t, label, lam)
    alone = network.body(x[2:], t[2:], label[2:], None if lam is None else lam[2:])
    torch.testing.assert_close(whole[2], alone[0], rtol=0, atol=1e-5)


def gradients(network: MaskGit, checkpointing: bool) -> tuple[Tensor, dict[str, Tensor]]:
    network.checkpointing = checkpointing
    network.zero_grad()
    torch.manual_seed(5)  # dropout
    h = network.body(*inputs(network))
    full_logits(network, h).square().mean().backward()
    return h.detach(), {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("latent", LATENTS[:3])
def test_maskgit_checkpointing_changes_nothing(latent: dict[str, Any] | None) -> None:
    network = make(latent, dropout=0.2).train()
    plain, wanted = gradients(network, checkpointing=False)
    h, found = gradients(network, checkpointing=True)
    assert torch.equal(h, plain)
    assert set(found) == set(dict(network.named_parameters()))
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, msg=name)


@pytest.mark.parametrize("latent", LATENTS)
def test_maskgit_works_in_other_precisions(latent: dict[str, Any] | None) -> None:
    network = make(latent)
    x, t, label, lam = inputs(network)
    single = full_logits(network, network.body(x, t, label, lam))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = network.body(x, t, label, lam)
        mixed = network.head(h[0], torch.arange(D))
    double = network.double()
    exact = full_logits(double, double.body(x, t, label, lam))
    assert exact.dtype == torch.float64
    # float32 angles up to 1000 are off by some 1e-4
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=5e-4)
    torch.testing.assert_close(mixed.double(), exact[0, :, :S], rtol=0, atol=0.05 * exact.std().item() + 0.05)


def test_maskgit_dropout_acts_in_training_only() -> None:
    network = make(dropout=0.5)
    assert torch.equal(network.body(*inputs(network)), network.body(*inputs(network)))
    network.train()
    assert not torch.equal(network.body(*inputs(network)), network.body(*inputs(network)))


def test_maskgit_rejects_impossible_sizes() -> None:
    with pytest.raises(UserError, match="multiple"):
        make(heads=3)
