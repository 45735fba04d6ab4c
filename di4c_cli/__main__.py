"""The `di4c` command, also as `python -m di4c_cli`. Everything that may be missing is imported behind the guard."""

from __future__ import annotations

import sys

from di4c_cli import signals
from di4c_cli.cli import guard


def main() -> None:
    """Console-script entry point: signals are handled before anything slow is imported."""
    signals.install()
    guard.prepare_process()
    try:
        with guard.edge():
            from di4c_cli.cli.app import app  # imports packages that a damaged installation lacks

            app()
    except SystemExit as end:
        sys.exit(guard.flush_output() or end.code)
    finally:
        signals.leave()


if __name__ == "__main__":
    main()
