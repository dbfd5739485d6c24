"""The command `logmark`, also as `python -m logmark`.

The signals of a broker are handled before the other modules are imported, which takes half a second.
"""

import sys

from logmark.cli.stop_signals import stop_signals

INTERRUPTED = 130


def run() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["serve"]:
        stop_signals.install()
    try:
        # Only here: the signals of `serve` are handled first, and Ctrl-C during the imports ends quietly.
        from logmark.cli.main import run as run_command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run_command()


if __name__ == "__main__":
    run()
