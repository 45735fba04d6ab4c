"""The student before its first step: the teacher's network plus λ, and its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from di4c_cli import __version__
from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.files import real_path
from di4c_cli.methods import implementation
from di4c_cli.methods.base import Method, MethodSetup
from di4c_cli.model import Model
from di4c_cli.network.lora import LATENT_PREFIX, add_lora
from di4c_cli.noise import sample_seeds
from di4c_cli.recipe import Recipe
from di4c_cli.recipe_file import start_recipe
from di4c_cli.training.pretrain_config import RunRecipe
from di4c_cli.training.round_data import information


def student_config(teacher: Model, recipe: Recipe, round_number: int) -> ModelConfig:
    """config.json of a round's student: the teacher's domain, the recipe's λ, and the whole history."""
    first = start_recipe(recipe)
    latent = teacher.config.latent or (first or recipe).method.resolve_latent(recipe.latent.stored())
    root = teacher.name.removesuffix("-student")
    return ModelConfig(
        kind="student",
        name=f"{root}-student",
        network=teacher_network(teacher, recipe.training.dropout),
        process=teacher.config.process,
        latent=latent,
        adapter=recipe.training.adapter,
        labels=teacher.config.labels,
        codec=teacher.config.codec,
        sampling=recipe.sampling or teacher.config.sampling,
        provenance=_history(teacher, recipe, round_number),
    )


def teacher_network(teacher: Model, dropout: float) -> dict[str, Any]:
    """The network of a model that starts from a teacher, with the dropout of its own training."""
    return {key: value for key, value in teacher.config.network.items() if key != "latent"} | {"dropout": dropout}


def _history(teacher: Model, recipe: Recipe, round_number: int) -> dict[str, Any]:
    parent = teacher.config.provenance
    settings = recipe.model_dump(mode="json")
    for key in ("teacher", "data"):
        settings[key] = public_name(settings[key])
    return {
        "teacher": settings["teacher"],
        "teacher_revision": parent.get("revision") if teacher.config.kind == "teacher" else None,
        "recipe": settings,
        "data": settings["data"],
        "information": information(recipe, teacher.config.labels),
        "di4c": __version__,
        "torch": torch.__version__,
        "seed": recipe.seed,
        "round": round_number,
        "rounds": recipe.rounds,
        "iterations": recipe.training.iterations,
        "parent": {"kind": teacher.config.kind, "name": teacher.name, "provenance": parent},
    }


def public_name(ref: str) -> str:
    """A name or Hub id unchanged; only the last part of a local path, so that the card shows no private path."""
    path = Path(ref)
    return real_path(path).name if path.is_absolute() or path.exists() else ref


def new_student(teacher: Model, config: ModelConfig, recipe: Recipe, round_number: int) -> Denoiser:
    """The student at step 0: the teacher's weights by name; λ parts are new unless the teacher has them."""
    denoiser = build_denoiser(config)
    own, given = denoiser.network.state_dict(), teacher.denoiser.network.state_dict()
    unknown = sorted(given.keys() - own.keys())
    wrong = sorted(name for name in given.keys() & own.keys() if given[name].shape != own[name].shape)
    if unknown or wrong:
        name = (unknown + wrong)[0]
        raise UserError(f"The student has no place for the teacher's '{name}'.", "Check the recipe's latent section.")
    if config.latent is not None and teacher.denoiser.latent is None:
        (seed,) = sample_seeds(f"{recipe.seed}:init", [round_number])
        denoiser.network.init_latent(recipe.latent.init, torch.Generator().manual_seed(seed))  # type: ignore[operator]
        own = denoiser.network.state_dict()
    denoiser.network.load_state_dict(own | given)
    setattr(denoiser.network, "checkpointing", recipe.training.activation_checkpointing)  # noqa: B010 (typed as Module)
    return denoiser


def adapter_student(
    base: Denoiser, config: ModelConfig, recipe: Recipe, round_number: int, own: Mapping[str, Tensor] | None = None
) -> Denoiser:
    """The student as an adapter beside λ on the weights of `base`, which both share; `own` continues a student.

    Every other weight is the same object in both networks, so that a device holds it once.
    """
    assert config.adapter is not None
    denoiser = build_on_meta(config)
    denoiser.process = base.process  # its tables are on the meta device too
    network, given = denoiser.network, base.network
    shared = dict(given.named_parameters()) | dict(given.named_buffers())
    first: dict[str, Tensor] = {}
    for name, slot in network.state_dict().items():
        if name not in shared:  # λ of a new student
            first[name] = torch.empty_like(slot, device="cpu")
        else:
            first[name] = shared[name].detach().clone() if name.startswith(LATENT_PREFIX) else shared[name]
    network.load_state_dict(first, assign=True)
    for name, buffer in list(network.named_buffers()):
        if buffer.is_meta:  # tables that no file holds
            owner, _, last = name.rpartition(".")
            setattr(network.get_submodule(owner), last, shared[name])
    (seed,) = sample_seeds(f"{recipe.seed}:init", [round_number])
    generator = torch.Generator().manual_seed(seed)
    if base.latent is None and denoiser.latent is not None:
        network.init_latent(recipe.latent.init, generator)  # type: ignore[operator]
    add_lora(network, config.adapter, generator)
    if own is not None:
        network.load_state_dict({**network.state_dict(), **own})
    setattr(network, "checkpointing", recipe.training.activation_checkpointing)  # noqa: B010 (typed as Module)
    return denoiser


def build_method(recipe: RunRecipe, student: Denoiser, teacher: Denoiser | None, round_number: int) -> Method:
    """The recipe's training method; `teacher` is None if the method does not call it."""
    training = recipe.training
    dropout = training.dropout > 0
    at_u = dropout and training.dropout_at_u
    setup = MethodSetup(recipe.seed, round_number, dropout, at_u, data_free=recipe.data == "teacher")
    return implementation(recipe.method)(recipe.method, student, teacher, setup)


def method_on_meta(recipe: RunRecipe, student: ModelConfig, teacher: ModelConfig | None = None) -> Method:
    """The method without memory: checks that λ fits network and method, and counts parameters."""
    frozen = build_on_meta(teacher) if teacher is not None and recipe.method.needs_teacher else None
    with torch.device("meta"):
        return build_method(recipe, build_on_meta(student), frozen, 1)
