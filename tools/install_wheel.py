"""Build the wheel, install it into an empty environment far from the checkout, and use it there.

    python -m tools.install_wheel
    python -m tools.install_wheel --python python3.12 --sdist

Takes minutes: torch is fetched from the package index. Each step prints a line; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIED = [
    ["--version"],
    ["recipes"],
    ["teachers"],
    ["sample", "--steps", "2", "-n", "4"],
    ["sample", "--teacher", "words", "--steps", "2"],
    ["distill", "--iterations", "2", "--batch", "2", "--out", "run"],
    ["eval", "--student", "run", "--steps", "1", "-n", "20"],
]


def build(kind: str, target: Path, python: str = sys.executable, source: Path = ROOT) -> Path:
    """`wheel` or `sdist` in `target`, with the build backend of this environment."""
    command = [python, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def step(title: str, command: list[str], where: Path) -> str:
    """One command in a clean environment; what it printed."""
    start = time.monotonic()
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)
    print(f"{title}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    if done.returncode:
        raise SystemExit(f"{title} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environment")
    parser.add_argument("--sdist", action="store_true", help="build the wheel from the unpacked sdist")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        source = ROOT
        if given.sdist:
            archive = build("sdist", work / "sdist")
            step("unpack", ["tar", "xzf", str(archive)], work)
            (source,) = work.glob("di4c-*")
        wheel = build("wheel", work / "dist", source=source)
        step("environment", [given.python, "-m", "venv", str(work / "venv")], work)
        bin_ = work / "venv" / "bin"
        pip = [str(bin_ / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        step("install", [*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], work)
        away = work / "away"
        away.mkdir()
        for words in TRIED:
            step(f"di4c {' '.join(words)}", [str(bin_ / "di4c"), *words], away)
        place = step("import", [str(bin_ / "python"), "-c", "import di4c_cli; print(di4c_cli.__file__)"], away)
        version = step("python", [str(bin_ / "python"), "-V"], away)
        assert str(ROOT) not in place, place
        print(json.dumps({"wheel_bytes": wheel.stat().st_size, "python": version.strip(), "commands": len(TRIED)}))


if __name__ == "__main__":
    main()
