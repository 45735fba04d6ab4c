"""The pretend GPU needs a backend in Python, which older versions of torch do not have."""

from __future__ import annotations

from torch.utils import backend_registration

if not hasattr(backend_registration, "_DummyBackendModule"):
    collect_ignore_glob = ["test_*.py"]
