"""The Hub through its own client: files into its cache, folders up to it, and every failure as one sentence.

The client's settings are the user's: HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE mean what they always
mean. Nothing is ever fetched but the files named here, and no code among them is run.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from di4c_cli.errors import Di4cError, Failure, UserError

ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")
ATTEMPTS = 3
PAUSE = 0.5
TIMEOUT = 10.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Snapshot:
    """Files of one commit in the client's cache."""

    repo: str
    revision: str
    commit: str
    files: list[Path]

    @property
    def origin(self) -> dict[str, Any]:
        """For the model's history."""
        return {"source": "hub", "repo": self.repo, "branch": self.revision, "revision": self.commit}


def is_id(text: str) -> bool:
    """`user/name`, as the Hub spells it."""
    return ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def check_revision(revision: str) -> str:
    """A branch, tag or commit; anything that could leave the cache's folders is refused."""
    if REVISION.fullmatch(revision) is None or ".." in revision:
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
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return self._download(name)
        except Di4cError as error:
            absent = isinstance(error.__cause__, EntryNotFoundError)
            if absent and not isinstance(error.__cause__, LocalEntryNotFoundError):
                return None
            raise

    def _download(self, name: str) -> Path:
        from huggingface_hub import hf_hub_download

        if self.commit is None and not self.offline:
            self._probe(name)

        def call() -> str:
            commit = self.commit or self.branch
            return str(hf_hub_download(self.repo, name, revision=commit, local_files_only=self.offline))

        path = Path(attempt(call, f"{self.repo}@{self.branch}", name))
        parts = path.parts
        self.commit = parts[len(parts) - parts[::-1].index("snapshots")]
        self.files.append(path)
        return path

    def _probe(self, name: str) -> None:
        """Ask once whether the Hub can be reached: the download itself would insist for half a minute.

        If it cannot, what the cache holds is used instead.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self.repo, name, revision=self.branch)
        try:
            attempt(lambda: get_hf_file_metadata(url, timeout=TIMEOUT), f"{self.repo}@{self.branch}", name)
        except Failure:
            if not is_cached(self.repo, self.branch, [name]):
                raise
            self.offline = True

    def snapshot(self) -> Snapshot:
        """What has been fetched so far."""
        return Snapshot(self.repo, self.branch, self.commit or self.branch, list(self.files))


def blame(error: UserError, files: list[Path]) -> Di4cError:
    """The true cause of an unreadable model: a file of the cache that is not what the Hub has, or `error` itself.

    Large files are cached under their SHA-256, so that damage can be told; a damaged one is removed.
    """
    for path in files:
        blob = path.resolve()
        if re.fullmatch(r"[0-9a-f]{64}", blob.name) and blob.is_file() and _sha256(blob) != blob.name:
            blob.unlink()
            path.unlink(missing_ok=True)
            return Failure(
                f"{path.name} arrived damaged; it was removed from the cache.", "Run the command again."
            )
    return error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()


def is_cached(repo: str, revision: str, names: list[str]) -> bool:
    """Whether the cache holds one of `names`; asks no network."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(repo, name, revision=revision), str) for name in names)


def upload(
    repo: str, files: dict[str, Path | bytes], private: bool, revision: str | None, message: str
) -> str:
    """Put files into a repository in one commit, created with the branch if need be; the commit's address.

    The client takes `private` as a wish for new repositories only, so an existing public one is refused.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    branch = None if revision is None else check_revision(revision)
    api = HfApi()
    attempt(lambda: api.create_repo(repo, private=private or None, exist_ok=True), repo)
    if private and not attempt(lambda: api.repo_info(repo), repo).private:
        raise UserError(
            f"{repo} exists already and is public.",
            "Make it private in its settings on the Hub, choose another name, or leave --private out.",
        )

    def call() -> str:
        if branch is not None:
            api.create_branch(repo, branch=branch, exist_ok=True)
        added = [CommitOperationAdd(name, str(f) if isinstance(f, Path) else f) for name, f in files.items()]
        commit = api.create_commit(repo, added, commit_message=message, revision=branch)
        return str(commit.commit_url)

    return attempt(call, repo)


def endpoint() -> str:
    """Where the client looks for the Hub."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def attempt(call: Callable[[], Result], what: str, name: str = "") -> Result:
    """Run a client call; passing faults are tried again, lasting ones explained."""
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity_error()  # its own warnings would interleave with our one sentence
    if not sys.stderr.isatty():
        disable_progress_bars()
    for number in range(1, ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:  # the client's errors have no common ancestor
            explained = explain(error, what, name)
            if number == ATTEMPTS or not _passing(error):
                raise explained from error
            time.sleep(PAUSE * number)
    raise AssertionError("unreachable")


def _passing(error: BaseException) -> bool:
    """Faults that may be gone at the next try: a busy or failing server, a download cut short."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    cut = type(error).__name__ in ("ReadError", "ReadTimeout", "RemoteProtocolError")
    return cut or status in (429, 500, 502, 503, 504) or "Consistency check failed" in str(error)


def explain(error: BaseException, what: str, name: str = "") -> Di4cError:
    """One sentence for a failure of the client; `what` is the repository with its revision."""
    from huggingface_hub import errors

    file = f"{name} of {what}" if name else what
    token = "Check the name, and HF_TOKEN if it is private."
    rules: list[tuple[type[BaseException], Di4cError]] = [
        (
            errors.GatedRepoError,
            UserError(f"Access to {what} is gated.", "Accept its terms on the Hub and set HF_TOKEN."),
        ),
        (
            errors.RepositoryNotFoundError,
            UserError(f"The Hub has no repository {what.partition('@')[0]}.", token),
        ),
        (
            errors.RevisionNotFoundError,
            UserError(f"The Hub has no revision {what}.", "Check what stands after the @."),
        ),
        (errors.LocalEntryNotFoundError, _unreached(error, file)),
        (errors.LocalTokenNotFoundError, UserError(f"Writing to {what} needs a token.", "Set HF_TOKEN.")),
        (errors.EntryNotFoundError, UserError(f"The Hub has no file {file}.", "Check the repository.")),
        (
            errors.HFValidationError,
            UserError(f"'{what}' is not a name the Hub can have.", "Write user/name@revision."),
        ),
        (errors.OfflineModeIsEnabled, _unreached(error, file)),
        (errors.HfHubHTTPError, _refused(error, what)),
    ]
    for kind, sentence in rules:
        if isinstance(error, kind):
            return sentence
    if "Consistency check failed" in str(error):
        return Failure(f"{file} arrived incomplete.", "Run the command again.")
    if isinstance(error, OSError) and error.errno is not None:
        return Failure(
            f"{file} could not be stored ({error.strerror}).", "Free space or set HF_HOME to another folder."
        )
    return _unreached(error, file)


def _refused(error: BaseException, what: str) -> Di4cError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return UserError(
            f"The Hub refuses access to {what} ({status}).", "Set HF_TOKEN to a token that may do this."
        )
    if status == 429:
        return Failure(
            f"The Hub asks for a pause before {what} (too many requests).", "Try again in a few minutes."
        )
    return Failure(f"The Hub answered {what} with an error ({status}).", "Try again later.")


def _unreached(error: BaseException, file: str) -> Di4cError:
    from huggingface_hub import constants

    cause = error.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status is not None and cause is not None:
        return _refused(cause, file)
    offline = constants.HF_HUB_OFFLINE or "outgoing traffic has been disabled" in str(error)
    reason = "offline mode is on and it is not in the cache" if offline else f"no answer from {endpoint()}"
    return Failure(
        f"Could not fetch {file}: {reason}.",
        "Without a network the embedded models (tiny-digits and others), local paths and cached models work.",
    )
