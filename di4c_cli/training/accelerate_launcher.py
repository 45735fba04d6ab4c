"""`accelerate launch`, with an error of its own as one sentence: it prints a traceback for a wrong configuration."""

from __future__ import annotations

import signal
import sys
import tempfile

from di4c_cli.printable import printable
from di4c_cli.signals import StoppedBySignal


def main() -> None:
    """Run it with the arguments of this process."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # torch's launcher sets its own
    try:
        with tempfile.TemporaryDirectory(prefix="di4c-", ignore_cleanup_errors=True) as folder:
            tempfile.tempdir = folder  # torch's launcher leaves empty folders of logs behind
            from accelerate.commands.launch import main as launch  # takes seconds, and may lack a package

            launch()
    except Exception as error:
        if hasattr(error, "sigval"):  # torch's SignalException
            print(f"di4c: {StoppedBySignal(error.sigval)}", file=sys.stderr, flush=True)
            sys.exit(128 + error.sigval)
        lines = str(error).strip().splitlines() or [""]
        problem = printable(f"{type(error).__name__}: {lines[0]}").rstrip(".")
        advice = "Check the file of --accelerate-config."
        print(f"di4c: `accelerate launch` failed: {problem}. {advice}", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
