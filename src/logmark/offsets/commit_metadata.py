"""The metadata that a Logmark query stores with its committed offsets, so that any tool can tell who committed them.

A query is no member of its group. Its metadata is therefore the only sign that it runs: see `activity_token`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

_PREFIX = "logmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """Who committed an offset: a query, its generation, and the offset itself.

    `is_stateful` says whether the query keeps state; None in metadata of earlier versions, or where nobody knows.
    `restored_ms` is when the query last restored its offsets after somebody had moved the group. Both tell something
    of the query, and not which commit it is: commits that differ only in them are the same.
    """

    query: str
    generation: int
    offset: int
    is_stateful: bool | None = field(default=None, compare=False)
    restored_ms: int | None = field(default=None, compare=False)

    def to_text(self) -> str:
        """Return the metadata of a commit, plain enough for any Kafka tool."""
        words = [_PREFIX, f"query={self.query}", f"generation={self.generation}", f"offset={self.offset}"]
        if self.is_stateful is not None:
            words.append(f"stateful={str(self.is_stateful).lower()}")
        if self.restored_ms is not None:
            words.append(f"restored={self.restored_ms}")
        return " ".join(words)

    @classmethod
    def parse(cls, metadata: str | None) -> "CommitMetadata | None":
        """Return what a query wrote into a commit's metadata; None if no Logmark query did."""
        words = (metadata or "").split(" ")
        if len(words) < 4 or words[0] != _PREFIX:
            return None
        # Words of later versions are not known, and do no harm.
        names = dict(word.partition("=")[::2] for word in words[1:])
        try:
            return cls(
                query=names["query"],
                generation=int(names["generation"]),
                offset=int(names["offset"]),
                is_stateful={"true": True, "false": False}.get(names.get("stateful", "")),
                restored_ms=int(names["restored"]) if "restored" in names else None,
            )
        except (KeyError, ValueError):
            return None


def activity_token(metadata: Iterable[str]) -> str:
    """Return a text that changes whenever a Logmark query commits in its group; empty without such a query."""
    known = [parsed for one in metadata if one and (parsed := CommitMetadata.parse(one))]
    if not known:
        return ""
    newest = max(known, key=lambda one: (one.generation, one.query))
    return f"{newest.generation} {newest.query} {sum(one.offset for one in known)}"


def generation_start_ms(token: str) -> int | None:
    """Return when the query behind an activity token started its present generation, in milliseconds."""
    return int(token.partition(" ")[0]) if token else None
