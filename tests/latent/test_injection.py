"""Injection of λ into a network: features, projections and their initialisation; the section `latent`."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig, StudentLatentConfig
from di4c_cli.latent.injection import LatentFilm, LatentLocal, LatentMlp
from di4c_cli.network import build
from di4c_cli.network.dit import DiT
from di4c_cli.numerics import sinusoid

SEED = 7


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


@settings(deadline=None)  # the first call loads torch kernels
@given(st.floats(-1000, 1000), st.sampled_from([4, 16, 128]), st.booleans())
def test_sinusoid_is_the_written_formula(value: float, width: int, cosines_first: bool) -> None:
    half = width // 2
    angles = [value * 10000 ** (-i / (half if cosines_first else half - 1)) for i in range(half)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    expected = cosines + sines if cosines_first else sines + cosines
    result = sinusoid(torch.tensor([value], dtype=torch.float64), width, cosines_first)
    torch.testing.assert_close(result, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-9)


def test_sinusoid_keeps_leading_shape_and_dtype() -> None:
    value = torch.rand(2, 3)
    assert sinusoid(value, 8).shape == (2, 3, 8)
    assert sinusoid(value.double(), 8).dtype == torch.float64


@pytest.mark.parametrize(
    ("settings", "width"), [({}, 128), ({"dim": 3, "features": "sinusoid"}, 384), ({"dim": 5, "features": "raw"}, 5)]
)
def test_embedding_has_its_feature_width_and_shape(settings: dict[str, Any], width: int) -> None:
    module = LatentMlp(24, LatentConfig(**settings))
    lam = torch.rand(4, settings["dim"]) if "dim" in settings else torch.rand(4)
    assert module.features(lam).shape == (4, width)
    assert module(lam).shape == (4, 24)
    assert sorted(module.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_raw_features_are_centred_for_uniform_numbers_only() -> None:
    lam = torch.tensor([[0.0, 0.5, 1.0]])
    uniform = LatentMlp(8, LatentConfig(dim=3, features="raw"))
    normal = LatentMlp(8, LatentConfig(dim=3, features="raw", distribution="normal"))
    assert uniform.features(lam).tolist() == [[-1.0, 0.0, 1.0]]
    assert normal.features(lam).tolist() == lam.tolist()


def test_embedding_takes_a_scalar_as_a_column_or_a_vector() -> None:
    module, lam = LatentMlp(8, LatentConfig()), torch.rand(3)
    assert torch.equal(module(lam), module(lam[:, None]))


def test_features_of_half_precision_weights_keep_their_angles() -> None:
    """1000 λ in bfloat16 has steps of 4: neighbouring λ would share their features."""
    module, lam = LatentMlp(8, LatentConfig()), torch.tensor([0.7001, 0.7004])
    exact = module.features(lam)
    blurred = module.bfloat16().features(lam.double())
    assert blurred.dtype == torch.bfloat16
    torch.testing.assert_close(blurred.float(), exact, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LatentMlp(16, LatentConfig()),
        lambda: LatentFilm(16, 2, 6, LatentConfig()),
        lambda: LatentLocal(16, 5, LatentConfig(inject="local")),
    ],
    ids=["token", "film", "local"],
)
def test_init_latent_has_three_kinds(make: Any) -> None:
    module, lam = make(), torch.rand(5)
    module.init_latent("zero", generator())
    assert not module(lam).any()
    assert module[0].weight.any()
    module.init_latent(0.3, generator())
    assert module[2].weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert not module[2].bias.any()
    module.init_latent("default", generator())
    first = {key: value.clone() for key, value in module.state_dict().items()}
    module.init_latent("default", generator())
    assert all(torch.equal(first[key], value) for key, value in module.state_dict().items())
    with pytest.raises(ValueError, match="orthogonal"):
        module.init_latent("orthogonal")


def test_init_latent_of_a_token_has_torch_bounds() -> None:
    module = LatentMlp(64, LatentConfig())
    module.init_latent("default", generator())
    for layer in (module[0], module[2]):
        bound = 1 / math.sqrt(layer.in_features)
        assert 0.95 * bound < layer.weight.abs().max() <= bound


@pytest.mark.parametrize("width", [16, 64, 512])
@pytest.mark.parametrize("settings", [{}, {"dim": 8, "features": "raw"}])
def test_init_latent_of_film_starts_away_from_zero(width: int, settings: dict[str, Any]) -> None:
    module = LatentFilm(width, 3, 4, LatentConfig(**settings))
    module.init_latent("default", generator())
    lam = torch.rand(64, settings.get("dim", 1), generator=generator())
    vectors = module(lam)
    assert vectors.shape == (64, 3, 4, width)
    spread = vectors.std(dim=0).mean().item()
    assert 0.03 < spread < 0.4


def test_local_numbers_act_on_their_own_position() -> None:
    """The same map everywhere: numbers that change places take their vectors with them."""
    latent = LatentConfig(inject="local", dim=3, features="raw", distribution="normal")
    module = LatentLocal(16, 4, latent)
    lam = torch.randn(5, 4, 3, generator=generator())
    vectors, order = module(lam.flatten(1)), [2, 0, 3, 1]
    assert vectors.shape == (5, 4, 16)
    torch.testing.assert_close(module(lam[:, order].flatten(1)), vectors[:, order])
    moved = lam.clone()
    moved[:, 1] += 1
    changed = (module(moved.flatten(1)) - vectors).abs().amax(2) > 1e-6
    assert changed[:, 1].all() and not changed[:, [0, 2, 3]].any()
    for wrong in (torch.zeros(4), torch.zeros(4, 3), torch.zeros(2, 13)):
        with pytest.raises(ValueError, match="instead of 12"):
            module(wrong)
    assert 0.03 < vectors.std(dim=0).mean().item() < 0.4


def test_latent_config_fills_in_the_defaults() -> None:
    assert LatentConfig(features=None).model_dump() == {
        "dim": 1,
        "distribution": "uniform",
        "inject": "token",
        "features": None,
        "prior": "standard",
        "prior_width": 256,
    }


@pytest.mark.parametrize(
    ("latent", "presentation"),
    [
        ({}, "sinusoid"),
        ({"dim": 4}, "raw"),
        ({"inject": "local"}, "raw"),
        ({"features": "raw"}, "raw"),
        ({"dim": 4, "features": "sinusoid"}, "sinusoid"),
    ],
)
def test_presentation_depends_on_the_numbers_of_lambda(latent: dict[str, Any], presentation: str) -> None:
    assert LatentConfig(**latent).presentation == presentation


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"inject": "cat"}, "inject"),
        ({"dim": 0}, "dim"),
        ({"colour": 1}, "colour"),
        ({"features": "fourier"}, "features"),
        ({"law": 4}, "law"),
    ],
)
def test_latent_config_rejects_wrong_values(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        LatentConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"init": -1.0}, {"init": "orthogonal"}, {"init": math.nan}])
def test_student_latent_config_rejects_wrong_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StudentLatentConfig(**wrong)


def test_student_latent_config_stores_all_but_the_initialisation() -> None:
    own = StudentLatentConfig(dim=3, distribution="normal", init=0.3, prior="learned", prior_width=8)
    assert own.stored() == LatentConfig(dim=3, distribution="normal", prior="learned", prior_width=8)


def test_network_without_latent_rejects_it() -> None:
    plain = DiT(symbols=5, length=4, width=8, depth=1, heads=2, cond_dim=4)
    with pytest.raises(ValueError, match="without λ"):
        plain.body(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1), lam=torch.zeros(1))
    with pytest.raises(ValueError, match="no λ weights"):
        plain.init_latent()


def test_build_rejects_an_unknown_type() -> None:
    with pytest.raises(UserError, match="'rnn' is unknown"):
        build({"type": "rnn"})
    with pytest.raises(UserError):
        build({})


def test_network_package_does_not_import_torch() -> None:
    code = "import sys, di4c_cli.network; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
