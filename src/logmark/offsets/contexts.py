"""Named clusters in the user's settings file, so that nobody types addresses and passwords.

current = "prod"

[contexts.prod]
bootstrap_servers = "kafka-1:9092,kafka-2:9092"
command_config = "prod.properties"     # beside this file, or an absolute path
read_only = true

[contexts.prod.properties]             # the same properties without a file
"security.protocol" = "SASL_SSL"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logmark import properties
from logmark.errors import UserError
from logmark.offsets.errors import ContextNotFound
from logmark.offsets.suggestions import did_you_mean

_FIELDS = {"bootstrap_servers": str, "command_config": str, "read_only": bool, "properties": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A cluster and how to reach it."""

    name: str
    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Every context of a settings file, and the one that is used when none is named."""

    path: Path
    known: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return the context of this name; raises ContextNotFound if there is none."""
        if name not in self.known:
            raise ContextNotFound(
                f"There is no context {name} in {self.path}.{did_you_mean(name, self.known)} Nothing was done",
                "Contexts.known has those that are there",
                exit_code=2,
            )
        return self.known[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextView:
    """A context without its secrets, as programs read it; `dataclasses.asdict` makes it JSON."""

    context: str
    is_current: bool
    bootstrap_servers: str
    security_protocol: str
    read_only: bool


def view_contexts(contexts: Contexts) -> list[ContextView]:
    """Return a view of each context, in the order of the settings file."""
    return [
        ContextView(
            context=one.name,
            is_current=one.name == contexts.current,
            bootstrap_servers=one.bootstrap_servers,
            security_protocol=one.properties.get("security.protocol", "PLAINTEXT"),
            read_only=one.is_read_only,
        )
        for one in contexts.known.values()
    ]


def read_contexts(path: Path) -> Contexts:
    """Read the contexts of a settings file; a missing file has none."""
    try:
        fields = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Contexts(path=path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"The settings in {path} cannot be read: {error}. Nothing was done.", exit_code=2) from None
    for name in fields:
        if name not in ("current", "contexts"):
            raise _wrong(path, f"{name} means nothing.{did_you_mean(name, ['current', 'contexts'])}")
    tables = fields.get("contexts", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise _wrong(path, "a context is a table: [contexts.NAME].")
    known = {name: _read_context(path, name, table) for name, table in tables.items()}
    current = fields.get("current")
    if current is not None and current not in known:
        raise _wrong(path, f"current names {current!r}, which is no context here.{did_you_mean(str(current), known)}")
    return Contexts(path=path, known=known, current=current)


def _read_context(path: Path, name: str, table: Mapping[str, Any]) -> Context:
    for key, value in table.items():
        if key not in _FIELDS:
            raise _wrong(path, f"{key} of context {name} means nothing.{did_you_mean(key, _FIELDS)}")
        if not isinstance(value, _FIELDS[key]):
            raise _wrong(path, f"{key} of context {name} must be a {_FIELDS[key].__name__}.")
    if not table.get("bootstrap_servers"):
        raise _wrong(path, f"context {name} has no bootstrap_servers.")
    from_file = properties.read(path.parent / table["command_config"]) if "command_config" in table else {}
    own = {name: _as_property(value) for name, value in table.get("properties", {}).items()}
    return Context(
        name=name,
        bootstrap_servers=table["bootstrap_servers"],
        properties={**from_file, **own},
        is_read_only=table.get("read_only", False),
    )


def _as_property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong(path: Path, what: str) -> UserError:
    return UserError(f"The settings in {path} are wrong: {what} Nothing was done.", exit_code=2)
