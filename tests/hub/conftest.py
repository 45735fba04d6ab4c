"""The real client against a Hub on loopback: in this process, or in commands of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.standin import BRANCH, GOLDEN, TOKEN, Run, StandIn


@pytest.fixture
def sdtt() -> dict[str, Path]:
    """A small checkpoint in SDTT's layout."""
    return {name: GOLDEN / "sdtt" / name for name in ("config.json", "model.safetensors")}


@pytest.fixture
def hub(sdtt: dict[str, Path]) -> Iterator[StandIn]:
    """A Hub that has `sdtt-7`."""
    with StandIn() as server:
        server.add("jdeschena/sdtt", {"README.md": b"# SDTT\n"})
        server.add("jdeschena/sdtt", dict(sdtt), BRANCH)
        yield server


@pytest.fixture
def here(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the client of this process to the stand-in; gives its cache.

    The client reads these settings when it is imported, which has long happened by now.
    """
    from huggingface_hub import constants

    cache = tmp_path / "home" / "hub"
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    settings = {"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(cache)}
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return cache


@pytest.fixture
def run(hub: StandIn, tmp_path: Path) -> Run:
    """`run("convert", …)` is `di4c convert …` with the stand-in as the Hub and a cache in `tmp_path/home`."""

    def call(*words: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **hub.environment(tmp_path / "home"), **environment}
        return subprocess.run(
            [sys.executable, "-m", "di4c_cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env=env,
            cwd=tmp_path,
            timeout=timeout,
        )

    return call
