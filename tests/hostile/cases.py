"""One case by its target, seed and number: made, run, judged; the same numbers give the same case."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import random
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import di4c_cli
from tests.hostile import damage, faithful, grammar, kills, oracle, sandbox, targets, tensors

TERMINAL_SHARE = 0.15
LIBRARIES = [
    *(
        "matplotlib.pyplot",
        "matplotlib.backends.backend_agg",
        "pyarrow.parquet",
        "accelerate",
        "tokenizers",
        "safetensors.torch",
    ),
    *("huggingface_hub.constants", "huggingface_hub.hf_api", "huggingface_hub.file_download", "huggingface_hub.errors"),
    *(
        "rich.table",
        "rich.progress",
        "rich.live",
        "PIL.Image",
        "PIL.PngImagePlugin",
        "scipy.linalg",
        "torch.distributed",
    ),
    *("torch._dynamo", "torch.utils._sympy.functions"),
    *("transformers", "transformers.models.gpt2.modeling_gpt2", "transformers.models.auto.modeling_auto"),
]


@dataclass
class Verdict:
    """How a case ended: refused, worked, stopped or failed, and with `problems` in what way."""

    target: str
    number: int
    ending: str
    story: str
    words: list[str]
    problems: list[str] = field(default_factory=list)
    code: int = 0
    said: str = ""
    seconds: float = 0.0
    peak: int = 0


def shares() -> dict[str, int]:
    """Targets with their shares of the cases."""
    return {name: share for name, (_, share) in targets.TARGETS.items()} | {"kill": 2, "faithful": 3}


def choose(number: int) -> str:
    """The target of a case: each appears in every few dozen cases as often as its share says."""
    order = [name for name, share in shares().items() for _ in range(share)]
    random.Random(0).shuffle(order)
    return order[number % len(order)]


def warm_up() -> None:
    """Import everything that a command may import, so that copies of this process need not."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
    for module in pkgutil.walk_packages(di4c_cli.__path__, "di4c_cli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    from di4c_cli.hub import client

    client()
    warnings.filterwarnings("ignore", "Duplicate name", UserWarning)  # of zip files that are made here
    gc.collect()
    gc.freeze()  # copies share what is not touched


def run(target: str, seed: int | str, number: int, root: Path, work: Path) -> Verdict:
    """One case in `work`, which is emptied before."""
    rng = random.Random(f"{seed}:{target}:{number}")
    place = fresh(work)
    if target == "faithful":
        story, found = faithful.check(place, rng)
        return Verdict(target, number, "failed" if found else "worked", story, [], found)
    if target == "kill":
        return kill(seed, number, root, place, rng)
    case = targets.TARGETS[target][0](root, place, rng)
    return judge(target, number, case, place, rng.random() < TERMINAL_SHARE)


def run_option(pair: tuple[grammar.Parameter, str], number: int, root: Path, work: Path) -> Verdict:
    """One cell of the grid of options and values."""
    place = fresh(work)
    case = targets.option_case(root, place, [pair], random.Random(number))
    return judge("options", number, case, place, False)


def judge(target: str, number: int, case: damage.Case, place: Path, terminal: bool) -> Verdict:
    """Run a case and compare what happened with the promises."""
    outcome = sandbox.run(case.words, place, case.stop_after, terminal, case.prepare)
    found = oracle.problems(outcome, case.replaced)
    if case.model and outcome.code == 0:
        found += tensors.problems(place / case.model)
    ending = "failed" if found else "stopped" if outcome.code in (130, 143) else "refused" if outcome.code else "worked"
    said = (outcome.stderr or outcome.stdout)[-1500:]
    return Verdict(
        *(target, number, ending, case.story, case.words, found, outcome.code, said),
        *(round(outcome.seconds, 2), outcome.peak),
    )


def kill(seed: int | str, number: int, root: Path, place: Path, rng: random.Random) -> Verdict:
    """A command killed at a change of a file, then run again."""
    plan = kills.plan(root, place, rng)
    found = kills.interrupt(plan, rng)
    verdict = judge("kill", number, damage.Case(plan.words, plan.story, replaced=("out",)), place, False)
    verdict.problems += [*found, *kills.after(plan, verdict.code)]
    verdict.ending = "failed" if verdict.problems else verdict.ending
    return verdict


def fresh(work: Path) -> Path:
    """An empty folder for a case; its parent may be written too, so that `..` leads nowhere else."""
    for path in (p for p in work.rglob("*") if p.is_dir() and not p.is_symlink()):
        path.chmod(0o755)
    shutil.rmtree(work, ignore_errors=True)
    place = work / "case"
    (place / "in").mkdir(parents=True)
    (place / "out").mkdir()
    return place
