"""The Python API: loading, probabilities, samples, model folders of older versions."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

import di4c_cli
from di4c_cli import embedded
from di4c_cli.build import build_denoiser
from di4c_cli.config import FORMAT, ModelConfig, upgrade
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.model import Model, newest_run
from di4c_cli.model_folder import save_folder
from di4c_cli.sampler.config import RENAMED_KEYS, HandoffConfig, SamplingConfig
from di4c_cli.tasks.config import TASK_NAMES

NETWORKS = {
    "maskgit": {
        "type": "maskgit", "symbols": 5, "length": 9, "width": 16, "depth": 1, "heads": 2, "mlp": 32, "labels": 3,
    },
    "dit": {"type": "dit", "symbols": 5, "length": 9, "width": 16, "depth": 1, "heads": 2, "cond_dim": 8},
    "unet": {
        "type": "unet", "symbols": 6, "shape": [1, 4, 4], "channels": 8, "multipliers": [1, 2], "blocks": 1,
        "attention": [1], "time_dim": 8,
    },
}  # fmt: skip


def make(kind: str, latent: LatentConfig | None = None) -> Model:
    torch.manual_seed(0)
    network = NETWORKS[kind]
    process = {"type": "gaussian" if kind == "unet" else "masked", "symbols": network["symbols"]}
    labels = network.get("labels")
    config = ModelConfig(kind="student", name="x", network=network, process=process, latent=latent, labels=labels)
    return Model(config, build_denoiser(config).eval())


LATENTS = [None, LatentConfig(inject="film"), LatentConfig(inject="film", dim=3)]


@pytest.mark.parametrize(
    ("kind", "latent"),
    [(kind, latent) for kind in NETWORKS for latent in LATENTS]
    + [(kind, LatentConfig(inject="local", dim=2)) for kind in NETWORKS if kind != "unet"],
)
def test_log_probs_are_normalised_and_certain_at_known_positions(kind: str, latent: LatentConfig | None) -> None:
    model = make(kind, latent)
    symbols, length = model.denoiser.symbols, model.denoiser.length
    x = torch.randint(0, symbols, (4, length))
    if kind != "unet":
        x[:, ::2] = symbols
    out = model.log_probs(x, 0.5)
    assert out.shape == (4, length, symbols)
    torch.testing.assert_close(out.exp().sum(-1), torch.ones(4, length), atol=1e-5, rtol=0)
    if kind != "unet":
        known = out[:, 1::2].gather(2, x[:, 1::2, None])
        assert bool((known == 0).all()) and bool(torch.isinf(out[:, 1::2]).sum() == 4 * (length // 2) * (symbols - 1))


def test_log_probs_depend_on_latent_and_label() -> None:
    model = make("maskgit", LatentConfig(inject="film"))
    x = torch.full((2, 9), 5)
    lam = torch.tensor([0.1, 0.9])
    first = model.log_probs(x, 1.0, latent=lam)
    assert torch.equal(first, model.log_probs(x, 1.0, latent=lam))
    assert not torch.allclose(first[0], first[1])
    none = model.log_probs(x, 1.0, latent=lam, label=torch.tensor([-1, -1]))
    assert torch.equal(first, none)
    assert not torch.allclose(first, model.log_probs(x, 1.0, latent=lam, label=torch.tensor([0, 2])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_sample_is_the_same_for_any_batch_size(kind: str) -> None:
    model = make(kind, LatentConfig(inject="film"))
    whole = model.sample(23, steps=3, seed=5, batch_size=23)
    for size in (1, 4, 16):
        assert torch.equal(whole, model.sample(23, steps=3, seed=5, batch_size=size))
    assert torch.equal(whole[10:], model.sample(13, steps=3, seed=5, first=10))
    assert not torch.equal(whole, model.sample(23, steps=3, seed=6))
    assert int(whole.max()) < model.denoiser.symbols and int(whole.min()) >= 0


def test_sample_rejects_labels_and_given_symbols_that_do_not_fit() -> None:
    model = make("maskgit")
    for label in ([1, 2], torch.tensor([1, 2, 0, 1])):
        with pytest.raises(UserError, match="labels do not fit 3 samples"):
            model.sample(3, steps=1, label=label)
    with pytest.raises(UserError, match="2 rows of given symbols do not fit 3 samples"):
        model.sample(3, steps=1, given=torch.full((2, 9), -1))
    for label in (1, [1], torch.tensor(1), [0, 1, 2]):
        assert model.sample(3, steps=1, label=label, given=torch.full((9,), -1)).shape == (3, 9)


def test_load_of_a_saved_folder_gives_the_same_model(tmp_path: Path) -> None:
    model = make("dit", LatentConfig(inject="token"))
    save_folder(tmp_path / "m", model.config, model.denoiser, "card")
    again = di4c_cli.load(str(tmp_path / "m"))
    x = torch.full((2, 9), 5)
    assert torch.equal(model.log_probs(x, 1.0), again.log_probs(x, 1.0))
    assert again.config == model.config
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert len({p.stat().st_mode for p in (tmp_path / "m").iterdir()}) == 1


def test_load_rejects_bad_references_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'digits'"):
        di4c_cli.load("digit")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"config\.json"):
        di4c_cli.load(str(tmp_path / "empty"))


def test_newest_run_is_the_last_written(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    import os

    for age, name in ((100, "old"), (1, "new")):
        folder = tmp_path / name / "student"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    assert newest_run(tmp_path) == tmp_path / "new" / "student"


@pytest.mark.parametrize("world", TASK_NAMES)
@pytest.mark.parametrize("kind", ["teacher", "student"])
def test_embedded_models_load_and_sample(world: str, kind: str) -> None:
    name = world if kind == "teacher" else f"{world}-student"
    model = di4c_cli.load(name)
    assert model.config.kind == kind
    assert (model.denoiser.latent is None) == (kind == "teacher")
    label = [3, 3] if model.config.labels else None
    out = model.decode(model.sample(2, steps=2, seed=1, label=label))
    assert len(out) == 2
    size = (embedded.model(world, kind) / "model.safetensors").stat().st_size
    assert size <= 2_000_000


def test_sample_of_a_handoff_student_uses_its_teacher(tmp_path: Path) -> None:
    """`sampling.handoff`: the same samples as an explicit hybrid; one step needs no teacher."""
    student = di4c_cli.load("digits-student")
    handoff = HandoffConfig(after=1, max_steps_labelled=2)
    student.config.sampling.handoff = handoff
    teacher = di4c_cli.load("digits").denoiser
    explicit = student.sample(3, steps=4, seed=5, hybrid=3, teacher=teacher)
    assert torch.equal(student.sample(3, steps=4, seed=5), explicit)
    assert [student.plan(steps=steps).hybrid for steps in (1, 2)] == [0, 1]
    assert student.plan(steps=4, hybrid=0).hybrid == 0
    handoff.max_steps = 4
    assert torch.equal(student.sample(3, steps=4, seed=5), explicit)
    handoff.time = 0.6
    longer = student.sample(3, steps=4, seed=5, hybrid=3, handoff_time=0.6, teacher=teacher)
    assert torch.equal(student.sample(3, steps=4, seed=5), longer) and not torch.equal(longer, explicit)
    alone = di4c_cli.load("digits").sample(3, steps=5, seed=5)
    assert torch.equal(student.sample(3, steps=5, seed=5), alone)
    handoff.max_steps, handoff.max_steps_labelled = None, 0
    assert student.plan(True, steps=1).hybrid == 1 and student.plan(steps=1).hybrid == 0
    labelled = di4c_cli.load("digits").sample(3, steps=1, seed=5, label=[3, 1, 2])
    assert torch.equal(student.sample(3, steps=1, seed=5, label=[3, 1, 2]), labelled)
    student.config.provenance["teacher"] = "no-such-teacher"
    student._teacher = None
    assert student.sample(2, steps=1, seed=5).shape == (2, 64)
    with pytest.raises(UserError, match="no-such-teacher"):
        student.sample(2, steps=2, seed=5)


OLD_FOLDER = Path(__file__).parent / "model_folders" / "tiny-digits-student-0.1"
"""The embedded student as di4c 0.1 wrote it."""
IDS = {1: "3480fc3c8ded08b0", 4: "226b26dece8ac87d", 6: "77e78711af30d78e"}
"""SHA-256 of the ids sampled from it: 24 samples of seed 7, by steps. 0.2 changed them once, with its generator."""


@pytest.mark.parametrize("steps", IDS)
def test_load_of_a_0_1_folder_samples_the_ids_of_the_new_one(steps: int) -> None:
    for ref in (str(OLD_FOLDER), "digits-student"):
        x = di4c_cli.load(ref).sample(24, steps=steps, seed=7)
        assert hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16] == IDS[steps], ref
    old, new = (di4c_cli.load(ref).config for ref in (str(OLD_FOLDER), "digits-student"))
    assert old.model_copy(update={"provenance": new.provenance}) == new and old.di4c == FORMAT


def test_upgrade_renames_the_keys_of_0_1() -> None:
    old = json.loads((OLD_FOLDER / "config.json").read_text())
    assert old["di4c"] == 1 and set(RENAMED_KEYS) < set(old["sampling"])
    values = {"lead": 2, "lead_to": 0.4, "lead_shrink": 0.5, "lead_until": 9, "lead_labelled": 3}
    sampling = upgrade({"di4c": 1, "sampling": {"steps": 5, **values}})["sampling"]
    handoff = HandoffConfig(after=2, time=0.4, shrink=0.5, max_steps=9, max_steps_labelled=3)
    assert SamplingConfig.model_validate(sampling) == SamplingConfig(steps=5, handoff=handoff)
    none = upgrade({"di4c": 1, "sampling": {"lead": None, "lead_to": 0.4}})
    assert none == {"di4c": FORMAT, "sampling": {}}
    assert upgrade({"di4c": 1, "sampling": "odd"}) == {"di4c": FORMAT, "sampling": "odd"}
    assert upgrade({"sampling": {"lead": 1}}) == {"sampling": {"lead": 1}}
