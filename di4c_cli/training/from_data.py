"""The start of a pretraining: fresh weights or those of a model, and data with a held-out part."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from di4c_cli import __version__, files
from di4c_cli import codec as codecs
from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.data.items import TensorItems, check_rows
from di4c_cli.data.stream import DataSpec, Shuffled
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import Failure, UserError
from di4c_cli.model import Model, load
from di4c_cli.noise import sample_seeds
from di4c_cli.training import pretrain_data
from di4c_cli.training.checkpoint import Progress
from di4c_cli.training.estimate import check_memory, estimate
from di4c_cli.training.held_out import HeldOut
from di4c_cli.training.plan import recipe_plan
from di4c_cli.training.pretrain_config import PretrainConfig
from di4c_cli.training.start import RoundStart
from di4c_cli.training.student_init import method_on_meta, public_name, teacher_network


class FromData:
    """The starting point of a pretraining.

    A tokenizer that is trained on the data is kept in the run as `kept`, because a run must not be resumed with
    another one.
    """

    def __init__(
        self, recipe: PretrainConfig, accelerator: Accelerator, kept: Path, new: bool, say: Callable[[str], None]
    ) -> None:
        self.recipe, self.accelerator, self.kept, self.new, self.say = recipe, accelerator, kept, new, say
        self.teacher: Model | None = None
        # fresh weights: half the size, and no difference in samples
        self.weights_dtype: torch.dtype | None = torch.float16 if recipe.teacher is None else None

    def read(self) -> None:
        """Find the sizes of the model, build it without memory, read the data; nothing is written into the run."""
        recipe = self.recipe
        if recipe.data == "embedded" and recipe.task is None:
            raise UserError(f"The recipe {recipe.name} names no data.", pretrain_data.NAME_DATA)
        if recipe.teacher is not None:
            self.teacher = load(recipe.teacher)
            if self.teacher.config.latent is not None:
                raise UserError(f"'{recipe.teacher}' is a student with λ.", "Name a teacher without λ to start from.")
        self.codec_file = self._codec_file() if self.teacher is None else self.teacher.codec_file
        self.config = self._config() if self.teacher is None else self._config_of(self.teacher)
        try:
            method_on_meta(recipe, self.config)
        except UserError as error:
            raise UserError(f"The recipe {recipe.name}: {error.message}", "Change that in the recipe.") from error
        if self.accelerator.device.type == "cpu":
            plan = recipe_plan(recipe, self.accelerator.num_processes)
            check_memory(estimate(self.config, self.config, recipe, plan))
        denoiser, labels = build_on_meta(self.config), self.config.labels
        model = Model(self.config, denoiser, None if self.codec_file is None else self.codec_file.parent)
        self.train, held_out = pretrain_data.open_data(recipe, model)
        symbols = int(self.train.x.max()) + 1 if isinstance(self.train, TensorItems) else 0
        if self.train.length != denoiser.length or denoiser.symbols < symbols:
            raise UserError(
                f"A teacher of {denoiser.length} positions and {denoiser.symbols} symbols does not fit "
                f"{recipe.task or recipe.data}, which has {self.train.length} and {symbols}.",
                "Change network and process in the recipe.",
            )
        for items in (self.train, held_out):
            x, label = items.rows([0])
            if labels is not None and label is None:
                raise UserError(f"The data {recipe.data} has no labels.", "Train a model without labels.")
            check_rows(items, [0], x, label, denoiser.symbols, labels)
        often, again = (recipe.evaluate_every, recipe.patience), self.teacher is not None
        self.held_out = HeldOut(held_out, labels, recipe.method, *often, self._with_weights, again)

    def round(self, number: int, previous: Path | None) -> RoundStart:
        """The weights of the model to start from, or fresh ones drawn from the recipe's seed."""
        if self._trains_tokenizer and self.accelerator.is_main_process and self.codec_file != self.kept:
            assert self.codec_file is not None
            files.write_bytes(self.kept, self.codec_file.read_bytes())
        recipe, training = self.recipe, self.recipe.training
        (seed,) = sample_seeds(f"{recipe.seed}:init", [number])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            denoiser = build_denoiser(self.config)
        if self.teacher is not None:
            denoiser.network.load_state_dict(self.teacher.denoiser.network.state_dict())
        setattr(denoiser.network, "checkpointing", training.activation_checkpointing)  # noqa: B010 (typed as Module)
        length, symbols, dropped = denoiser.length, denoiser.symbols, training.label_dropout
        spec = DataSpec(recipe.seed, "data/1", length, symbols, self.config.labels, dropped, training.flip)
        source = Shuffled(self.train, spec)
        return RoundStart(self.config, denoiser, source, codec_file=self.codec_file, held_out=self.held_out)

    def card(self, config: ModelConfig, progress: Progress) -> str:
        """The model card; provenance gets the best evaluation."""
        recipe = self.recipe
        if progress.best_loss is None:
            raise Failure("The held-out loss was never finite: the weights are useless.", "Use a lower learning rate.")
        config.provenance |= {
            "held_out_loss": progress.best_loss,
            "iterations": progress.best_step,
            "training_seconds": round(progress.seconds),
        }
        origin = "" if self.teacher is None else f" --teacher {public_name(str(recipe.teacher))}"
        return (
            f"# {config.name}\n\n{recipe.summary}. Teacher made by `di4c pretrain --recipe {recipe.name}{origin}`; "
            f"held-out loss {progress.best_loss:.4f} nats per unknown position after {progress.best_step} iterations.\n"
        )

    @property
    def _trains_tokenizer(self) -> bool:
        recipe = self.recipe
        named = recipe.tokenizer is not None or {"asset", "name", "file"} & recipe.codec.keys()
        return recipe.codec.get("type") == "text" and recipe.data != "embedded" and not named

    def _codec_file(self) -> Path | None:
        """The tokenizer: the one of --tokenizer, that of the resumed run, or one trained on the data."""
        recipe = self.recipe
        if recipe.codec.get("type") != "text":
            return None
        if recipe.tokenizer is not None:
            return pretrain_data.find_tokenizer(recipe.tokenizer)
        if not self._trains_tokenizer:
            return None
        if self.kept.is_file() and not self.new:
            return self.kept
        return pretrain_data.train_tokenizer(Path(recipe.data), recipe.vocabulary, self.say)

    def _config(self) -> ModelConfig:
        """config.json of the teacher; sizes that the recipe leaves out follow from the data."""
        recipe, codec = self.recipe, dict(self.recipe.codec)
        network: dict[str, Any] = {"dropout": recipe.training.dropout, **recipe.network}
        process = dict(recipe.process)
        symbols = None
        if self.codec_file is not None:
            codec = {"type": "text", "file": self.codec_file.name}
            symbols = pretrain_data.vocabulary_of(self.codec_file)
        if codec.get("type") == "pixels":
            codec.setdefault("levels", 256)
            if "shape" not in codec:
                codec["shape"] = pretrain_data.picture_shape(Path(recipe.data))
            codecs.build(codec)  # rejects impossible shapes
            symbols = codec["levels"]
            unet = network.get("type") == "unet"
            network.setdefault("shape" if unet else "length", codec["shape"] if unet else math.prod(codec["shape"]))
        if symbols is not None:
            network.setdefault("symbols", symbols)
            process.setdefault("symbols", symbols)
        if recipe.labels is not None:
            network.setdefault("labels", recipe.labels)
        return ModelConfig(
            kind="teacher",
            name=recipe.model_name,
            network=network,
            process=process,
            labels=recipe.labels,
            codec=codec,
            sampling=recipe.sampling,
            provenance=self._history(),
        )

    def _config_of(self, teacher: Model) -> ModelConfig:
        """config.json of a model that goes on from `teacher`: the same model with one more chapter of history."""
        parent = {"kind": "teacher", "name": teacher.name, "provenance": teacher.config.provenance}
        network = teacher_network(teacher, self.recipe.training.dropout)
        changes = {"kind": "teacher", "network": network, "provenance": {**self._history(), "parent": parent}}
        return teacher.config.model_copy(update=changes, deep=True)

    def _history(self) -> dict[str, Any]:
        settings = self.recipe.model_dump(mode="json")
        for key in ("teacher", "data", "held_out", "tokenizer"):
            settings[key] = None if settings[key] is None else public_name(settings[key])
        versions = {"di4c": __version__, "torch": torch.__version__}
        return {"recipe": settings, "data": settings["data"], "versions": versions}

    def _with_weights(self, tensors: dict[str, torch.Tensor]) -> Denoiser:
        denoiser = build_denoiser(self.config)
        denoiser.network.load_state_dict(tensors)
        return denoiser
