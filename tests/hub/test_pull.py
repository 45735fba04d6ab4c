"""Teachers from the Hub: fetched once, from one commit; every way a Hub can fail is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from di4c_cli import hub as client
from di4c_cli import load
from di4c_cli.errors import Di4cError, Failure, UserError
from di4c_cli.teacher import recipe_for, remote
from tests.helpers.standin import BRANCH, GOLDEN, Fault, Run, StandIn, leftovers
from tests.teacher.test_masked_lms import shard

X = torch.full((2, 24), 97)


def test_load_fetches_a_name_once_and_records_its_commit(hub: StandIn, here: Path) -> None:
    model = load("sdtt-7")
    history = model.config.provenance
    commit = hub.repositories["jdeschena/sdtt"].branches[BRANCH]
    assert (history["repo"], history["branch"], history["revision"]) == ("jdeschena/sdtt", BRANCH, commit)
    assert model.name == "sdtt-7" and history["licence"] == "apache-2.0"
    assert len(hub.asked("GET", "/resolve/")) == 2
    again = load("sdtt-7")
    assert len(hub.asked("GET", "/resolve/")) == 2, "the second time nothing is downloaded"
    local = load(str(GOLDEN / "sdtt"))
    assert torch.equal(model.log_probs(X, 1.0), local.log_probs(X, 1.0))
    assert torch.equal(again.log_probs(X, 1.0), local.log_probs(X, 1.0))


def test_load_asks_for_the_named_files_only(hub: StandIn, here: Path, sdtt: dict[str, Path]) -> None:
    hub.add("some/model", {**sdtt, "modeling.py": b"raise SystemExit('executed')", "extra.bin": b"x"})
    load("some/model")
    asked = {path for _, path, _ in hub.requests}
    assert not any(name in path for path in asked for name in ("modeling.py", "extra.bin", "/api/"))


def test_load_takes_any_revision(hub: StandIn, here: Path, sdtt: dict[str, Path]) -> None:
    first = hub.add("some/model", dict(sdtt), "refs/tagged")
    assert load("some/model@refs/tagged").config.provenance["revision"] == first
    assert load(f"some/model@{first}").config.provenance["revision"] == first
    with pytest.raises(UserError, match="no revision some/model@main"):
        load("some/model")


@pytest.mark.slow
def test_load_works_offline_from_the_cache(hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("sdtt-7")
    asked = len(hub.requests)
    assert torch.isfinite(load("sdtt-7", offline=True).log_probs(X, 1.0)).all()
    assert len(hub.requests) == asked
    hub.faults.append(Fault("/", "503"))
    load("sdtt-7")
    with pytest.raises(Failure, match="offline mode is on and it is not in the cache"):
        load("sdtt-6", offline=True)


def test_load_maskgit_by_name_with_its_tokenizer(hub: StandIn, here: Path) -> None:
    """The transformer's file has had two names; the VQGAN comes along."""
    hub.add(
        "llvictorll/Maskgit-pytorch",
        {
            "pretrained_maskgit/MaskGIT/MaskGIT_ImageNet_256_FID_6_80.pth": GOLDEN / "maskgit/MaskGIT_ImageNet_256.pth",
            "pretrained_maskgit/VQGAN/last.ckpt": GOLDEN / "vqgan" / "last.ckpt",
            "pretrained_maskgit/VQGAN/model.yaml": GOLDEN / "vqgan" / "model.yaml",
        },
    )
    model = load("maskgit-256", heads=4)
    assert model.config.labels == 7 and model.decode(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, 16, 3)


FAULTS: list[tuple[str, Fault, type[Di4cError], str]] = [
    ("401", Fault("/resolve/", "401"), UserError, "no repository|refuses access"),
    ("gated", Fault("/resolve/", "403", code="GatedRepo"), UserError, "gated"),
    ("403", Fault("/resolve/", "403"), UserError, "refuses access"),
    ("no repository", Fault("/resolve/", "404", code="RepoNotFound"), UserError, "no repository jdeschena/sdtt"),
    ("no revision", Fault("/resolve/", "404", code="RevisionNotFound"), UserError, "no revision"),
    ("no file", Fault("/resolve/", "404", code="EntryNotFound"), UserError, "no file config.json"),
    ("429", Fault("/resolve/", "429"), Failure, "too many requests"),
    ("500", Fault("/resolve/", "500"), Failure, "error .500"),
    ("wrong size", Fault("model.safetensors", "short", method="GET"), Failure, "arrived incomplete"),
    ("500 on the file", Fault("model.safetensors", "500", method="GET"), Failure, "error .500"),
    ("garbage", Fault("model.safetensors", "garbage", method="GET"), Failure, "arrived damaged"),
]


@pytest.mark.parametrize(("name", "fault", "kind", "told"), FAULTS, ids=[case[0] for case in FAULTS])
def test_load_explains_lasting_faults(
    hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: Fault, kind: type[Di4cError], told: str
) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    hub.faults.append(Fault(**vars(fault)))
    with pytest.raises(kind, match=told) as caught:
        load("sdtt-7")
    assert "\n" not in str(caught.value) and caught.value.hint
    assert leftovers(here) == []
    hub.faults.clear()
    assert torch.isfinite(load("sdtt-7").log_probs(X, 1.0)).all(), "afterwards all is well"


PASSING = [
    Fault("/resolve/", "500", times=1),
    Fault("/resolve/", "503", times=2),
    Fault("/resolve/", "429", times=1),
    Fault("model.safetensors", "500", times=1, method="GET"),
    Fault("model.safetensors", "short", times=1, method="GET"),
    Fault("model.safetensors", "slow", times=1, method="GET"),
]


@pytest.mark.parametrize("fault", PASSING, ids=[f"{fault.kind} x{fault.times}" for fault in PASSING])
def test_load_retries_passing_faults(hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    hub.faults.append(Fault(**vars(fault)))
    model = load("sdtt-7")
    assert torch.equal(model.log_probs(X, 1.0), load(str(GOLDEN / "sdtt")).log_probs(X, 1.0))


@pytest.mark.slow
def test_load_resumes_a_cut_download(hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**14)  # the default is larger than the whole file
    hub.faults.append(Fault("model.safetensors", "cut", times=1, method="GET"))
    model = load("sdtt-7")
    ranges = hub.asked("GET", "model.safetensors")
    half = (GOLDEN / "sdtt" / "model.safetensors").stat().st_size // 2
    assert ranges[0] == "" and ranges[1].startswith("bytes=") and int(ranges[1][6:-1]) in range(1, half + 1)
    assert torch.equal(model.log_probs(X, 1.0), load(str(GOLDEN / "sdtt")).log_probs(X, 1.0))


def test_load_explains_a_cache_that_cannot_be_written(
    hub: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    here.parent.parent.mkdir(parents=True, exist_ok=True)
    here.parent.write_text("a file where the cache belongs")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here))
    with pytest.raises(Failure, match="could not be stored"):
        load("sdtt-7")


def test_load_needs_the_token_for_a_private_repository(
    hub: StandIn, here: Path, sdtt: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/secret", dict(sdtt))
    hub.repositories["me/secret"].private = True
    load("me/secret")
    hub.add("me/other", dict(sdtt))
    hub.repositories["me/other"].private = True
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="HF_TOKEN"):
        load("me/other")


@pytest.mark.parametrize("network", [True, False])
def test_a_mistyped_folder_is_named_before_the_hub(
    hub: StandIn, here: Path, network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has the form of a Hub id may have been meant as a path; a name of the registry or a revision was not."""
    if not network:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = r"^There is no folder or file runs/nothing here\. (The Hub has no repository|Could not fetch)"
    for call in (load, recipe_for, lambda name: remote(name).reach()):  # type: ignore[union-attr]
        with pytest.raises(Di4cError, match=told) as caught:
            call("runs/nothing")
        assert caught.value.exit_code == (2 if network else 1)
    for name in ("runs/nothing@main", "mdlm"):
        with pytest.raises(Di4cError, match=r"^(The Hub has no repository|Could not fetch)"):
            load(name)


def test_load_rejects_a_codec_file_outside_the_repository(hub: StandIn, here: Path, tmp_path: Path) -> None:
    """`config.json` of a stranger names a file outside its repository."""
    from di4c_cli.teacher.convert import convert

    convert(str(GOLDEN / "sdtt"), tmp_path / "out")
    tree = json.loads((tmp_path / "out" / "config.json").read_text())
    tree["codec"] = {"type": "text", "file": "../../../../etc/passwd"}
    weights = tmp_path / "out" / "model.safetensors"
    hub.add("evil/model", {"config.json": json.dumps(tree).encode(), "model.safetensors": weights})
    with pytest.raises(UserError, match="not a plain name"):
        load("evil/model")


@pytest.mark.slow
def test_commands_explain_a_missing_network(run: Run, tmp_path: Path) -> None:
    """One sentence: what could not be reached, and what works; fast, and nothing in the cache."""
    done = run("convert", "sdtt-7", "out", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "jdeschena/sdtt@baselines_kld_step_70000" in done.stderr and "fashion" in done.stderr
    assert not (tmp_path / "out").exists()
    cache = tmp_path / "home"
    assert not cache.exists() or not [path for path in cache.rglob("*") if path.is_file()]
    offline = run("convert", "sdtt-7", "out", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1 and "offline mode is on" in offline.stderr


def test_load_offline_does_not_fetch_the_tokenizer_of_another_teacher(hub: StandIn, here: Path) -> None:
    from di4c_cli.teacher import read

    before = len(hub.requests)
    with pytest.raises(Failure, match="not in the cache"):
        read(str(GOLDEN / "maskgit"), heads=4, vqgan="maskgit-256", offline=True)
    assert len(hub.requests) == before


def weights_fetched(hub: StandIn) -> list[str]:
    return [path for method, path, _ in hub.requests if method == "GET" and "model.safetensors" in path]


def test_dry_run_of_a_hub_id_fetches_no_weights(hub: StandIn, here: Path, tmp_path: Path) -> None:
    from di4c_cli import recipe_file
    from di4c_cli.teacher.convert import convert
    from di4c_cli.training.dry_run import preview

    convert(str(GOLDEN / "sdtt"), tmp_path / "own")
    files = {name: tmp_path / "own" / name for name in ("config.json", "model.safetensors")}
    hub.add("me/model", dict(files))
    hub.add("me/foreign", {name: GOLDEN / "sdtt" / name for name in files})
    for name in ("me/model", "me/foreign"):
        assert recipe_for(name) == "sdtt-7"
        recipe = recipe_file.read("sdtt-7", {"teacher": name, "data": "teacher"})
        found = preview(recipe, tmp_path / "run", 1, "cpu", measure=False)
        assert found.problems == [] and found.teacher.startswith(f"would be fetched: Hub {name}@main, ")
        assert bool(found.parameters) == (name == "me/model")
    assert weights_fetched(hub) == []


def test_dry_run_asks_for_the_named_revision(hub: StandIn, here: Path, tmp_path: Path) -> None:
    from di4c_cli import recipe_file
    from di4c_cli.training.dry_run import preview

    load("sdtt-7")
    recipe = recipe_file.read("sdtt-7", {"teacher": "sdtt-7@other", "data": "teacher"})
    found = preview(recipe, tmp_path / "run", 1, "cpu", measure=False)
    assert found.exit_code == 2 and "no revision" in found.teacher and "@other" in found.teacher


@pytest.mark.parametrize("name", ["../config.json", "..", "", ".netrc", "a/b.safetensors", "a\0b", "/etc/passwd"])
def test_load_asks_for_no_shard_outside_the_repository(hub: StandIn, here: Path, tmp_path: Path, name: str) -> None:
    files: dict[str, Path | bytes] = {file: GOLDEN / "llada" / file for file in ("config.json", "tokenizer.json")}
    index = json.dumps({"weight_map": {"model.wte.weight": name}}).encode()
    hub.add("evil/model", files | {"model.safetensors.index.json": index})
    with pytest.raises(UserError, match="not a plain name"):
        load("evil/model")


def test_load_fetches_all_shards_and_the_tokenizer(hub: StandIn, here: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(GOLDEN / "llada", tmp_path / "llada"))
    shard(copy)
    names = [path.name for path in copy.iterdir() if path.name not in ("io.safetensors", "README.md")]
    hub.add("me/sharded", {name: copy / name for name in names} | {"modeling_llada.py": b"raise SystemExit"})
    hub.add("GSAI-ML/LLaDA-8B-Base", {name: copy / name for name in names})
    for ref in ("me/sharded", "llada-8b"):
        model = load(ref)
        assert model.decode(torch.tensor([[33, 0]])) == ["w34 w0"] and model.denoiser.symbols == 35
    assert not any("modeling" in path for _, path, _ in hub.requests)
    assert load("me/sharded", offline=True).name == "sharded"
