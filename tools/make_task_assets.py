"""Train the assets of the image tasks that ship in di4c_cli/embedded: classifiers, the VQGAN and its codes.

    python tools/make_task_assets.py digits OUT
    python tools/make_task_assets.py fashion OUT --images /usr/share/datasets/fashion-mnist

`digits` writes the classifier of digits and pixels. `fashion` writes the classifier, the VQGAN (without an
adversarial term) and the cache of codes of fashion from the original images, which Debian's package
dataset-fashion-mnist has; it takes about half an hour on one CPU core.
"""

from __future__ import annotations

import argparse
import gzip
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from di4c_cli.codec.base import Pixels
from di4c_cli.errors import UserError
from di4c_cli.metric.classifier import Classifier
from di4c_cli.metric.features import ClassifierFeatures
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.tasks.digits import SHAPE, load_digits
from di4c_cli.tasks.registry import get_task

GREY_LEVELS = (8, 16)
"""The digit classifier serves digits and pixels, so it is trained on both numbers of grey levels."""
DIGIT_CLASSIFIER_ITERATIONS, FASHION_CLASSIFIER_ITERATIONS = 2000, 1500
VQGAN_ITERATIONS, VQGAN_BATCH, VQGAN_LR = 3000, 32, 1e-3
CLASSIFIER_TRAINING_IMAGES, CACHED_IMAGES, ENCODED_AT_ONCE = 50_000, 25_000, 250
REPORT_EVERY = 100
REVIVE_SHARE = 0.7
"""Share of the training in which unused codes are moved; afterwards the codebook settles."""


def make_digits(out: Path, iterations: int = DIGIT_CLASSIFIER_ITERATIONS) -> float:
    """Write the digit classifier and return its held-out accuracy."""
    train, labels, held, held_labels = [], [], [], []
    for levels in GREY_LEVELS:
        data, codec = load_digits(levels), Pixels(SHAPE, levels)
        assert data.train_label is not None and data.held_out_label is not None
        train.append(codec.decode(data.train))
        labels.append(data.train_label.numpy())
        held.append(codec.decode(data.held_out))
        held_labels.append(data.held_out_label.numpy())
    model, accuracy = train_classifier(
        np.concatenate(train), np.concatenate(labels), (np.concatenate(held), np.concatenate(held_labels)), iterations
    )
    save_file(model.state_dict(), out / "digits-classifier.safetensors")
    return accuracy


def make_fashion(out: Path, folder: Path, seed: int = 0) -> float:
    """Write the fashion classifier, the VQGAN and the codes; return the classifier's held-out accuracy."""
    images, labels = fashion_mnist(folder)
    held_out = (images[CLASSIFIER_TRAINING_IMAGES:], labels[CLASSIFIER_TRAINING_IMAGES:])
    classifier, accuracy = train_classifier(
        images[:CLASSIFIER_TRAINING_IMAGES],
        labels[:CLASSIFIER_TRAINING_IMAGES],
        held_out,
        FASHION_CLASSIFIER_ITERATIONS,
    )
    torch.manual_seed(seed)
    vqgan = train_vqgan(VQGAN(**get_task("fashion").codec_entry["vqgan"]), images, seed)
    half = {name: tensor.half() for name, tensor in vqgan.state_dict().items()}
    vqgan.load_state_dict({name: tensor.float() for name, tensor in half.items()})
    starts = range(0, CACHED_IMAGES, ENCODED_AT_ONCE)
    with torch.no_grad():
        codes = torch.cat([vqgan.encode(to_signed(images[i : i + ENCODED_AT_ONCE])) for i in starts])
    save_file(classifier.state_dict(), out / "fashion-classifier.safetensors")
    save_file(half, out / "fashion-vqgan.safetensors")
    shown = {"codes": codes.numpy().astype(np.uint8), "label": labels[:CACHED_IMAGES]}
    np.savez_compressed(out / "fashion.npz", **shown)
    return accuracy


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


def training_pass(vqgan: VQGAN, image: Tensor, commitment: float = 0.25) -> tuple[Tensor, Tensor, Tensor]:
    """Reconstruction (B, C, H, W), codebook loss (scalar), codes (B, h·w).

    The codebook moves to the encoder's vectors with weight 1, the encoder to the codebook with weight
    `commitment`; the decoder's gradient passes straight through the quantiser.
    """
    z = vqgan.pre_quant(image)
    vectors, codes = vqgan.quantize(z)
    loss = F.mse_loss(vectors, z.detach()) + commitment * F.mse_loss(z, vectors.detach())
    return vqgan.decoder(vqgan.post_quant_conv(z + (vectors - z).detach())), loss, codes


def train_vqgan(vqgan: VQGAN, images: np.ndarray, seed: int = 0) -> VQGAN:
    """Minimise absolute plus squared error and the codebook terms; unused codes are moved as it trains."""
    iterations = VQGAN_ITERATIONS
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(vqgan.parameters(), VQGAN_LR, betas=(0.5, 0.9))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations, VQGAN_LR / 20)
    used, start = torch.zeros(vqgan.codes), time.monotonic()
    for step in range(1, iterations + 1):
        pick = torch.randint(len(images), (VQGAN_BATCH,), generator=generator)
        image = to_signed(images[pick.numpy()])
        reconstruction, codebook, codes = training_pass(vqgan, image)
        error = (reconstruction - image).abs().mean() + (reconstruction - image).square().mean()
        optimizer.zero_grad(set_to_none=True)
        (error + codebook).backward()
        optimizer.step()
        scheduler.step()
        used.index_add_(0, codes.flatten(), torch.ones(codes.numel()))
        if step % REPORT_EVERY == 0:
            dead = revive(vqgan, used, image) if step < REVIVE_SHARE * iterations else int((used == 0).sum())
            row = {"step": step, "error": float(error.detach()), "unused": dead, "seconds": time.monotonic() - start}
            print(row, flush=True)
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
    pixels, target = (torch.from_numpy(images.astype(np.float32) / 255), torch.from_numpy(labels.astype(np.int64)))
    for _ in range(iterations):
        pick = torch.randint(len(pixels), (batch,), generator=generator)
        noisy = pixels[pick] + 0.05 * torch.randn(batch, *pixels.shape[1:], generator=generator)
        loss = F.cross_entropy(model(noisy), target[pick], label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval().requires_grad_(False)
    _, probabilities = ClassifierFeatures(model, "classifier").embed(held_out[0])
    assert probabilities is not None
    return model, float((probabilities.argmax(1) == held_out[1]).mean())


def read_idx(path: Path) -> np.ndarray:
    """An unsigned-byte IDX file as an array."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} is damaged: {error}.", "Download it again.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise UserError(f"{path} is not an IDX file of unsigned bytes.", "Name the folder with the original files.")
    rank = raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", rank, 4))
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if data.size != int(np.prod(shape)):
        raise UserError(f"{path} is incomplete.", "Download it again.")
    return data.reshape(shape)


def fashion_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training images uint8 `(60000, 28, 28)` and labels `(60000,)`."""
    found = []
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        candidates = [folder / f"{stem}.gz", folder / stem]
        path = next((c for c in candidates if c.is_file()), None)
        if path is None:
            raise UserError(
                f"{folder} has no {stem}(.gz).",
                "Install the Debian package dataset-fashion-mnist or name a folder with it.",
            )
        found.append(read_idx(path))
    return found[0], found[1]


def main() -> None:
    """Make the assets of one kind of images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("digits", "fashion"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    made = make_digits(chosen.out) if chosen.kind == "digits" else make_fashion(chosen.out, chosen.images)
    print(f"held-out accuracy of the classifier: {made:.4f}")


if __name__ == "__main__":
    main()
