"""What a Logmark query writes beside the offsets that it commits, so that anybody can tell who committed them."""

from dataclasses import dataclass

_MARK = "logmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Who committed an offset: written into the metadata of the commit."""

    query: str
    generation: int
    offset: int

    def to_metadata(self) -> str:
        """The metadata of a commit, plain enough to be read in any Kafka tool."""
        return f"{_MARK} query={self.query} generation={self.generation} offset={self.offset}"

    @classmethod
    def of(cls, metadata: str | None) -> "Mark | None":
        """The mark in a commit's metadata, if a query of ours wrote it."""
        words = (metadata or "").split(" ")
        if len(words) != 4 or words[0] != _MARK:
            return None
        names = dict(word.partition("=")[::2] for word in words[1:])
        try:
            return cls(query=names["query"], generation=int(names["generation"]), offset=int(names["offset"]))
        except (KeyError, ValueError):
            return None
