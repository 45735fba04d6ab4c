"""An endpoint that stalls, drips, never ends, leads out of the cache or drops what it accepts: one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import hub as client
from di4c_cli import hub_limits, load
from di4c_cli.errors import Failure
from di4c_cli.metric.judge import load_judge
from di4c_cli.publish import publish
from di4c_cli.teacher.convert import convert
from tests.helpers.standin import GOLDEN, Fault, StandIn, leftovers

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of tests: a server on this machine that sends nothing for half a second is stuck."""
    monkeypatch.setattr(hub_limits, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("/resolve/", "silent"), "no progress: .* bytes in"),
        (Fault("/resolve/", "drip headers"), "bytes in"),
        (Fault(WEIGHTS, "silent", method="GET"), "bytes in"),
        (Fault(WEIGHTS, "drip", method="GET"), "bytes in"),
        (Fault(WEIGHTS, "drip headers", method="GET"), "bytes in"),
        (Fault(WEIGHTS, "endless", method="GET"), "more than the .* bytes that it announced"),
        (Fault(WEIGHTS, "compressed", method="GET"), "compressed its answer"),
        (Fault("/resolve/", "etag"), "impossible ETag"),
        (Fault("/resolve/", "commit"), "impossible X-Repo-Commit"),
    ],
    ids=lambda value: f"{value.kind} {value.path}" if isinstance(value, Fault) else "",
)
def test_load_ends_with_a_sentence(hub: StandIn, here: Path, tmp_path: Path, fault: Fault, told: str) -> None:
    hub.faults.append(Fault(**vars(fault)))
    with pytest.raises(Failure, match=told) as caught:
        load("sdtt-7")
    assert "\n" not in str(caught.value) and caught.value.hint
    assert [path.name for path in tmp_path.rglob("*") if "outside" in path.name] == []
    hub.faults.clear()
    load("sdtt-7")
    assert leftovers(here) == []


def test_meter_counts_over_resumed_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a few bytes per connection makes the client resume for ever; the meter goes on counting."""
    monkeypatch.setattr(hub_limits, "PATIENCE_SECONDS", 60.0)
    request = type("Request", (), {"extensions": {}, "headers": {"Range": "bytes=8-"}, "method": "GET"})()
    hub_limits.meter.reset()
    with pytest.raises(Failure, match="48 bytes in 60 seconds"):
        for _ in range(6):
            hub_limits._on_request(request)
            hub_limits.meter.add(10.0, 8)
    hub_limits.meter.reset()


def test_meter_allows_days_of_steady_progress() -> None:
    """A terabyte at 10 MB/s takes 28 hours; a listing may take a while to begin."""
    hub_limits.meter.reset()
    for _ in range(100_000):
        hub_limits.meter.add(0.1, 10**6)
    hub_limits.meter.reset()
    hub_limits.meter.add(0.4, 0)


def test_load_does_not_wait_as_long_as_the_server_asks(hub: StandIn, here: Path) -> None:
    hub.faults.append(Fault("/resolve/", "wait a day", times=1))
    load("sdtt-7")


@pytest.mark.parametrize("path", ["/commit/", "/preupload/", "/lfs/", "/api/repos/create"])
def test_push_ends_when_the_server_is_silent(hub: StandIn, here: Path, tmp_path: Path, path: str) -> None:
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    hub.faults.append(Fault(path, "silent"))
    with pytest.raises(Failure):
        publish(tmp_path / "out", "me/model")
    hub.faults.clear()
    publish(tmp_path / "out", "me/model")


def test_push_notices_that_the_server_ignored_the_files(hub: StandIn, here: Path, tmp_path: Path) -> None:
    """Also when an older push has left files of the same names."""
    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    hub.faults.append(Fault("/preupload/", "ignore"))
    with pytest.raises(Failure, match=r"reports success, but me/model lacks config\.json"):
        publish(tmp_path / "out", "me/model")
    hub.faults.clear()
    publish(tmp_path / "out", "me/model")
    convert(str(GOLDEN / "sdtt_di4c_student"), tmp_path / "other")
    hub.faults.append(Fault("/preupload/", "ignore"))
    with pytest.raises(Failure, match="another content of"):
        publish(tmp_path / "other", "me/model")


def test_judge_without_a_network_is_explained_at_once(
    hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request instead of a minute of attempts."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    with pytest.raises(Failure, match=r"Could not fetch config\.json of gpt2-large@main"):
        load_judge("gpt2-large")
