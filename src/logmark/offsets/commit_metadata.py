"""The metadata that a Logmark query stores with its committed offsets, so that any tool can tell who committed them.

A query is no member of its group. Its metadata is therefore the only sign that it runs: see `activity_token`, and
`spark/source/ownership.py` for the heartbeat.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

_PREFIX = "logmark"


class QueryState(StrEnum):
    """What a query has said about itself with its last commit."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """When a query committed, by the clock of its driver, and which process it was.

    Queries with the same `owner`, such as those of one pipeline, never run at the same time; it may be empty.
    """

    at_ms: int
    state: QueryState = QueryState.RUNNING
    process: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """Who committed an offset: a query, its generation, and the offset itself.

    `is_stateful` says whether the query keeps state; None in metadata of earlier versions, or where nobody knows.
    `restored_ms` is when the query last restored its offsets after somebody had moved the group. These two and the
    heartbeat tell something of the query, and not which commit it is: commits that differ only in them are the same.
    """

    query: str
    generation: int
    offset: int
    heartbeat: Heartbeat | None = field(default=None, compare=False)
    is_stateful: bool | None = field(default=None, compare=False)
    restored_ms: int | None = field(default=None, compare=False)

    def to_text(self) -> str:
        """Return the metadata of a commit, plain enough for any Kafka tool."""
        words = [self.identity()]
        if self.is_stateful is not None:
            words.append(f"stateful={str(self.is_stateful).lower()}")
        if self.restored_ms is not None:
            words.append(f"restored={self.restored_ms}")
        beat = self.heartbeat
        if beat is not None:
            others = {"process": beat.process, "owner": beat.owner}
            words += [f"heartbeat={beat.at_ms}", f"state={beat.state}"]
            words += [f"{name}={value}" for name, value in others.items() if value]
        return " ".join(words)

    def identity(self) -> str:
        """Return the metadata without what it tells of the query besides."""
        return f"{_PREFIX} query={self.query} generation={self.generation} offset={self.offset}"

    @classmethod
    def parse(cls, metadata: str | None) -> "CommitMetadata | None":
        """Return what a query wrote into a commit's metadata; None if no Logmark query did.

        Words that are not known are left out: a later version may write more.
        """
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
                heartbeat=_parse_heartbeat(names),
                is_stateful={"true": True, "false": False}.get(names.get("stateful", "")),
                restored_ms=int(names["restored"]) if "restored" in names else None,
            )
        except (KeyError, ValueError):
            return None


def _parse_heartbeat(names: dict[str, str]) -> Heartbeat | None:
    """Return the heartbeat, None in the metadata of versions that wrote none."""
    try:
        return Heartbeat(
            at_ms=int(names["heartbeat"]),
            state=QueryState(names["state"]),
            process=names.get("process", ""),
            owner=names.get("owner", ""),
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
