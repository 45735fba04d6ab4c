"""Training of the VQGAN of tiny-vq (without an adversarial term) and of the classifiers of the image tasks."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from di4c_cli.metric.classifier import Classifier
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.tasks.config import TokenizerConfig

REPORT_EVERY = 100
REVIVE_SHARE = 0.7
"""Share of the training in which unused codes are moved; afterwards the codebook settles."""


def to_signed(images: np.ndarray) -> Tensor:
    """uint8 `(n, H, W)` -> float `(n, 1, H, W)` in [-1, 1]."""
    return torch.from_numpy(images.astype(np.float32))[:, None] / 127.5 - 1


@torch.no_grad()
def revive(vqgan: VQGAN, used: Tensor, image: Tensor) -> int:
    """Move unused codes onto random encoder outputs and return their number."""
    dead = (used == 0).nonzero().squeeze(1)
    if len(dead):
        outputs = vqgan.pre_quant(image).permute(0, 2, 3, 1).flatten(0, 2)
        pick = torch.randint(len(outputs), (len(dead),))
        vqgan.quantize.embedding.weight[dead] = outputs[pick]
    return len(dead)


def train_vqgan(
    vqgan: VQGAN,
    images: np.ndarray,
    config: TokenizerConfig,
    report: Callable[[dict[str, float]], None],
    seed: int = 0,
) -> VQGAN:
    """Minimise absolute plus squared error and the codebook terms; unused codes are moved as it trains."""
    iterations = config.iterations
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(vqgan.parameters(), config.lr, betas=(0.5, 0.9))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations, config.lr / 20)
    used, start = torch.zeros(vqgan.config["codes"]), time.monotonic()
    for step in range(1, iterations + 1):
        pick = torch.randint(len(images), (config.batch,), generator=generator)
        image = to_signed(images[pick.numpy()])
        reconstruction, codebook, codes = vqgan.forward_train(image)
        error = (reconstruction - image).abs().mean() + (reconstruction - image).square().mean()
        optimizer.zero_grad(set_to_none=True)
        (error + codebook).backward()
        optimizer.step()
        scheduler.step()
        used.index_add_(0, codes.flatten(), torch.ones(codes.numel()))
        if step % REPORT_EVERY == 0:
            dead = revive(vqgan, used, image) if step < REVIVE_SHARE * iterations else int((used == 0).sum())
            row = {
                "step": step,
                "error": float(error.detach()),
                "unused": dead,
                "seconds": time.monotonic() - start,
            }
            report(row)
            used.zero_()
    return vqgan.eval()


def train_classifier(
    images: np.ndarray,
    labels: np.ndarray,
    held_out: tuple[np.ndarray, np.ndarray],
    iterations: int,
    seed: int = 0,
    batch: int = 128,
) -> tuple[Classifier, float]:
    """A classifier and its held-out accuracy; noise on the images keeps the features general."""
    torch.manual_seed(seed)
    model = Classifier(images.shape[-1])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    generator = torch.Generator().manual_seed(seed)
    pixels, target = (
        torch.from_numpy(images.astype(np.float32) / 255),
        torch.from_numpy(labels.astype(np.int64)),
    )
    for _ in range(iterations):
        pick = torch.randint(len(pixels), (batch,), generator=generator)
        noisy = pixels[pick] + 0.05 * torch.randn(batch, *pixels.shape[1:], generator=generator)
        loss = F.cross_entropy(model(noisy), target[pick], label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval().requires_grad_(False)
    _, probabilities = model.embed(held_out[0])
    return model, float((probabilities.argmax(1) == held_out[1]).mean())
