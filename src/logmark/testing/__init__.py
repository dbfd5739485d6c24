"""A real broker for tests: in this process or beside it, with faults on demand and a clock that can be turned.

Nothing is imported before it is used, so that the pytest plugin costs nothing where it is not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.clock import ManualClock
    from logmark.testing.broker import Broker
    from logmark.testing.faulty_file_system import FaultyFileSystem

__all__ = ["Broker", "FaultyFileSystem", "ManualClock"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from logmark.testing.broker import Broker

        return Broker
    if name == "FaultyFileSystem":
        from logmark.testing.faulty_file_system import FaultyFileSystem

        return FaultyFileSystem
    if name == "ManualClock":
        from logmark.clock import ManualClock

        return ManualClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
