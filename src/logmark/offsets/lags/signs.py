"""Signs of life of a group without members: the marks that a Logmark query renews as it commits."""

from collections.abc import Iterable

from logmark.offsets.marks import Mark


def sign_of_life(metadata: Iterable[str]) -> str:
    """A short text that changes whenever a query of ours commits somewhere in its group; empty without one."""
    marks = [mark for one in metadata if one and (mark := Mark.of(one))]
    if not marks:
        return ""
    newest = max(marks, key=lambda mark: (mark.generation, mark.query))
    return f"{newest.generation} {newest.query} {sum(mark.offset for mark in marks)}"


def began_ms(sign: str) -> int | None:
    """When the query behind a sign of life began its present generation, in milliseconds."""
    return int(sign.partition(" ")[0]) if sign else None
