"""The event loop: uvloop where it is installed, asyncio's own where it is not."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest event loop there is."""
    try:
        # Windows has none.
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
