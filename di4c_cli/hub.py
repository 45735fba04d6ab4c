"""The Hugging Face Hub through its own client: downloads into its cache, uploads, and failures as one sentence.

The client reads HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE as usual. Only files that are named here are
fetched, and no code among them is run.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from di4c_cli.errors import Di4cError, Failure, UserError
from di4c_cli.files import real_path
from di4c_cli.hub_limits import limit_client

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
REVISION_NAME = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")
MAX_ATTEMPTS = 3
PAUSE_SECONDS = 0.5
TIMEOUT_SECONDS = 10.0
RETRIED_STATUSES = (429, 500, 502, 503, 504)

Result = TypeVar("Result")


@lru_cache(maxsize=1)
def client() -> Any:
    """The Hub's client, with limits on what an endpoint can do to it."""
    # imported when first needed: `--help` must not wait for it
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    limit_client(huggingface_hub)
    return huggingface_hub


def is_id(text: str) -> bool:
    """`user/name`, as the Hub spells it."""
    return HUB_ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def check_revision(revision: str) -> str:
    """A branch, tag or commit; a name that could lead out of the cache's folders is rejected."""
    if REVISION_NAME.fullmatch(revision) is None or ".." in revision:
        raise UserError(f"'{revision}' cannot be a revision.", "Give a branch, tag or commit after the @.")
    return revision


class Fetcher:
    """Fetches files of one repository; after the first one, all come from the same commit."""

    def __init__(self, repo: str, revision: str | None = None, offline: bool = False) -> None:
        self.repo, self.branch, self.offline = repo, check_revision(revision or "main"), offline
        self.commit: str | None = None
        self.files: list[Path] = []

    def get(self, *names: str) -> Path:
        """The first of `names` that the repository has, from the cache if it is there."""
        for name in names[:-1]:
            found = self.find(name)
            if found is not None:
                return found
        return self._download(names[-1])

    def find(self, name: str) -> Path | None:
        """A file that may be absent."""
        try:
            return self._download(name)
        except Di4cError as error:
            errors, cause = client().errors, error.__cause__
            absent = isinstance(cause, errors.EntryNotFoundError)
            if absent and not isinstance(cause, errors.LocalEntryNotFoundError):
                return None
            raise

    def maybe(self, name: str) -> Path | None:
        """As `find`; without the Hub the cache decides."""
        known = not self.offline or is_cached(self.repo, self.commit or self.branch, [name])
        return self.find(name) if known else None

    def _download(self, name: str) -> Path:
        if self.commit is None and not self.offline:
            self._probe(name)

        def call() -> str:
            commit = self.commit or self.branch
            download = client().hf_hub_download
            return str(download(self.repo, name, revision=commit, local_files_only=self.offline))

        path = Path(attempt(call, f"{self.repo}@{self.branch}", name))
        parts = path.parts
        self.commit = parts[len(parts) - parts[::-1].index("snapshots")]
        self.files.append(path)
        return path

    def _probe(self, name: str) -> None:
        """Ask once whether the Hub can be reached, because the download itself would retry for half a minute.

        If it cannot be reached, the files of the cache are used.
        """
        url = client().hf_hub_url(self.repo, name, revision=self.branch)
        call = partial(client().get_hf_file_metadata, url, timeout=TIMEOUT_SECONDS)
        try:
            attempt(call, f"{self.repo}@{self.branch}", name)
        except Failure:
            if not is_cached(self.repo, self.branch, [name]):
                raise
            self.offline = True

    def reachable(self, name: str) -> bool:
        """Whether the Hub answers; if it does not, a cached file allows to go on without it."""
        if not self.offline and not client().constants.HF_HUB_OFFLINE:
            self._probe(name)
        return not self.offline

    @property
    def origin(self) -> dict[str, Any]:
        """The source of the fetched files, for a model's provenance."""
        commit = self.commit or self.branch
        return {"source": "hub", "repo": self.repo, "branch": self.branch, "revision": commit}


def damage_or(error: UserError, files: list[Path]) -> Di4cError:
    """The cause of an unreadable model: a damaged file of the cache, which is removed, or `error` itself.

    The client caches large files under their SHA-256, which reveals damage.
    """
    for path in files:
        blob = real_path(path)
        if not (re.fullmatch(r"[0-9a-f]{64}", blob.name) and blob.is_file()):
            continue
        with blob.open("rb") as handle:
            found = client().utils.sha.sha_fileobj(handle).hex()
        if found != blob.name:
            blob.unlink()
            path.unlink(missing_ok=True)
            problem = f"{path.name} arrived damaged; it was removed from the cache."
            return Failure(problem, "Run the command again.")
    return error


def is_cached(repo: str, revision: str, names: list[str]) -> bool:
    """Whether the cache holds one of `names`, without network access."""
    look = client().try_to_load_from_cache
    return any(isinstance(look(repo, name, revision=revision), str) for name in names)


def upload(repo: str, files: dict[str, Path | bytes], private: bool, revision: str | None, message: str) -> str:
    """Put files into a repository in one commit; creates the repository and the branch, returns the commit's URL.

    The client applies `private` to new repositories only, so an existing public one is rejected here.
    """
    branch = None if revision is None else check_revision(revision)
    api, add = client().HfApi(), client().CommitOperationAdd
    attempt(lambda: api.create_repo(repo, private=private or None, exist_ok=True), repo)
    if private and not attempt(lambda: api.repo_info(repo), repo).private:
        hint = "Make it private in its settings on the Hub, choose another name, or leave --private out."
        raise UserError(f"{repo} exists already and is public.", hint)

    added = [add(name, str(f) if isinstance(f, Path) else f) for name, f in files.items()]

    def call() -> Any:
        if branch is not None:
            api.create_branch(repo, branch=branch, exist_ok=True)
        return api.create_commit(repo, added, commit_message=message, revision=branch)

    commit = attempt(call, repo)
    _check_commit(attempt(partial(api.repo_info, repo, revision=commit.oid, files_metadata=True), repo), added, repo)
    return str(commit.commit_url)


def _check_commit(info: Any, added: list[Any], repo: str) -> None:
    """Raise `Failure` unless the commit holds the files: a server can accept a commit and ignore what is in it."""
    stored = {file.rfilename: file for file in info.siblings or []}
    for operation in added:
        file, sent = stored.get(operation.path_in_repo), operation.upload_info
        size, lfs = getattr(file, "size", None), getattr(file, "lfs", None)
        wrong = size not in (None, sent.size) or (lfs is not None and lfs["sha256"] != sent.sha256.hex())
        if file is None or wrong:
            state = "lacks" if file is None else "has another content of"
            raise Failure(
                f"The Hub reports success, but {repo} {state} {operation.path_in_repo}.",
                "Check the repository's rules for ignored files, and push again.",
            )


def attempt(call: Callable[[], Result], what: str, name: str = "") -> Result:
    """Run a client call; passing faults are retried, lasting ones explained."""
    utils = client().utils
    utils.logging.set_verbosity_error()  # its own warnings would interleave with our one sentence
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    for number in range(1, MAX_ATTEMPTS + 1):
        try:
            return call()
        except Di4cError:
            raise
        except Exception as error:  # the client's errors have no common ancestor
            explained = explain(error, what, name)
            # gone at the next attempt, perhaps: a busy or failing server, an incomplete download
            status = getattr(getattr(error, "response", None), "status_code", None)
            cut = type(error).__name__ in ("ReadError", "ReadTimeout", "RemoteProtocolError")
            passing = cut or status in RETRIED_STATUSES or "Consistency check failed" in str(error)
            if number == MAX_ATTEMPTS or not passing:
                raise explained from error
            time.sleep(PAUSE_SECONDS * number)
    raise AssertionError("unreachable")


def explain(error: BaseException, what: str, name: str = "") -> Di4cError:
    """One sentence for a failure of the client; `what` is the repository with its revision."""
    errors, file = client().errors, f"{name} of {what}" if name else what
    mistakes: list[tuple[type[BaseException], str, str]] = [
        (errors.GatedRepoError, f"Access to {what} is gated.", "Accept its terms on the Hub and set HF_TOKEN."),
        (
            errors.RepositoryNotFoundError,
            f"The Hub has no repository {what.partition('@')[0]}.",
            "Check the name, and HF_TOKEN if it is private.",
        ),
        (errors.RevisionNotFoundError, f"The Hub has no revision {what}.", "Check the revision after the @."),
        (errors.LocalTokenNotFoundError, f"Writing to {what} needs a token.", "Set HF_TOKEN."),
        (errors.EntryNotFoundError, f"The Hub has no file {file}.", "Check the repository."),
        (errors.HFValidationError, f"'{what}' is not a valid Hub name.", "Write user/name@revision."),
    ]
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return _unreached(error, file)
    for kind, sentence, hint in mistakes:
        if isinstance(error, kind):
            return UserError(sentence, hint)
    if isinstance(error, errors.HfHubHTTPError):
        return _refused(error, what)
    if "Consistency check failed" in str(error):
        return Failure(f"{file} arrived incomplete.", "Run the command again.")
    if isinstance(error, OSError) and error.errno is not None:
        hint = "Free space or set HF_HOME to another folder."
        return Failure(f"{file} could not be stored ({error.strerror}).", hint)
    return _unreached(error, file)


def _refused(error: BaseException, what: str) -> Di4cError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        hint = "Set HF_TOKEN to a token with the right permissions."
        return UserError(f"The Hub refuses access to {what} ({status}).", hint)
    if status == 429:
        return Failure(f"The Hub limits access to {what} (too many requests).", "Try again in a few minutes.")
    return Failure(f"The Hub answered {what} with an error ({status}).", "Try again later.")


def _unreached(error: BaseException, file: str) -> Di4cError:
    cause = error.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status is not None and cause is not None:
        return _refused(cause, file)
    constants = client().constants
    offline = constants.HF_HUB_OFFLINE or "outgoing traffic has been disabled" in str(error)
    reason = "offline mode is on and it is not in the cache" if offline else f"no answer from {constants.ENDPOINT}"
    hint = "Without a network the embedded models (fashion and others), local paths and cached models work."
    return Failure(f"Could not fetch {file}: {reason}.", hint)
