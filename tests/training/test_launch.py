"""Two processes of one run: same losses, a dead process ends both, exit codes, and the checkpoint survives."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from di4c_cli.errors import UserError
from di4c_cli.training import launch as launching
from di4c_cli.training.launch import (
    common_exit_code,
    configured_processes,
    launch,
    launch_with_accelerate,
    preset,
    presets,
)
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.processes import check_processes
from di4c_cli.training.run import RunOptions, distill
from tests.helpers import float64_run
from tests.helpers.small_run import PATIENCE, arguments, run, small_recipe, started, wait_for_steps, weights


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_rows(out / "metrics.jsonl")]


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The two processes of a launcher, in order of rank."""
    deadline = time.monotonic() + PATIENCE
    found: dict[int, psutil.Process] = {}
    while len(found) < 2:
        assert time.monotonic() < deadline, "the launcher started no processes"
        time.sleep(0.05)
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.Error, KeyError):
                found[int(child.environ()["RANK"])] = child
    return [found[rank] for rank in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["di4c", "moment_matching"])
def test_launch_of_two_processes_gives_the_losses_of_one_in_float64(teacher: Path, tmp_path: Path, method: str) -> None:
    """The second method has two parts, whose gradients are averaged in turn."""
    steps = "20"
    float64_run.main(str(teacher), str(tmp_path / "one"), steps, method=method)
    # with two backward passes of one sample each, which must not change anything either
    command = [sys.executable, "-m", float64_run.__name__, str(teacher), str(tmp_path / "two"), steps, "1", method]
    assert launch(2, command, cpu=True) == 0
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 20
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-8


@pytest.mark.slow
def test_distill_with_two_processes_gives_the_step_of_one_in_float32(teacher: Path, tmp_path: Path) -> None:
    distill(small_recipe(teacher, training__iterations=1), tmp_path / "one", RunOptions())
    code, said = run(arguments(teacher, tmp_path / "two", "--processes", "2", iterations=1))
    assert code == 0, said
    assert abs(losses(tmp_path / "one")[0] - losses(tmp_path / "two")[0]) < 1e-5
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.slow
def test_launch_ends_the_run_when_a_process_dies_and_one_process_resumes_it(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    every = ("--set", "training.checkpoint_every=2")
    with started(arguments(teacher, out, *every, "--processes", "2", iterations=80)) as process:
        victim = children(process)[1]
        wait_for_steps(out, 5)
        victim.send_signal(signal.SIGKILL)
        began = time.monotonic()
        _, said = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 60
    assert process.returncode == 1
    assert "process 2 of 2 was killed by signal 9" in said.strip().splitlines()[-1]
    newest = sorted((out / "round-1" / "checkpoints").glob("step-*"))[-1]
    assert load_file(newest / "model.safetensors")
    assert torch.load(newest / "optimizer.pt", weights_only=True)["optimizer"]["state"]
    code, said = run(arguments(teacher, out, *every, iterations=80))
    assert code == 0, said
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == list(range(1, 81))


@pytest.mark.slow
def test_launch_forwards_ctrl_c_to_both_processes_once(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = arguments(teacher, out, "--processes", "2", iterations=2000)
    with started(args, start_new_session=True) as process:
        wait_for_steps(out, 2)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "Run the same command again" in said
    steps = len(read_rows(out / "metrics.jsonl"))
    assert (out / "round-1" / "checkpoints" / f"step-{steps:08d}" / "state.json").is_file()


def test_preset_finds_configurations_by_name() -> None:
    assert set(presets()) == {"ddp", "fsdp2", "deepspeed-zero2"}
    assert preset("ddp").is_file()
    with pytest.raises(UserError, match="Did you mean 'fsdp2'"):
        preset("fsdp")


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_launch_without_deepspeed_is_one_sentence(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("distributed_type: 'DEEPSPEED'\n")
    for config in (preset("deepspeed-zero2"), own):
        with pytest.raises(UserError, match=r"DeepSpeed is not installed.*pip install deepspeed"):
            launch_with_accelerate(config, None, [])


@pytest.mark.parametrize("text", ["num_processes: x\n", "num_machines: -1\n", "[1]\n", "a: 2024-02-31: b\n", "a: [\n"])
def test_configured_processes_rejects_odd_configurations(tmp_path: Path, text: str) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(text)
    with pytest.raises(UserError):
        configured_processes(config)


@pytest.mark.slow
def test_accelerate_explains_unknown_keys_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "own.yaml"
    config.write_text("unheard_of: 1\n")
    assert launch_with_accelerate(config, None, ["--version"]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said and "`accelerate launch` failed: ValueError" in said


def test_configured_processes_are_counted_per_machine(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text("num_machines: 4\nnum_processes: 32\n")
    assert configured_processes(config) == (32, 4)
    config.write_text("mixed_precision: 'no'\n")
    assert configured_processes(config) == (1, 1)
    assert configured_processes(preset("ddp")) == (2, 1)


@pytest.mark.parametrize(
    ("cores", "gpus", "device", "processes", "oversubscribe", "fine"),
    [
        (32, 0, None, 32, False, True),
        (32, 0, None, 33, False, False),
        (2, 0, "cpu", 16, True, True),
        (2, 0, "cpu", 17, True, False),
        (64, 8, None, 8, False, True),
        (64, 8, None, 9, True, False),
        (64, 8, "cpu", 64, False, True),
    ],
)
def test_check_processes_is_bounded_by_the_devices(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    gpus: int,
    device: str | None,
    processes: int,
    oversubscribe: bool,
    fine: bool,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if fine:
        check_processes(processes, device, oversubscribe)
        return
    with pytest.raises(UserError, match=f"{processes} processes are more than this machine's"):
        check_processes(processes, device, oversubscribe)


@pytest.mark.slow
def test_launch_passes_exit_code_2_and_one_sentence(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("not a run")
    code, said = run(arguments(teacher, tmp_path, "--processes", "2"))
    assert code == 2 and len(said.strip().splitlines()) == 1, said
    assert "not a di4c run" in said


@pytest.mark.slow
def test_launch_forwards_sigterm_and_ends_with_143(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(arguments(teacher, out, "--processes", "2", iterations=2000)) as process:
        wait_for_steps(out, 2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, said
    assert "Run the same command again" in said.strip().splitlines()[-1]


@pytest.mark.slow
def test_launched_processes_stop_when_the_launcher_is_killed(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(arguments(teacher, out, "--processes", "2", iterations=5000)) as process:
        ranks = children(process)
        wait_for_steps(out, 2)
        process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(ranks, timeout=PATIENCE)
        for child in alive:
            child.kill()
    assert not alive
    steps = len(read_rows(out / "metrics.jsonl"))
    assert (out / "round-1" / "checkpoints" / f"step-{steps:08d}" / "state.json").is_file()


@pytest.mark.slow
def test_launch_with_accelerate_stops_with_a_checkpoint(teacher: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "cpu.yaml", tmp_path / "run"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: 'no'\n"
        "num_machines: 1\nnum_processes: 1\nuse_cpu: true\n"
    )
    args = arguments(teacher, out, "--accelerate-config", str(config), iterations=5000)
    with started(args) as process:
        wait_for_steps(out, 2)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, said
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    steps = len(read_rows(out / "metrics.jsonl"))
    assert (out / "round-1" / "checkpoints" / f"step-{steps:08d}" / "state.json").is_file()


@pytest.mark.parametrize(
    ("codes", "first", "expected", "said"),
    [
        ((1, 1), 1, 1, ""),  # the main process has explained it
        ((2, 2), 1, 2, ""),
        ((1, -9), 1, 1, "process 2 of 2 was killed by signal 9"),
        ((-15, 3), 1, 3, "process 2 of 2 ended with exit code 3, so the run stopped (the last line)"),
        ((-9, 1), 0, 1, "process 1 of 2 was killed by signal 9"),
    ],
)
def test_common_exit_code_explains_what_the_main_process_has_not(
    codes: tuple[int, int], first: int, expected: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert common_exit_code(dict(enumerate(codes)), first, False, "the last line") == expected
    written = capsys.readouterr().err
    assert said in written and (said != "" or written == "")


def test_zombie_counts_as_ended() -> None:
    """In a container without an init process nobody buries the processes of a launcher that has died."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert process.is_running() and not launching._is_alive(process)
    child.wait()
    assert not launching._is_alive(process)
