"""How rows enter a table: the modes, and what belongs to each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logmark.errors import UserError

REPLACE, APPEND, UPSERT, COMPLETE = "replace", "append", "upsert", "complete"
MODES = (REPLACE, APPEND, UPSERT, COMPLETE)  # tables keep the index
WHERE = ("topic", "partition", "offset")
_WHERE_TYPES = {"topic": "string", "partition": "integer", "offset": "long"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the rows of a batch enter a table.

    replace     they replace the rows of the offsets that the batch reads
    append      they are added, as far as their offsets were never read before
    upsert      they replace the rows of the same `keys`, unless those have a greater `sequence`
    complete    they replace the whole table
    """

    mode: str = REPLACE
    keys: tuple[str, ...] = ()
    sequence: str | None = None
    delete_by: str | None = None
    merge_schema: bool = False

    @classmethod
    def of(
        cls,
        mode: str,
        *,
        keys: str | Sequence[str] | None = None,
        sequence: str | None = None,
        delete_by: str | None = None,
        merge_schema: bool = False,
    ) -> "Rules":
        """Return the rules as the user gave them; raises UserError if they contradict each other."""
        if mode not in MODES:
            raise UserError(f"There is no mode {mode!r} to write a table in. The modes are {', '.join(MODES)}.")
        names = tuple(name.strip() for name in keys.split(",")) if isinstance(keys, str) else tuple(keys or ())
        if mode == UPSERT and not names:
            raise UserError("Mode upsert needs keys: the columns that tell rows apart, such as keys=['user'].")
        given = {"keys": names, "sequence": sequence, "delete_by": delete_by}
        spare = [name for name, value in given.items() if value and mode != UPSERT]
        if spare:
            raise UserError(f"{' and '.join(spare)} goes with mode upsert and with no other; the mode here is {mode}.")
        return cls(mode=mode, keys=names, sequence=sequence, delete_by=delete_by, merge_schema=merge_schema)

    def check(self, columns: Mapping[str, Any]) -> None:
        """Raise UserError if rows of these columns cannot enter a table by these rules; types as in Spark's JSON."""
        if self.mode == REPLACE:
            wrong = [name for name in WHERE if columns.get(name) != _WHERE_TYPES[name]]
            if wrong:
                raise UserError(
                    f"The rows have no column {' and no column '.join(wrong)} of the type that the source gives. A "
                    "table needs topic, partition and offset to know which records a row came from. Select them "
                    "together with the others, or write the table in mode append, upsert or complete."
                )
        wanted = (*self.keys, *(name for name in (self.sequence, self.delete_by) if name))
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise UserError(
                f"The rows have no column {' and no column '.join(missing)}. Their columns are {', '.join(columns)}."
            )
        nested = [name for name in (*self.keys, self.sequence) if name and isinstance(columns[name], dict)]
        if nested:
            raise UserError(f"The column {nested[0]} has parts, and only a plain value can be a key or a sequence.")
        if self.delete_by in self.keys:
            raise UserError(f"The column {self.delete_by} is a key, so it cannot tell which rows are deleted.")

    def marks_deletes(self, columns: Mapping[str, Any]) -> bool:
        """Return whether the column `delete_by` only says which rows are deleted, and is no column of the table."""
        return self.delete_by is not None and columns.get(self.delete_by) == "boolean"


def is_located(columns: Mapping[str, Any]) -> bool:
    """Return whether rows of these columns say which record they came from."""
    return all(columns.get(name) == kind for name, kind in _WHERE_TYPES.items())
