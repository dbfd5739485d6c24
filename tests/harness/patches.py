"""Patches of our own classes that leave alone the broker that tests of one process share: it runs in another thread."""

import threading
from collections.abc import Callable
from typing import Any


def in_this_thread(patch: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is the patch in this thread, and what it replaces in every other one."""
    thread = threading.get_ident()

    def call(*arguments: Any, **options: Any) -> Any:
        called = patch if threading.get_ident() == thread else original
        return called(*arguments, **options)

    return call
