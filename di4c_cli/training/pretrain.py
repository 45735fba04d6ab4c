"""Pretraining of a toy task's teacher from its recipe (`di4c pretrain`): checks, training loop, model folder."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from di4c_cli import __version__, files
from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.model_folder import save_folder
from di4c_cli.noise import Noise
from di4c_cli.tasks.config import PretrainConfig
from di4c_cli.tasks.registry import get_task
from di4c_cli.training.ema import Ema

LabelledSamples = tuple[Tensor, Tensor | None]
"""x0 `(N, D)` and labels `(N,)`, if any."""
Report = Callable[[dict[str, Any]], None]
VALIDATION_SAMPLES = 1000
VALIDATION_BATCH = 250


def pretrain(config: PretrainConfig, out: Path, report: Report) -> PretrainHistory:
    """Train a task's teacher on its embedded data and write `out/teacher`."""
    check_config(config)
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    torch.manual_seed(config.seed)
    denoiser = build_denoiser(teacher_config(config))
    data, few = get_task(config.task).data, slice(VALIDATION_SAMPLES)
    held_out = (data.held_out[few], None if data.held_out_label is None else data.held_out_label[few])
    best, history = train(denoiser, (data.train, data.train_label), held_out, config, report)
    save_teacher(config, best, history, out / "teacher")
    report({"held_out": history.best, "step": history.best_step, "seconds": time.monotonic() - start})
    files.write_text(out / "recipe.json", config.model_dump_json(indent=2))
    return history


def check_config(config: PretrainConfig) -> None:
    """Reject a recipe whose teacher cannot be built or does not fit its task, before any training."""
    try:
        with torch.device("meta"):
            denoiser = build_denoiser(teacher_config(config))
    except UserError as error:
        raise UserError(f"The recipe {config.name}: {error.message}", "Change that in the recipe.") from error
    data = get_task(config.task).data
    length, symbols = data.train.shape[1], int(data.train.max()) + 1
    if denoiser.length != length or denoiser.symbols < symbols:
        raise UserError(
            f"A teacher of {denoiser.length} positions and {denoiser.symbols} symbols does not fit "
            f"{config.task}, which has {length} and {symbols}.",
            "Change network and process in the recipe.",
        )
    if config.labels is not None and data.train_label is None:
        raise UserError(f"The data of {config.task} has no labels.", "Leave labels out of the recipe.")


def teacher_config(config: PretrainConfig) -> ModelConfig:
    """config.json of the teacher, without provenance."""
    return ModelConfig(
        kind="teacher",
        name=config.task,
        network={**config.network},
        process={**config.process},
        labels=config.labels,
        codec=config.codec,
        sampling=config.sampling,
    )


def save_teacher(config: PretrainConfig, denoiser: Denoiser, history: PretrainHistory, folder: Path) -> None:
    """Write the model folder in half precision, which halves its size."""
    model = teacher_config(config)
    model.process = denoiser.process.config
    model.provenance = {
        "recipe": config.model_dump(mode="json"),
        "held_out_loss": history.best,
        "iterations": history.best_step,
        "training_seconds": round(history.seconds),
        "versions": {"di4c": __version__, "torch": torch.__version__},
    }
    card = (
        f"# {config.task}\n\n{config.summary}. Teacher made by `di4c pretrain --recipe {config.name}`; "
        f"held-out loss {history.best:.4f} nats per unknown position after {history.best_step} iterations.\n"
    )
    save_folder(folder, model, denoiser, card, dtype=torch.float16)


@dataclass
class PretrainHistory:
    """The best validation loss so far."""

    best: float = float("inf")
    best_step: int = 0
    stale: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0

    def add(self, step: int, held_out: float) -> None:
        """Record an evaluation."""
        if held_out < self.best:
            self.best, self.best_step, self.stale = held_out, step, 0
        else:
            self.stale += 1


def denoising_loss(
    denoiser: Denoiser, x0: Tensor, label: Tensor | None, t: Tensor, uniform: Tensor, train: bool
) -> Tensor:
    """Cross-entropy of x0 given x_t in nats per unknown position, averaged per sample `(B,)`.

    For masked diffusion with m_t = t this is the usual likelihood bound, divided by D.
    """
    process = denoiser.process
    x_t = process.corrupt(x0, t, uniform)
    prediction = denoiser.predict(x_t, t, label, None, dropout=train)
    unknown = process.unknown(x_t)
    b, d = unknown.nonzero(as_tuple=True)
    loss = -prediction.log_probs(b, d).gather(1, x0[b, d][:, None]).squeeze(1)
    total = torch.zeros(len(x0), dtype=loss.dtype, device=loss.device).index_add(0, b, loss)
    return total / unknown.sum(1).clamp_min(1)


def _times(noise: Noise, low: float) -> Tensor:
    """One stratified time per sample: the batch covers [low, 1] evenly, which steadies the loss."""
    count = len(noise)
    shift = noise.uniform("t")[:1]
    return low + (1 - low) * ((torch.arange(count) / count + shift) % 1.0)


@torch.no_grad()
def validate(denoiser: Denoiser, x: Tensor, label: Tensor | None, low: float) -> float:
    """Mean denoising loss on held-out samples with fixed noise."""
    losses = []
    for start in range(0, len(x), VALIDATION_BATCH):
        rows = slice(start, start + VALIDATION_BATCH)
        noise = Noise(0, range(start, start + len(x[rows])), "validate")
        t, corrupt = _times(noise, low), noise.uniform("corrupt", x.shape[1])
        losses.append(denoising_loss(denoiser, x[rows], None if label is None else label[rows], t, corrupt, False))
    return float(torch.cat(losses).mean())


def train(
    denoiser: Denoiser, samples: LabelledSamples, held_out: LabelledSamples, config: PretrainConfig, report: Report
) -> tuple[Denoiser, PretrainHistory]:
    """Train and return the EMA weights with the lowest held-out loss; stop when it no longer falls."""
    torch.manual_seed(config.seed)  # dropout alone uses the global generator
    training, settings = config.training, config.training.optimizer
    optimizer = torch.optim.AdamW(
        denoiser.parameters(), settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, config))
    average, best = copy.deepcopy(denoiser), copy.deepcopy(denoiser)
    ema, history = Ema(denoiser, training.ema), PretrainHistory()
    start = time.monotonic()
    for step in range(1, training.iterations + 1):
        loss = _batch_loss(denoiser, samples, config, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), settings.clip or float("inf"))
        optimizer.step()
        scheduler.step()
        ema.update(denoiser)
        if step % config.evaluate_every and step != training.iterations:
            continue
        average.load_state_dict(ema.mean)
        figure = validate(average, *held_out, config.time_low)
        history.add(step, figure)
        seconds = time.monotonic() - start
        report({"step": step, "train": float(loss.detach()), "held_out": figure, "seconds": seconds})
        if history.best_step == step:
            best.load_state_dict(average.state_dict())
        elif history.stale >= config.patience:
            break
    history.seconds = time.monotonic() - start
    return best, history


def _rate(config: PretrainConfig, step: int) -> float:
    """Learning rate as a share of the highest: a linear warm-up times a cosine from 1 to a tenth."""
    warm = min(1.0, (step + 1) / max(1, config.training.optimizer.warmup))
    done = step / config.training.iterations
    return warm * (0.55 + 0.45 * float(torch.cos(torch.tensor(torch.pi * min(1.0, done)))))


def _batch_loss(denoiser: Denoiser, samples: LabelledSamples, config: PretrainConfig, step: int) -> Tensor:
    """Mean loss of a step's batch; its noise decides the items, the dropped labels and the corruption."""
    x, labels = samples
    batch = config.training.batch
    noise = Noise(config.seed, range((step - 1) * batch, step * batch), "pretrain")
    pick = (noise.uniform("item") * len(x)).long()
    label = None
    if labels is not None:
        label = torch.where(noise.uniform("drop") < config.training.label_dropout, -1, labels[pick])
    t, x0 = _times(noise, config.time_low), x[pick]
    return denoising_loss(denoiser, x0, label, t, noise.uniform("corrupt", x0.shape[1]), True).mean()
