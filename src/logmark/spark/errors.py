"""What ends a query, and how it is found again in the text that Spark makes of it.

Spark wraps an exception of a Python process into the traces of two languages; what is left of its class is the name.
"""

import re

from logmark.errors import UserError

_NAMED = re.compile(r"^logmark\.[\w.]*errors\.(\w+): (.+)$", re.MULTILINE)


class Superseded(UserError):
    """Another query has the group or the table now; this one has stopped and committed nothing since."""


class Refused(UserError):
    """A broker refuses something for good: another try would get the same answer."""


class Contended(UserError):
    """Others were faster again and again; nothing was written, and another try may succeed."""


class Interrupted(UserError):
    """A version that is being built was interrupted by what may pass; another try goes on with it."""


def sentence_in(failure: str) -> str | None:
    """The sentence for people in the text of a failed query."""
    found = named_in(failure)
    return found[1] if found is not None else None


def named_in(failure: str) -> tuple[str, str] | None:
    """The name of our exception in the text of a failed query, and its sentence."""
    found = _NAMED.findall(failure)
    return found[-1] if found else None
