"""How the tool ends early, each with what it prints and where.

Ended
├── Unparsed      the command line is none: its message on standard error, exit code 1
├── Usage         a wrong use: the message and the help on standard error, exit code 1
└── Failed        anything else: a line that begins with `Error:` on standard output, and exit code 0
"""


class Ended(Exception):
    """The tool ends here; `message` is what it says, `hint` what we know beside it, for a person."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Unparsed(Ended):
    """The command line could not be read."""


class Usage(Ended):
    """The options do not go together, or one of them says something that cannot be."""


class Failed(Ended):
    """The command could not be done; like the tool it ends with 0, unless `--strict` is given."""
