"""The names: complete, consistent, and helpful when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import load, recipe_file
from di4c_cli.errors import UserError
from di4c_cli.hub import is_id
from di4c_cli.teacher import formats, recipe_for, registry

LOSSES, SIZES, ROUNDS = ("mse", "tvd"), ("sm", "md", "large"), range(1, 8)


def test_registry_has_every_promised_name() -> None:
    expected = {f"sdtt-{n}": f"baselines_kld_step_{n}0000" for n in ROUNDS}
    expected |= {f"sdtt-{loss}-{n}": f"baselines_{loss}_step_{n}0000" for loss in LOSSES for n in ROUNDS}
    expected |= {f"sdtt-{size}-{n}": f"scaling_400k_{size}_step_{n}0000" for size in SIZES for n in ROUNDS}
    expected |= {f"sdtt-teacher-{size}": f"teacher_400k_{size}_step_400000" for size in SIZES}
    expected |= {"sdtt-teacher": "teacher_1M_sm"}
    entries = registry.entries()
    assert {name: entries[name].revision for name in expected} == expected
    assert {entries[name].repo for name in expected} == {"jdeschena/sdtt"}
    assert entries["mdlm"].repo == "kuleshov-group/mdlm-owt"
    assert entries["maskgit-256"].repo == entries["maskgit-512"].repo == "llvictorll/Maskgit-pytorch"
    local = {"tauldr-cifar10", "sdtt-6-di4c2", "sdtt-7-di4c2", "maskgit-di4c-d", "tauldr-di4c"}
    assert {name for name, entry in entries.items() if entry.source == "local"} == local
    assert sum(entry.source == "embedded" for entry in entries.values()) == 9


def test_registry_entries_are_complete() -> None:
    known = {module.NAME for module in formats.FORMATS}
    recipes = recipe_file.names()
    for entry in registry.entries().values():
        assert entry.format in known and entry.licence and entry.note
        assert entry.recipe in recipes, entry.name
        assert (entry.source == "hub") == bool(entry.files) == (entry.repo is not None)
        assert (entry.source == "local") == bool(entry.where)
        assert entry.repo is None or is_id(entry.repo)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sdtt7", "Did you mean 'sdtt-7'"),
        ("tauldr-cifar10", "Dropbox"),
        ("sdtt-6-di4c2", "sdtt6-di4c2.ckpt in Zenodo record 15124163"),
        ("tauldr-di4c", "tldr-di4c.pt"),
        ("mdlm@../../x", "cannot be a revision"),
        ("a/../b", "There is no model"),
        ("digits@main", "has no revisions"),
        ("runs/missing", "no model at runs/missing"),
        ("\0", "There is no model"),
        ("x" * 5000, "There is no model"),
    ],
)
def test_load_explains_wrong_and_unreachable_names(name: str, told: str) -> None:
    Path("runs").mkdir()
    with pytest.raises(UserError, match=told):
        load(name)


def test_recipe_for_names() -> None:
    assert recipe_for("sdtt-6") == "sdtt-6"
    assert recipe_for("sdtt-7@some-branch") == "sdtt-7"
    assert recipe_for("digits-student") == "digits"
    assert recipe_for("mdlm", "sdtt") == recipe_for("sdtt-7", "sdtt") == "sdtt/mdlm"
    assert recipe_for("mdlm", "variational") == recipe_for("mdlm") == "sdtt-7"
