"""Calls about the log directories of single brokers, and their health if they are Logmark's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logmark.client.errors import RefusedByBroker, error_code
from logmark.client.router import Router
from logmark.errors import ErrorCode
from logmark.wire import log_dirs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """A directory in which a broker keeps logs; sizes of its volume are -1 where an old broker does not tell them."""

    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker's log directories, and what a Logmark broker reports of its health; None for any other."""

    log_dirs: Sequence[LogDirDescription]
    health: Mapping[str, Any] | None


_ALWAYS_THERE = {
    "accepts_writes", "connections", "coordinators", "logmark", "memory", "now_ms", "partitions", "started_ms", "wal",
}  # fmt: skip


class LogDirCalls(Router):
    """Asking each broker about itself."""

    def describe_broker(self, broker: int) -> BrokerDescription:
        """Return what a broker says of itself, by its id or ANY.

        Raises RefusedByBroker, for example without the right to.
        """
        # Without topics: the sizes of all partitions may be many.
        request = log_dirs.Request(topics=[], wants_health=True)
        answer = self._ask(log_dirs, request, log_dirs.Response, to=broker, deadline=self._deadline())
        if answer.error_code:
            code = error_code(answer.error_code)
            raise RefusedByBroker(code, f"Broker {broker} does not describe its log directories: {code.name}.")
        return BrokerDescription(
            log_dirs=[
                LogDirDescription(
                    path=one.log_dir,
                    error=error_code(one.error_code),
                    total_bytes=one.total_bytes,
                    usable_bytes=one.usable_bytes,
                )
                for one in answer.results
            ],
            health=_read_health(answer.health),
        )


def _read_health(health: bytes | None) -> Mapping[str, Any] | None:
    if health is None:
        return None
    try:
        found = json.loads(health)
    except ValueError:
        return None
    # It may only grow, so whatever has these can be read.
    return found if isinstance(found, dict) and found.keys() >= _ALWAYS_THERE else None
