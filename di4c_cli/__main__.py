"""`python -m di4c_cli` is `di4c`."""

from di4c_cli.cli.app import main

if __name__ == "__main__":
    main()
