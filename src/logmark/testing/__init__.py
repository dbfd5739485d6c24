"""A real broker for tests: in this process or beside it, with faults on demand and a clock that can be turned.

Nothing is imported before it is used, so that the pytest plugin costs nothing where it is not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.clock import ManualClock
    from logmark.testing.broker import Broker
    from logmark.testing.faulty_file_system import FaultyFileSystem

__all__ = ["Broker", "FaultyFileSystem", "ManualClock"]

_MODULE_OF = {
    "Broker": "logmark.testing.broker",
    "FaultyFileSystem": "logmark.testing.faulty_file_system",
    "ManualClock": "logmark.clock",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
