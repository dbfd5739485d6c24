"""The file of alerts: what is watched, and who is told.

quiet_after_reset = "1h"

[notify.ops]
kind = "webhook"
url = "https://hooks.example.org/kafka"
secret_env = "LOGMARK_HOOK_SECRET"

[[alert]]
name = "billing is behind"
when = "lag"
over = 10000
for = "5m"
groups = ["billing-*"]
notify = ["ops"]
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from logmark.errors import UserError
from logmark.offsets.monitor import alerts
from logmark.offsets.monitor.alerts import QUIET_AFTER_RESET_MS, AlertRule
from logmark.offsets.suggestions import did_you_mean
from logmark.offsets.times import parse_duration

STDOUT, WEBHOOK, COMMAND = "stdout", "webhook", "command"
VERDICTS = ("OK", "SLOW", "STALLED", "STOPPED", "REWOUND")
_BAD_VERDICTS = ["STALLED", "STOPPED", "REWOUND"]
_TOP = ("quiet_after_reset", "notify", "alert")
_EVERY_RULE = ("name", "when", "for", "clear_for", "severity", "notify")
_RULE_KEYS = {
    alerts.LAG: ("over", "per", "groups", "topics"),
    alerts.SECONDS: ("over", "per", "groups", "topics"),
    alerts.VERDICT: ("is", "per", "groups", "topics"),
    alerts.GONE: ("groups",),
    alerts.FALLING_OFF: ("within", "per", "groups", "topics"),
    alerts.EXPIRING: ("within", "groups"),
    alerts.UNREACHABLE: (),
}
_NEEDED = {alerts.LAG: "over", alerts.SECONDS: "over", alerts.FALLING_OFF: "within", alerts.EXPIRING: "within"}
_NOTIFIER_KEYS = {
    STDOUT: ("kind",),
    WEBHOOK: ("kind", "url", "secret_env", "secret_file", "timeout", "attempts"),
    COMMAND: ("kind", "command", "timeout", "attempts"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    """Someone who is told: standard output, an address that takes JSON, or a command."""

    name: str
    kind: str
    url: str = ""
    secret: bytes = field(default=b"", repr=False)
    command: Sequence[str] = ()
    timeout_s: float = 10.0
    attempts: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFile:
    """What a file of alerts says."""

    rules: Sequence[AlertRule] = ()
    notifiers: Mapping[str, Notifier] = field(default_factory=dict)
    quiet_after_reset_ms: int = QUIET_AFTER_RESET_MS


class _Wrong(Exception):
    """A value that cannot be; the sentence says what to write."""


def read_alert_file(path: Path) -> AlertFile:
    """Read the alerts of a file; raises one UserError with all mistakes and their lines."""
    try:
        text = path.read_text(encoding="utf-8")
        fields = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"The alerts in {path} cannot be read: {error}. Nothing is watched.", exit_code=2) from None
    reader = _Reader(path, text)
    found = reader.read(fields)
    if reader.problems:
        count = len(reader.problems)
        raise UserError(
            f"{path} has {count} mistake{'s' if count > 1 else ''}; nothing is watched.",
            exit_code=2,
            lines=reader.problems,
        )
    return found


class _Reader:
    """Reads the tables one after the other and keeps a message for everything that is wrong."""

    def __init__(self, path: Path, text: str) -> None:
        self.problems: list[str] = []
        self._path = path
        self._lines = _Lines(text)

    def read(self, fields: Mapping[str, Any]) -> AlertFile:
        for key in fields:
            if key not in _TOP:
                self._say(self._lines.key((), key), f"{key} means nothing here.{did_you_mean(key, _TOP)}")
        quiet = self._take((), fields, "quiet_after_reset", _duration_ms, QUIET_AFTER_RESET_MS)
        notifiers = self._notifiers(fields.get("notify", {}))
        tables = fields.get("alert", [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            self._say(self._lines.key((), "alert"), "alert must be a list of tables: write [[alert]].")
            tables = []
        rules: list[AlertRule] = []
        for index, table in enumerate(tables):
            rule = self._rule(index, table, notifiers, {one.name for one in rules})
            if rule is not None:
                rules.append(rule)
        return AlertFile(
            rules=rules,
            notifiers={name: one for name, one in notifiers.items() if one is not None},
            quiet_after_reset_ms=quiet,
        )

    def _say(self, line: int | None, sentence: str) -> None:
        self.problems.append(f"{self._path}{f':{line}' if line else ''}: {sentence}")

    def _take(
        self, at: tuple[Any, ...], table: Mapping[str, Any], key: str, read: Callable[[Any], Any], default: Any
    ) -> Any:
        if key not in table:
            return default
        try:
            return read(table[key])
        except (_Wrong, UserError) as error:
            self._say(self._lines.key(at, key), f"{key}: {error}")
            return default

    def _rule(
        self, index: int, table: Mapping[str, Any], notifiers: Mapping[str, Notifier | None], names: set[str]
    ) -> AlertRule | None:
        at, count = ("alert", index), len(self.problems)
        name = self._take(at, table, "name", _text, "")
        when = self._take(at, table, "when", _one_of(alerts.KINDS), "")
        if "name" not in table:
            self._say(self._lines.table(at), f"alert {index + 1} has no name.")
        if name in names:
            self._say(self._lines.key(at, "name"), f"two alerts are called {name!r}; messages would be mixed up.")
        if "when" not in table:
            self._say(
                self._lines.table(at),
                f'alert {name!r} does not say when: write when = "lag" or {_listed(alerts.KINDS[1:])}.',
            )
        if not when:
            return None
        allowed = (*_EVERY_RULE, *_RULE_KEYS[when])
        for key in table:
            if key not in allowed:
                elsewhere = [kind for kind, keys in _RULE_KEYS.items() if key in keys]
                hint = f" It belongs to {_listed(elsewhere)}." if elsewhere else did_you_mean(key, allowed)
                self._say(self._lines.key(at, key), f"{key} means nothing for when = {when!r}.{hint}")
        needed = _NEEDED.get(when)
        if needed and needed not in table:
            example = {"lag": "over = 10000", "seconds": 'over = "10m"'}.get(when, f'{needed} = "1h"')
            self._say(self._lines.table(at), f"alert {name!r} needs {needed}: write {example}.")
        rule = AlertRule(
            name=name,
            when=when,
            over=self._take(at, table, "over", _records if when == alerts.LAG else _seconds, 0),
            within_s=self._take(at, table, "within", _duration_ms, 0) / 1000,
            verdicts=frozenset(self._take(at, table, "is", _verdicts, _BAD_VERDICTS))
            if when == alerts.VERDICT
            else frozenset(),
            per=self._take(at, table, "per", _one_of(("group", "topic", "partition")), "group"),
            groups=self._take(at, table, "groups", _patterns, ("*",)),
            topics=self._take(at, table, "topics", _patterns, ("*",)),
            for_ms=self._take(at, table, "for", _duration_ms, 0),
            clear_for_ms=self._take(at, table, "clear_for", _duration_ms, 0),
            severity=self._take(at, table, "severity", _text, ""),
            notify=self._take(at, table, "notify", _texts, ()),
        )
        for one in rule.notify:
            if one not in notifiers and one != STDOUT:
                known = [*notifiers, STDOUT]
                self._say(self._lines.key(at, "notify"), f"there is no [notify.{one}].{did_you_mean(one, known)}")
        return rule if len(self.problems) == count else None

    def _notifiers(self, tables: Any) -> dict[str, Notifier | None]:
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
            self._say(self._lines.key((), "notify"), "notify must be tables: write [notify.NAME].")
            return {}
        return {name: self._notifier(name, table) for name, table in tables.items()}

    def _notifier(self, name: str, table: Mapping[str, Any]) -> Notifier | None:
        at, count = ("notify", name), len(self.problems)
        kind = self._take(at, table, "kind", _one_of(tuple(_NOTIFIER_KEYS)), "")
        if "kind" not in table:
            self._say(self._lines.table(at), f"notify.{name} does not say its kind: {_listed(tuple(_NOTIFIER_KEYS))}.")
        if not kind:
            return None
        for key in table:
            if key not in _NOTIFIER_KEYS[kind]:
                hint = did_you_mean(key, _NOTIFIER_KEYS[kind])
                self._say(self._lines.key(at, key), f"{key} means nothing for kind = {kind!r}.{hint}")
        for needed, of in (("url", WEBHOOK), ("command", COMMAND)):
            if kind == of and needed not in table:
                self._say(self._lines.table(at), f"notify.{name} needs {needed}.")
        if "secret_env" in table and "secret_file" in table:
            self._say(self._lines.key(at, "secret_file"), "there is secret_env already; one of them is enough.")
        secret = self._take(at, table, "secret_env", _secret_of_environment, b"")
        found = Notifier(
            name=name,
            kind=kind,
            url=self._take(at, table, "url", _url, ""),
            secret=secret or self._take(at, table, "secret_file", self._secret_of_file, b""),
            command=self._take(at, table, "command", _command, ()),
            timeout_s=self._take(at, table, "timeout", _duration_ms, 10_000) / 1000,
            attempts=self._take(at, table, "attempts", _attempts, 8 if kind == WEBHOOK else 3),
        )
        return found if len(self.problems) == count else None

    def _secret_of_file(self, value: Any) -> bytes:
        path = self._path.parent / _text(value)
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise _Wrong(f"{path} cannot be read ({error.strerror}).") from None
        if not secret:
            raise _Wrong(f"{path} is empty.")
        return secret


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"{value!r} is not a text.")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _Wrong(f'{value!r} is not a list of texts: write ["a", "b"].')
    return tuple(_text(one) for one in value)


def _patterns(value: Any) -> tuple[str, ...]:
    found = _texts(value)
    if "!" in found:
        raise _Wrong("a lone ! leaves nothing out: write the pattern behind it.")
    return found


def _one_of(known: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            raise _Wrong(f"{value!r} is none of {_listed(known)}.{did_you_mean(str(value), known)}")
        return str(value)

    return read


def _verdicts(value: Any) -> list[str]:
    return [_one_of(VERDICTS)(one.upper()) for one in _texts(value)]


def _records(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Wrong(f"{value!r} is not a number of records: write 10000.")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return value
    return _duration_ms(value) / 1000


def _duration_ms(value: Any) -> int:
    if not isinstance(value, str):
        raise _Wrong(f'{value!r} is not a length of time: write "30s", "5m" or "2h".')
    return parse_duration(value)


def _attempts(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
        raise _Wrong(f"{value!r} is not a number of attempts from 1 to 100.")
    return value


def _url(value: Any) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise _Wrong("this is not an address that takes messages: write https://host/path.")
    return text


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise _Wrong(f'no shell is used: write ["{value.split(" ")[0]}", "--option"], one text for each word.')
    return _texts(value)


def _secret_of_environment(value: Any) -> bytes:
    name = _text(value)
    secret = os.environ.get(name, "").strip()
    if not secret:
        raise _Wrong(f"the environment has no {name}.")
    return secret.encode()


def _listed(known: Sequence[str]) -> str:
    return ", ".join(known)


class _Lines:
    """Where tables and keys stand in a file; TOML's reader does not say."""

    def __init__(self, text: str) -> None:
        self._tables: dict[tuple[Any, ...], int] = {}
        self._keys: dict[tuple[Any, ...], int] = {}
        at: tuple[Any, ...] = ()
        count = 0
        for number, line in enumerate(text.splitlines(), 1):
            if header := re.match(r"\s*\[\[\s*alert\s*\]\]", line):
                at, count = ("alert", count), count + 1
                self._tables[at] = number
            elif header := re.match(r"\s*\[\s*notify\s*\.\s*[\"']?(.+?)[\"']?\s*\]\s*(?:#.*)?$", line):
                at = ("notify", header[1])
                self._tables[at] = number
            elif re.match(r"\s*\[", line) and not at:
                continue
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line):
                self._keys.setdefault((*at, key[1]), number)

    def table(self, at: tuple[Any, ...]) -> int | None:
        return self._tables.get(at)

    def key(self, at: tuple[Any, ...], key: str) -> int | None:
        return self._keys.get((*at, key)) or self._tables.get(at)
