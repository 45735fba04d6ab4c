"""A Hub on loopback for the real client: the endpoints it needs, and the ways in which a Hub can misbehave.

Written from the client's side: what it asks and what it makes of the answers. Serves models from memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standin"
GOLDEN = Path(__file__).parents[1] / "golden"
BRANCH = "baselines_kld_step_70000"
"""Where `sdtt-7` is."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Repository:
    """Branches and the files of each commit."""

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: bool = False

    def commit(self, branch: str, changes: dict[str, bytes]) -> str:
        """A new commit on a branch; its name is the hash of its files."""
        base = self.branches.get(branch) or self.branches.get("main")
        tree = {**(self.commits[base] if base else {}), **changes}
        summary = json.dumps({path: hashlib.sha256(content).hexdigest() for path, content in sorted(tree.items())})
        sha = hashlib.sha1(f"{branch}{len(self.commits)}{summary}".encode()).hexdigest()
        self.commits[sha] = tree
        self.branches[branch] = sha
        return sha

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files of a branch or commit."""
        sha = self.branches.get(revision, revision)
        return (sha, self.commits[sha]) if sha in self.commits else None


@dataclass
class Fault:
    """How requests whose path contains `path` go wrong, `times` times.

    Kinds: a status code with an optional X-Error-Code, `cut` (the connection breaks half-way through),
    `short` (fewer bytes than announced, politely), `slow` (a pause before every few bytes), `garbage`,
    `silent` (no answer), `drip` and `drip headers` (a byte now and then),
    `endless` (a body without end), `compressed` (a body that grows when it is unpacked), `etag` and `commit` (headers
    that lead out of the cache), `wait a day` (a Retry-After), `ignore` (a commit that drops the files).
    """

    path: str
    kind: str
    times: int = 10**9
    method: str | None = None
    code: str = ""

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and self.path in path and self.method in (None, method)


class StandIn:
    """The server; use as a context manager. `requests` records (method, path, Range header)."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self.blobs: dict[str, bytes] = {}
        self.server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, repo: str, files: dict[str, bytes | Path], branch: str = "main") -> str:
        """Put files on a branch; returns the commit."""
        contents = {name: f.read_bytes() if isinstance(f, Path) else f for name, f in files.items()}
        return self.repositories.setdefault(repo, Repository()).commit(branch, contents)

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the client talk to this server, with a cache of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}

    def asked(self, method: str, part: str) -> list[str]:
        """Range headers of the requests of a kind."""
        return [ranges for verb, path, ranges in self.requests if verb == method and part in path]


class _Server(ThreadingHTTPServer):
    """A client that ends in the middle of an answer is no error of the server."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    hub: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        self.hub.requests.append((method, path, self.headers.get("Range", "")))
        fault = next((fault for fault in self.hub.faults if fault.fits(method, path)), None)
        if fault is not None:
            fault.times -= 1
            if fault.kind.isdigit():
                self._send(int(fault.kind), b"{}", {"X-Error-Code": fault.code, "X-Error-Message": fault.code})
                return
            if fault.kind == "wait a day":
                self._send(429, b"{}", {"Retry-After": "86400"})
                return
            if fault.kind in ("silent", "drip headers"):
                self._drip(b"" if fault.kind == "silent" else b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10**4)
                return
        self._route(method, path, body, fault)

    def _drip(self, content: bytes, pause: float = 0.05) -> None:
        """Send a byte now and then, or nothing, until the client or the server gives up."""
        self.close_connection = True
        with suppress(OSError):
            for place in range(10**4):
                if self.hub.stopped.wait(pause):
                    return
                self.wfile.write(content[place : place + 1])
                self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _route(self, method: str, path: str, body: bytes, fault: Fault | None) -> None:
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+?)/(.+)", path):
            self._resolve(method, *self._split(found), fault)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._revision(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self._revision(found.group(1), "main")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            repository = self.hub.repositories[found.group(1)]
            repository.branches.setdefault(found.group(2), repository.branches["main"])
            self._json({})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            ignored = fault is not None and fault.kind == "ignore"
            self._json({"files": [{"path": n, "uploadMode": _mode(n), "shouldIgnore": ignored} for n in names]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif method == "PUT" and path.startswith("/lfs/"):
            self.hub.blobs[path.removeprefix("/lfs/")] = body
            self._send(200, b"")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self._commit(*found.groups(), body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _split(self, found: re.Match[str]) -> tuple[str, str, str]:
        """Repository, revision and file; revisions may contain slashes, so the longest known one wins."""
        repo, rest = found.group(1), f"{found.group(2)}/{found.group(3)}"
        repository = self.hub.repositories.get(repo)
        known = [*repository.branches, *repository.commits] if repository else []
        revision = max((name for name in known if rest.startswith(f"{name}/")), key=len, default=found.group(2))
        return repo, revision, rest.removeprefix(f"{revision}/")

    def _resolve(self, method: str, repo: str, revision: str, name: str, fault: Fault | None) -> None:
        repository = self.hub.repositories.get(repo)
        if repository is None or (repository.private and TOKEN not in self.headers.get("Authorization", "")):
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        found = repository.files(revision)
        if found is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        sha, files = found
        if name not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            return
        content = files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        self._send_file(method, content, headers, fault)

    def _send_file(self, method: str, content: bytes, headers: dict[str, str], fault: Fault | None) -> None:
        start, status = 0, 200
        if method == "GET" and (found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            start, status = int(found.group(1)), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        kind = fault.kind if fault is not None and method == "GET" else ""
        body = content[start:]
        if kind == "garbage":
            body = bytes(byte ^ 0x5A for byte in body)
        self.send_response(status)
        announced = len(body) // 2 if kind == "short" else len(body)
        if fault is not None and fault.kind in ("etag", "commit"):
            headers["ETag" if fault.kind == "etag" else "X-Repo-Commit"] = '"../../../../outside"'
        length = {"Transfer-Encoding": "chunked"} if kind == "endless" else {"Content-Length": str(announced)}
        if kind == "compressed":
            body = zlib.compress(bytes(10**6))
            length = {"Content-Length": str(len(body)), "Content-Encoding": "deflate"}
            announced = len(body)
        for key, value in {**headers, **length}.items():
            self.send_header(key, value)
        self.end_headers()
        if method == "HEAD":
            return
        if kind == "endless":
            with suppress(OSError):
                while not self.hub.stopped.is_set():
                    self.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            self.close_connection = True
            return
        if kind == "drip":
            self._drip(body)
            return
        if kind == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
        elif kind == "slow":
            for part in range(0, len(body), len(body) // 8 + 1):
                time.sleep(0.1)
                self.wfile.write(body[part : part + len(body) // 8 + 1])
        else:
            self.wfile.write(body[:announced])

    def _revision(self, repo: str, revision: str) -> None:
        repository = self.hub.repositories.get(repo)
        found = repository.files(revision) if repository else None
        if repository is None or found is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound" if repository else "RepoNotFound"})
            return
        siblings = [_sibling(name, content) for name, content in found[1].items()]
        self._json({"id": repo, "modelId": repo, "sha": found[0], "siblings": siblings, "private": repository.private})

    def _create(self, wish: dict[str, Any]) -> None:
        repo = f"{wish['organization']}/{wish['name']}" if wish.get("organization") else wish["name"]
        if repo in self.hub.repositories:
            self._json({"url": f"{self.hub.url}/{repo}", "error": "exists"}, 409)
            return
        repository = Repository(private=bool(wish.get("private")) or wish.get("visibility") == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.hub.repositories[repo] = repository
        self._json({"url": f"{self.hub.url}/{repo}", "name": repo, "id": "0"})

    def _batch(self, wish: dict[str, Any]) -> None:
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}", "header": {}}}}
            for entry in wish["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, branch: str, body: bytes) -> None:
        changes: dict[str, bytes] = {}
        for line in body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                changes[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "lfsFile":
                changes[item["value"]["path"]] = self.hub.blobs[item["value"]["oid"]]
        sha = self.hub.repositories[repo].commit(branch, changes)
        url = f"{self.hub.url}/{repo}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    more = {"lfs": lfs} if _mode(name) == "lfs" else {}
    return {"rfilename": name, "size": len(content), "blobId": "0" * 40, **more}


def _mode(name: str) -> str:
    return "lfs" if name.endswith((".safetensors", ".ckpt", ".pth")) else "regular"


def leftovers(cache: Path) -> list[str]:
    """What a failed download may not leave behind: partial files, and snapshots without their content."""
    if not cache.exists():
        return []
    partial = [path for path in cache.rglob("*") if path.name.endswith(".incomplete")]
    dangling = [path for path in cache.rglob("snapshots/*/*") if not path.exists()]
    return [str(path) for path in (*partial, *dangling)]
