"""Limits on what a Hub endpoint can do to the Hub's client: deadlines on progress, sizes, and names of its cache.

A large file may take days, but bytes must keep coming: at least `MIN_BYTES` in every `PATIENCE_SECONDS` that the client
waits. The client's own timeouts apply to single reads, so a server that sends a byte now and then would never end.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from di4c_cli.errors import Failure

PATIENCE_SECONDS = 60.0
MIN_BYTES = 30_000
CONNECT_SECONDS = 10.0
MAX_PAUSE_SECONDS = 30
"""Longest pause that a server may ask for before the next attempt."""
MAX_ANSWER_BYTES = 256 * 2**20
"""Largest answer of the Hub's programming interface; a listing of a million files fits."""
SLICE_BYTES = 1 << 14
CACHE_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,127}")
CACHE_HEADERS = ("ETag", "X-Linked-Etag", "X-Repo-Commit")
"""Headers that the client uses as file names in its cache."""
HINT = "Try again later, or set HF_ENDPOINT to another server."


class _Meter(threading.local):
    """Waiting time and bytes of this thread's transfer, and the size that the server announced for it."""

    waited = 0.0
    moved = 0
    announced: int | None = None

    def add(self, seconds: float, count: int) -> None:
        """Account for a read or write; raises `Failure` if there was too little progress."""
        self.waited += seconds
        self.moved += count
        if self.waited >= PATIENCE_SECONDS:
            if self.moved < MIN_BYTES:
                raise Failure(f"The Hub makes no progress: {self.moved} bytes in {self.waited:.0f} seconds.", HINT)
            self.reset()

    def reset(self) -> None:
        self.waited, self.moved = 0.0, 0


meter = _Meter()


def limit_client(hub: Any) -> None:
    """Apply the limits to the client of this process; one whose HTTP client cannot be replaced stays as it is."""
    default = getattr(getattr(hub.utils, "_http", None), "default_client_factory", None)
    if default is None:
        return

    def create() -> Any:
        client = default()
        for transport in (client._transport, *client._mounts.values()):
            pool = getattr(transport, "_pool", None)
            if pool is not None:
                pool._network_backend = _Backend(pool._network_backend)
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks.get("request", []), _on_request],
            "response": [*hooks.get("response", []), _on_response],
        }
        return client

    hub.set_client_factory(create)


def _on_request(request: Any) -> None:
    timeouts = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {**timeouts, "connect": timeouts.get("connect") or CONNECT_SECONDS}
    if "Range" not in request.headers:  # a resumed download is still the same transfer
        meter.reset()
    if request.method == "HEAD":
        meter.announced = None
    request.headers["Accept-Encoding"] = "identity"  # a compressed body could grow without limit


def _on_response(response: Any) -> None:
    request, headers = response.request, response.headers
    pause = headers.get("Retry-After", "0")
    if not pause.isdecimal() or int(pause[:9]) > MAX_PAUSE_SECONDS:
        del headers["Retry-After"]
    for name in ("ratelimit", "ratelimit-policy"):
        headers.pop(name, None)
    if request.method == "HEAD":
        for name in CACHE_HEADERS:
            value = headers.get(name, "x").removeprefix("W/").strip('"')
            if CACHE_NAME.fullmatch(value) is None or ".." in value:
                raise Failure(f"The Hub's answer has an impossible {name} ({value!r}).", HINT)
        size = headers.get("X-Linked-Size") or headers.get("Content-Length", "")
        meter.announced = int(size) if size.isdecimal() and len(size) < 19 else None
        return
    if headers.get("Content-Encoding", "identity") != "identity":
        raise Failure("The Hub compressed its answer although the client does not accept that.", HINT)
    is_file = request.method == "GET" and "/api/" not in request.url.path and response.is_success
    limit = meter.announced if is_file else MAX_ANSWER_BYTES
    if limit is not None:
        response.stream = _counted(response.stream, limit)


def _counted(stream: Any, limit: int) -> Any:
    """The stream of a body; more bytes than `limit` are a failure."""
    base = import_module(type(stream).__module__.partition(".")[0]).SyncByteStream

    class Counted(base):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[bytes]:
            total = 0
            for part in stream:
                total += len(part)
                if total > limit:
                    raise Failure(f"The Hub sends more than the {limit} bytes that it announced.", HINT)
                yield part

        def close(self) -> None:
            stream.close()

    return Counted()


class _Backend:
    """The network of the HTTP library, with metered connections."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def connect_tcp(self, *args: Any, **options: Any) -> Any:
        return _Connection(self.inner.connect_tcp(*args, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Connection:
    """A connection whose reads and writes are metered."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._metered(partial(self.inner.read, max_bytes), timeout) or b""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), SLICE_BYTES):
            part = buffer[start : start + SLICE_BYTES]
            self._metered(partial(self.inner.write, part), timeout, len(part))

    def start_tls(self, *args: Any, **options: Any) -> Any:
        return _Connection(self.inner.start_tls(*args, **options))

    def _metered(self, call: Callable[[float], bytes | None], timeout: float | None, sent: int = 0) -> bytes | None:
        start, moved = time.monotonic(), 0
        try:
            received = call(max(0.01, min(timeout or PATIENCE_SECONDS, PATIENCE_SECONDS - meter.waited)))
            moved = sent + len(received or b"")
            return received
        finally:
            meter.add(time.monotonic() - start, moved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
