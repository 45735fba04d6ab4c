"""Hidden states at chosen positions of one sample, without computing the other positions where possible.

All blocks but the last need every position. In the last one only keys and values do; its queries, its MLP and
everything after it run at the chosen positions alone. The values equal those of `body` up to rounding.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.network.dit import Block, DiT, modulated_norm
from di4c_cli.network.maskgit import Attention, FusedAttention, MaskGit, PreNorm
from di4c_cli.numerics import precise


def supported(network: nn.Module) -> bool:
    """Whether `body_at` knows this network; the U-Net mixes all positions to the end."""
    return isinstance(network, (DiT, MaskGit))


def body_at(network: nn.Module, x: Tensor, t: Tensor, label: Tensor | None, lam: Tensor | None, d: Tensor) -> Tensor:
    """`network.body(x, t, label, lam)[0, d]` for one sample x `(1, D)` and positions d `(n,)`: `(n, H)`."""
    if isinstance(network, DiT):
        return _dit(network, x, t, lam, d)
    assert isinstance(network, MaskGit)
    return _maskgit(network, x, label, lam, d)


def _dit(net: DiT, x: Tensor, t: Tensor, lam: Tensor | None, d: Tensor) -> Tensor:
    token, film = net.latent_vectors(lam)
    blocks, final = net.modulations(t, film)
    hidden = net.add_field(net.vocab_embed(x), lam)
    if token is not None:
        hidden = torch.cat((hidden, token), dim=1)
    cos, sin = net.rotary_emb(x.shape[1], hidden.shape[1] - x.shape[1], precise(hidden.dtype))
    for block, modulation in zip(net.stack[:-1], blocks):
        hidden = block(hidden, modulation, cos, sin)
    rows = _dit_block(net.stack[-1], hidden, blocks[-1], cos.to(hidden.dtype), sin.to(hidden.dtype), d)
    return modulated_norm(rows, net.output_layer.norm_final, *final.unbind(0))[0]


def _dit_block(block: Block, x: Tensor, modulation: Tensor, cos: Tensor, sin: Tensor, d: Tensor) -> Tensor:
    """The last block: x `(1, T, H)` -> `(1, n, H)` at positions d."""

    def turned(part: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = part.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    shift1, scale1, gate1, shift2, scale2, gate2 = modulation.unbind(0)
    u = modulated_norm(x, block.norm1, shift1, scale1)
    weight = block.attn_qkv.weight
    width = weight.shape[1]
    q = F.linear(u[:, d], weight[:width]).unflatten(2, (block.heads, -1))
    k, v = F.linear(u, weight[width:]).unflatten(2, (2, block.heads, -1)).unbind(2)
    q, k = turned(q, cos[d, 0], sin[d, 0]), turned(k, cos[:, 0], sin[:, 0])
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    rows = torch.addcmul(x[:, d], gate1, block.attn_out(mixed.transpose(1, 2).flatten(2)))
    return torch.addcmul(rows, gate2, block.mlp(modulated_norm(rows, block.norm2, shift2, scale2)))


def _maskgit(net: MaskGit, x: Tensor, label: Tensor | None, lam: Tensor | None, d: Tensor) -> Tensor:
    token, film = net.latent_vectors(lam)
    hidden = net.tok_emb(torch.cat((x, net.class_token(x, label)), dim=1)) + net.pos_emb
    hidden = net.add_field(hidden, lam)
    if token is not None:
        hidden = torch.cat((hidden, token), dim=1)
    hidden = net.first_layer(hidden)
    layers = cast("list[nn.ModuleList]", list(net.transformer.layers))
    parts = [None if film is None else film[:, i].transpose(0, 1)[:, :, None] for i in range(len(layers))]
    for layer, own in zip(layers[:-1], parts):
        hidden = net.transformer.block(layer, hidden, own)
    attend, mlp = (cast("PreNorm", part) for part in layers[-1])
    last = parts[-1]
    u = attend.norm(hidden)
    if last is not None:
        u = torch.addcmul(last[0], u, 1 + last[1])
    rows = hidden[:, d] + _attend(cast("Attention", attend.fn).mha, u, d)
    rows = rows + (mlp(rows) if last is None else mlp(rows, last[2], last[3]))
    out: Tensor = net.last_layer(rows)[0]
    return out


def _attend(attention: FusedAttention, u: Tensor, d: Tensor) -> Tensor:
    """MaskGIT's attention with queries at positions d only: u `(1, T, H)` -> `(1, n, H)`."""
    width = u.shape[2]
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    q = F.linear(u[:, d], weight[:width], bias[:width]).unflatten(2, (attention.heads, -1))
    k, v = F.linear(u, weight[width:], bias[width:]).unflatten(2, (2, attention.heads, -1)).unbind(2)
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    out: Tensor = attention.out_proj(mixed.transpose(1, 2).flatten(2))
    return out
