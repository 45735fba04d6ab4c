"""Making an embedded world from its recipe: classifier, tokenizer and teacher (`di4c pretrain`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from di4c_cli import __version__, files, student
from di4c_cli.codec.pixels import Pixels
from di4c_cli.codec.vq import plan as plan_vqgan
from di4c_cli.config import ModelConfig
from di4c_cli.data.embedded import PIXEL_LEVELS, load_world
from di4c_cli.data.idx import fashion_mnist
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.recipe import Pretrain
from di4c_cli.training.pretrain import History, Schedule, pretrain
from di4c_cli.training.tokenizer import to_signed, train_classifier, train_vqgan

Report = Callable[[dict[str, Any]], None]
CACHED_IMAGES = 25_000
FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's dataset-fashion-mnist puts the images."""


def make_teacher(recipe: Pretrain, out: Path, report: Report) -> History:
    """Train the teacher of a world on its embedded data; writes `out/teacher`."""
    world = load_world(recipe.world)
    torch.manual_seed(recipe.seed)
    denoiser = student.build(teacher_config(recipe))
    held_label = None if world.held_out_label is None else world.held_out_label[:1000]
    held_out = (world.held_out[:1000], held_label)
    best, history = pretrain(
        denoiser, (world.train, world.train_label), held_out, schedule_of(recipe), report
    )
    save_teacher(recipe, best, history, out / "teacher")
    return history


def schedule_of(recipe: Pretrain) -> Schedule:
    """The recipe's values that the training goes by."""
    settings = recipe.training
    return Schedule(
        iterations=settings.iterations,
        batch=settings.batch,
        lr=settings.optimizer.lr,
        warmup=settings.optimizer.warmup,
        weight_decay=settings.optimizer.weight_decay,
        betas=settings.optimizer.betas,
        ema=settings.ema,
        clip=settings.optimizer.clip or float("inf"),
        label_drop=settings.label_dropout,
        evaluate_every=recipe.evaluate_every,
        patience=recipe.patience,
        seed=recipe.seed,
        time_low=recipe.time_low,
    )


def teacher_config(recipe: Pretrain) -> ModelConfig:
    """config.json of the teacher, before anything is known of its training."""
    return ModelConfig(
        kind="teacher",
        name=recipe.world,
        network={**recipe.network},
        process={**recipe.process},
        labels=recipe.labels,
        codec=recipe.codec,
        sampling=recipe.sampling,
    )


def check_recipe(recipe: Pretrain, tokenizer: bool) -> None:
    """Refuse a recipe whose teacher cannot be built or is not of its world's size, before any training."""
    try:
        with torch.device("meta"):
            denoiser = student.build(teacher_config(recipe))
        if tokenizer and recipe.vqgan is not None:
            plan_vqgan(recipe.codec.get("vqgan"))
    except UserError as error:
        raise UserError(f"The recipe {recipe.name}: {error.message}", "Change that in the recipe.") from error
    world = load_world(recipe.world)
    length, symbols = world.train.shape[1], int(world.train.max()) + 1
    if denoiser.length != length or denoiser.symbols < symbols:
        raise UserError(
            f"A teacher of {denoiser.length} positions and {denoiser.symbols} symbols does not fit "
            f"{recipe.world}, which has {length} and {symbols}.",
            "Change network and process in the recipe.",
        )
    if recipe.labels is not None and world.train_label is None:
        raise UserError(f"The data of {recipe.world} has no labels.", "Leave labels out of the recipe.")


def save_teacher(recipe: Pretrain, denoiser: Denoiser, history: History, folder: Path) -> None:
    """The teacher's folder; half precision halves its size and its figures are measured after the rounding."""
    config = teacher_config(recipe)
    config.process = denoiser.process.config
    config.provenance = {
        "recipe": recipe.model_dump(mode="json"),
        "held_out_loss": history.best,
        "iterations": history.best_step,
        "training_seconds": round(history.seconds),
        "versions": {"di4c": __version__, "torch": torch.__version__},
    }
    card = (
        f"# {recipe.world}\n\n{recipe.summary}. Teacher made by `di4c pretrain --recipe {recipe.name}`; held-out loss "
        f"{history.best:.4f} nats per unknown position after {history.best_step} iterations.\n"
    )
    student.save_folder(folder, config, denoiser, card, dtype=torch.float16)


def make_classifier(out: Path, iterations: int = 2000) -> float:
    """The digit classifier, trained on the digits at both numbers of grey levels; held-out accuracy."""
    train, labels, held, held_labels = [], [], [], []
    for name, levels in PIXEL_LEVELS.items():
        data, codec = load_world(name), Pixels((1, 8, 8), levels)
        assert data.train_label is not None and data.held_out_label is not None
        train.append(codec.decode(data.train))
        labels.append(data.train_label.numpy())
        held.append(codec.decode(data.held_out))
        held_labels.append(data.held_out_label.numpy())
    model, accuracy = train_classifier(
        np.concatenate(train),
        np.concatenate(labels),
        (np.concatenate(held), np.concatenate(held_labels)),
        iterations,
    )
    save_file(model.state_dict(), out / "digits-classifier.safetensors")
    return accuracy


def make_vqgan(recipe: Pretrain, out: Path, images_folder: Path | None, report: Report) -> None:
    """The fashion classifier, the VQGAN and the token cache, from the original images."""
    assert recipe.vqgan is not None
    images, labels = fashion_mnist(images_folder or FASHION)
    classifier, accuracy = train_classifier(
        images[:50_000],
        labels[:50_000],
        (images[50_000:], labels[50_000:]),
        recipe.vqgan.classifier_iterations,
    )
    report({"classifier_accuracy": accuracy})
    torch.manual_seed(recipe.seed)
    vqgan = VQGAN(**recipe.codec["vqgan"])
    train_vqgan(
        vqgan,
        images,
        recipe.vqgan.iterations,
        recipe.vqgan.batch,
        recipe.vqgan.lr,
        report,
        recipe.seed,
    )
    half = {name: tensor.half() for name, tensor in vqgan.state_dict().items()}
    vqgan.load_state_dict({name: tensor.float() for name, tensor in half.items()})
    with torch.no_grad():
        parts = [vqgan.encode(to_signed(images[i : i + 250])) for i in range(0, CACHED_IMAGES, 250)]
    codes = torch.cat(parts).numpy().astype(np.uint8)
    save_file(classifier.state_dict(), out / "fashion-classifier.safetensors")
    save_file(half, out / "fashion-vqgan.safetensors")
    np.savez_compressed(out / "fashion.npz", codes=codes, label=labels[:CACHED_IMAGES])


def make_world(
    recipe: Pretrain, out: Path, images_folder: Path | None, tokenizer: bool, report: Report
) -> History:
    """Everything a recipe can make, in `out`; `tokenizer` retrains the VQGAN from images first."""
    check_recipe(recipe, tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if recipe.world in PIXEL_LEVELS:
        report({"classifier_accuracy": make_classifier(out)})
    if tokenizer and recipe.vqgan is not None:
        make_vqgan(recipe, out, images_folder, report)
    history = make_teacher(recipe, out, report)
    report({"held_out": history.best, "step": history.best_step, "seconds": time.monotonic() - start})
    files.write_text(out / "recipe.json", recipe.model_dump_json(indent=2))
    return history
