"""Which records of a range are copied: by key, by header and by a text in the value."""

from dataclasses import dataclass

from logmark.offsets.bounded_replay.copy_headers import Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records that are wanted: one of the keys, every header, and the text in the value; nothing named is all."""

    keys: frozenset[bytes] = frozenset()
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    value_contains: bytes | None = None

    @property
    def is_everything(self) -> bool:
        return not self.keys and not self.headers and self.value_contains is None

    def takes(self, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        """Whether a record is wanted; a header without a value in the selection only has to be there."""
        if self.keys and key not in self.keys:
            return False
        for name, wanted in self.headers:
            if not any(found == name and wanted in (None, content) for found, content in headers):
                return False
        return self.value_contains is None or (value is not None and self.value_contains in value)
