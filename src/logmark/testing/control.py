"""What a test may ask of a running broker, as plain values: the same in this process and through a pipe."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from logmark.broker.config import BrokerConfig
from logmark.broker.server import Address, Broker, Listener
from logmark.clock import SystemClock
from logmark.disk.file_system import FileSystem
from logmark.errors import ErrorCode
from logmark.log.group_commit import Durability

# Tests want their groups at once, not after Kafka's three seconds.
TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


async def start(
    *, data_dir: str, config: Mapping[str, str], durability: Durability, port: int, files: FileSystem | None = None
) -> Broker:
    """Start a broker on a port of loopback (0 = any); it serves when this returns."""
    broker = Broker(
        data_dir=data_dir,
        config=BrokerConfig({**TEST_SETTINGS, **config}),
        listeners=[Listener(host="127.0.0.1", port=port, advertised=Address("127.0.0.1", 0))],
        durability=durability,
        files=files,
        clock=SystemClock(),
    )
    await broker.start()
    return broker


async def carry_out(broker: Broker, verb: str, arguments: Sequence[Any]) -> Any:
    """Do one thing that a test asked for, on the broker's loop."""
    if verb == "create_topic":
        name, partitions, config = arguments
        await broker.logs.create_topic(name, partitions, config)
    elif verb == "fail_next":
        api, code, times = arguments
        broker.faults.fail_next(_known(broker, api), ErrorCode(code), times=times)
    elif verb == "delay":
        api, seconds = arguments
        broker.faults.delay(_known(broker, api), seconds)
    elif verb == "clear_faults":
        broker.faults.clear()
    elif verb == "advance":
        broker.advance(seconds=arguments[0])
        await asyncio.sleep(0)
    elif verb == "apply_retention":
        broker.logs.look_after()
    elif verb == "compact":
        await broker.cleaner.run()
    else:
        raise ValueError(f"no such thing to ask of a broker: {verb}")
    return None


def _known(broker: Broker, api: str) -> str:
    names = [entry.name for entry in broker.dispatcher.apis.values()]
    for name in names:
        if name.lower() == api.lower():
            return name
    raise ValueError(f"no API is called {api!r} here; there are {', '.join(sorted(names))}")
