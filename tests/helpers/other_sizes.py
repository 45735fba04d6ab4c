"""A golden folder of other sizes, made from our own networks: nothing may depend on the stored sizes.

The expected outputs come from the very networks that are written to disk, so this checks the reading of files
and the inference of sizes, not the forward passes; those are checked by the stored folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

from di4c_cli.network.dit import DiT
from di4c_cli.network.maskgit import MaskGit
from di4c_cli.network.unet import UNet
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.process import Gaussian

Tensors = dict[str, Tensor]
EPS = 1e-3


def randomised(net: Any, seed: int) -> Any:
    """Weights of a size that makes every part matter."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.15)
    return net.eval().requires_grad_(False)


def average(net: nn.Module, seed: int) -> list[Tensor]:
    """Another set of weights, as an unnamed list in the order of the parameters."""
    torch.manual_seed(seed)
    return [torch.randn_like(parameter) * 0.15 for parameter in net.parameters()]


def subs(logits: Tensor, x: Tensor, mask: int) -> Tensor:
    """Log-probabilities with the mask never predicted, known tokens kept; finite as in the stored files."""
    logits = logits.clone()
    logits[..., mask] -= 1e6
    log_probs = logits.log_softmax(-1)
    known = x != mask
    log_probs[known] = -1e6
    log_probs[(*known.nonzero(as_tuple=True), x[known])] = 0
    return log_probs


def full_logits(net: Any, h: Tensor) -> Tensor:
    """Hidden states `(B, D, H)` -> logits `(B, D, S + 1)`, the mask's column included, as the published code has it."""
    if isinstance(net, DiT):
        linear = net.output_layer.linear
        return linear(h.to(linear.weight.dtype))
    table = net.tok_emb.weight[: net.symbols + 1]
    return nn.functional.linear(h.to(table.dtype), table) + net.bias[: net.length, : net.symbols + 1]


def sigma_of(t: Tensor) -> Tensor:
    return -torch.log1p((EPS - 1) * t)


def timed_logits(net: DiT, x: Tensor, t: Tensor, timed: bool, lam: Tensor | None = None) -> Tensor:
    net.time_conditioning = timed
    return full_logits(net, net.body(x, t, None, lam))


def write_dit(folder: Path, net: DiT, config: dict[str, Any], extra: Tensors) -> None:
    folder.mkdir(parents=True)
    tensors = {f"backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: value.clone().contiguous() for key, value in extra.items()}, folder / "io.safetensors")


def masked_tokens(symbols: int, batch: int, length: int) -> Tensor:
    x = torch.randint(0, symbols, (batch, length))
    return torch.where(torch.rand(batch, length) < 0.5, symbols, x)


def sdtt_config(net: DiT) -> dict[str, Any]:
    sizes = {
        "hidden_size": net.width,
        "n_blocks": net.depth,
        "n_heads": net.stack[0].heads,
        "cond_dim": len(net.sigma_map.mlp[0].bias),
    }
    model = {**sizes, "length": net.length, "dropout": 0.0, "type": "ddit-orig"}
    return {"model": model, "time_conditioning": False, "tokenizer": {"name": "gpt2"}, "T": 0}


def write_text(root: Path) -> None:
    """SDTT, MDLM with its flag on, and a student."""
    net = randomised(DiT(symbols=31, length=7, width=40, depth=3, heads=5, cond_dim=6), 0)
    x, t = masked_tokens(31, 2, 7), torch.tensor([0.3, 0.8])
    plain = timed_logits(net, x, t, False)
    io = {"xt": x, "sigma": sigma_of(t), "logits_sigma0": plain, "log_probs_sigma0": subs(plain, x, 31)}
    write_dit(root / "sdtt", net, sdtt_config(net), io | {"logits": timed_logits(net, x, t, True)})

    net = randomised(DiT(symbols=20, length=5, width=24, depth=1, heads=3, cond_dim=129), 1)
    x = masked_tokens(20, 2, 5)
    given = timed_logits(net, x, t, True)
    config = {"hidden_dim": 24, "n_blocks": 1, "n_heads": 3, "cond_dim": 129, "model_length": 5, "vocab_size": 21}
    io = {"xt": x, "sigma": sigma_of(t), "logits": given, "logits_sigma_as_given": given}
    io |= {"logits_sigma0": timed_logits(net, x, t, False), "log_probs": subs(given, x, 20)}
    write_dit(root / "mdlm", net, config | {"time_conditioning": True, "model_type": "mdlm"}, io)


def write_text_student(root: Path) -> None:
    net = randomised(DiT(symbols=31, length=7, width=40, depth=3, heads=5, cond_dim=6, latent={}), 2)
    x, t, z = masked_tokens(31, 2, 7), torch.tensor([0.3, 0.8]), torch.tensor([0.2, 0.9])
    live = {f"backbone.{name}": tensor.clone() for name, tensor in net.state_dict().items()}
    shadow = average(net, 3)
    io: Tensors = {"xt": x, "sigma": sigma_of(t), "z": z, "z_embedding": net.latent_projection.features(z)}
    for which in ("live", "ema"):
        if which == "ema":
            for parameter, value in zip(net.parameters(), shadow):
                parameter.copy_(value)
        plain = timed_logits(net, x, t, False, z)
        io |= {f"{which}.latent_token": net.latent_projection(z), f"{which}.logits_sigma0": plain}
        io |= {f"{which}.log_probs_sigma0": subs(plain, x, 31)}
        io |= {f"{which}.logits": timed_logits(net, x, t, True, z)}
        if which == "live":
            io["live.logits_sigma0_no_latent"] = timed_logits(net, x, t, False)
    folder = root / "sdtt_di4c_student"
    folder.mkdir()
    ema = {"decay": 0.99, "num_updates": 3, "shadow_params": shadow}
    torch.save({"state_dict": live, "ema": ema, "epoch": 0, "callbacks": {}}, folder / "last.ckpt")
    (folder / "config.json").write_text(json.dumps(sdtt_config(net)))
    save_file({key: value.clone().contiguous() for key, value in io.items()}, folder / "io.safetensors")


def write_maskgit(root: Path, name: str, file: str, latent: dict[str, Any] | None) -> None:
    codes, classes = 18, 4
    sizes = {"length": 9, "width": 24, "depth": 3, "heads": 6, "mlp": 20}
    net: MaskGit = randomised(MaskGit(symbols=codes, labels=classes, latent=latent, **sizes), 4)
    x = masked_tokens(codes, 3, 9)
    labels, drop = torch.tensor([0, 3, 1]), torch.tensor([0, 1, 0], dtype=torch.uint8)
    given = labels.masked_fill(drop.bool(), -1)
    t, z = torch.zeros(3), torch.tensor([[0.1], [0.5], [0.7]])

    def logits(label: Tensor | None, lam: Tensor | None = None) -> Tensor:
        return full_logits(net, net.body(x, t, label, lam))

    io: Tensors = {"img_token": x.view(3, 3, 3), "labels": labels, "drop_label": drop}
    if latent is None:
        free = logits(None)
        io |= {"logits": logits(given), "logits_drop_no": logits(labels), "logits_drop_all": free.clone()}
        w = torch.tensor(1.5)
        io |= {"logits_drop_none": free, "cfg.w": w, "cfg.logits": (1 + w) * logits(labels) - w * free}
    else:
        io |= {"z": z, "z_embedding": net.latent_projection.features(z), "logits": logits(given, z)}
        io |= {"latent_token": net.latent_projection(z), "logits_no_z": logits(given)}
    (root / name).mkdir()
    torch.save({"iter": 1, "global_epoch": 0, "model_state_dict": net.state_dict()}, root / name / file)
    (root / name / "hyper.json").write_text(json.dumps({"heads": sizes["heads"]}))
    save_file({key: value.clone().contiguous() for key, value in io.items()}, root / name / "io.safetensors")


def write_vqgan(root: Path) -> None:
    sizes = {"channels": 32, "multipliers": [1, 2], "blocks": 2, "attention_resolutions": [8]}
    net: VQGAN = randomised(VQGAN(**sizes, z_channels=10, embed_dim=6, codes=18, resolution=16), 5)
    net.quantize.embedding.weight.mul_(20)  # far apart, so that the nearest one is beyond rounding
    image = torch.rand(2, 3, 16, 16) * 2 - 1
    codes = net.encode(image)
    pre, codes_in = net.pre_quant(image), torch.randint(0, 18, (1, 64))
    io = {"image": image, "encoder_out": net.encoder(image), "pre_quant": pre, "code": codes.view(2, 8, 8)}
    io |= {"quantized": net.quantize(pre)[0], "reconstruction": net.decode(codes)}
    io |= {"codes_in": codes_in.view(1, 8, 8), "decoded": net.decode(codes_in)}
    folder = root / "vqgan"
    folder.mkdir()
    decoy = {"loss.logvar": torch.zeros(())}
    torch.save({"state_dict": {**net.state_dict(), **decoy}, "epoch": 3}, folder / "last.ckpt")
    layout = {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 2, "attn_resolutions": [8], "z_channels": 10}
    layout |= {"resolution": 16, "in_channels": 3, "out_ch": 3, "double_z": False, "dropout": 0.0}
    params = {"embed_dim": 6, "n_embed": 18, "ddconfig": layout}
    (folder / "model.yaml").write_text(yaml.safe_dump({"model": {"params": params}}))
    save_file({key: value.clone().contiguous() for key, value in io.items()}, folder / "io.safetensors")


PROCESS = {"rate_sigma": 3.0, "q_sigma": 20.0, "time_exponential": 50.0, "time_base": 2.0}


def write_pixels(root: Path, who: str, latent: dict[str, Any] | None, prefix: str) -> None:
    symbols = 15
    sizes = {"shape": [3, 8, 4], "channels": 8, "multipliers": [2, 1, 1], "blocks": 2, "attention": 2}
    net: UNet = randomised(UNet(symbols, **sizes, time_dim=12, time_scale=500.0, latent=latent), 6)
    x, t = torch.randint(0, symbols, (2, net.length)), torch.tensor([0.4, 0.9])
    lam = None if latent is None else torch.tensor([[0.3], [0.8]])
    live = {f"{prefix}{name}": tensor.clone() for name, tensor in net.state_dict().items()}
    shadow = average(net, 7)
    io: Tensors = {"x": x, "t": t, **({} if lam is None else {"lams": lam})}
    for which in ("live", "ema"):
        if which == "ema":
            for parameter, value in zip(net.parameters(), shadow):
                parameter.copy_(value)
        logits = net.head(net.body(x, t, None, lam).reshape(-1, 2)).view(*x.shape, symbols)
        io |= {f"{which}.net_out": net.net_out(x, t, None, lam), f"{which}.logits": logits}
    io["ema.probs"] = logits.softmax(-1)
    if lam is not None:
        features = net.latent_features(lam, net.time_features(t))
        assert features is not None
        io["ema.lemb_down"] = net.latent_embedding(features)
    else:
        io |= process_tables(Gaussian(symbols, **PROCESS), t)
    model: dict[str, Any] = {"ch": 8, "ch_mult": [2, 1, 1], "num_res_blocks": 2, "scale_count_to_put_attn": 2}
    model |= {"time_embed_dim": 12, "time_scale_factor": 500, "dropout": 0.0, "data_min_max": [0, symbols - 1]}
    model |= {"Q_sigma": PROCESS["q_sigma"], **{k: v for k, v in PROCESS.items() if k != "q_sigma"}}
    if latent is not None:
        model |= {"do_lam_embed": True, "lam_raw_dim": 1}
    folder = root / "tauldr" / who
    (folder / "config").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    config = {"data": {"S": symbols, "shape": sizes["shape"]}, "model": model}
    (folder / "config" / "config_001.yaml").write_text(yaml.safe_dump(config))
    state = {**live, "ema_decay": 0.99, "ema_num_updates": 5, "ema_shadow_params": shadow}
    torch.save({"model": state, "n_iter": 5, "optimizer": {}}, folder / "checkpoints" / "ckpt_4.pt")
    save_file({key: value.clone().contiguous() for key, value in io.items()}, folder / "io.safetensors")


def process_tables(process: Gaussian, t: Tensor) -> Tensors:
    s, tiny, zero = t / 2, torch.tensor([1e-4]), torch.zeros(len(t))
    tables = {"base_rate": process.base_rate, "beta_t": process.beta(t), "rate_t": process.rate(t)}
    tables |= {"beta_integral_t": process.elapsed(t), "q_t0": process.transition(zero, t), "t_tiny": tiny}
    tables |= {"q_s0": process.transition(zero, s), "q_tiny0": process.transition(zero[:1], tiny)}
    return {"s": s, **{f"forward.{key}": value.float() for key, value in tables.items()}}


def write(root: Path) -> None:
    """The whole folder but for the losses and the posterior, which hold no sizes that a file must tell."""
    with torch.no_grad():
        write_text(root)
        write_text_student(root)
        write_maskgit(root, "maskgit", "MaskGIT_ImageNet_256.pth", None)
        write_maskgit(root, "maskgit_di4c_student", "current.pth", {})
        write_vqgan(root)
        write_pixels(root, "teacher", None, "net.module.")
        write_pixels(root, "di4c_student", {}, "net.")
