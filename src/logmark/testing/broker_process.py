"""A broker in a process of its own, driven through its pipes: one JSON line asks, one JSON line answers.

It ends when its standard input does, so that no test leaves one behind.
"""

import asyncio
import json
import sys
import threading
from typing import Any

from logmark.broker.loops import new_event_loop
from logmark.errors import LogmarkError
from logmark.testing import control


def main() -> None:
    """Serve until the pipe says stop."""
    options = json.loads(sys.argv[1])
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        broker = loop.run_until_complete(control.start(**options))
    except LogmarkError as error:
        _say({"error": str(error)})
        return
    _say({"bootstrap_servers": broker.bootstrap_servers})
    stopping = asyncio.Event()

    async def answer(line: str) -> None:
        verb, *arguments = json.loads(line)
        try:
            _say({"result": await control.carry_out(broker, verb, arguments)})
        except (LogmarkError, ValueError) as error:
            _say({"error": str(error)})

    def listen() -> None:
        for line in sys.stdin:
            asyncio.run_coroutine_threadsafe(answer(line), loop).result()
        loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=listen, daemon=True).start()
    loop.run_until_complete(stopping.wait())
    loop.run_until_complete(broker.stop())


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
