"""`python -m logmark` is the command `logmark`."""

from logmark.cli.main import run

if __name__ == "__main__":
    run()
