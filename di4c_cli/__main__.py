"""`python -m di4c_cli` is `di4c`."""

from di4c_cli import signals


def main() -> None:
    """Console-script entry point: signals are handled before anything slow is imported."""
    signals.install()
    from di4c_cli.cli.app import main as run  # takes a while

    try:
        run()
    finally:
        signals.leave()


if __name__ == "__main__":
    main()
