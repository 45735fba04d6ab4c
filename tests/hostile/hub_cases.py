"""A Hub on loopback inside the case's own process: it serves a folder, and misbehaves."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.standin import TOKEN, Fault, StandIn

KINDS = [
    *(
        "401",
        "403",
        "404",
        "416",
        "429",
        "500",
        "503",
        "cut",
        "short",
        "slow",
        "garbage",
        "silent",
        "drip",
        "drip headers",
    ),
    *("endless", "compressed", "etag", "commit", "wait a day", "ignore"),
]
PATHS = ["/resolve/", "config.json", "model.safetensors", "/api/", "/commit/", "/preupload/", "/lfs/", "me/model", "/"]
PATIENCE_SECONDS = 1.0
"""The real deadline is a minute; the server is on this machine."""


def fault(rng: random.Random) -> Fault:
    """One way in which requests go wrong, once or always."""
    method = rng.choice([None, None, "GET", "HEAD", "POST", "PUT"])
    return Fault(
        rng.choice(PATHS),
        rng.choice(KINDS),
        rng.choice([1, 2, 10**9]),
        method,
        rng.choice(["", "\x1b[8mRepoNotFound", "GatedRepo"]),
    )


def serve(repositories: dict[str, Path], fault: Fault | None = None) -> Callable[[], Any]:
    """A function that starts the server and points the client of this process to it."""

    def prepare() -> StandIn:
        from huggingface_hub import constants

        from di4c_cli import hub as client
        from di4c_cli import hub_limits

        server = StandIn()
        for name, folder in repositories.items():
            found = {
                str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < 2**25
            }
            readable = {key: path for key, path in found.items() if path.stat().st_mode & 0o400}
            server.add(name, dict(readable))
        server.faults = [fault] if fault else []
        server.__enter__()
        constants.ENDPOINT = server.url
        constants.HUGGINGFACE_CO_URL_TEMPLATE = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HF_HUB_CACHE = str(Path(os.environ["HOME"]) / "hub")
        constants.HF_HUB_OFFLINE = False
        os.environ["HF_TOKEN"] = TOKEN
        hub_limits.PATIENCE_SECONDS = PATIENCE_SECONDS
        client.PAUSE_SECONDS = 0.01
        return server

    return prepare
