"""One event loop in a thread of its own, for async rewards: the loops of Jupyter and TRL are busy."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

_LOOP: list[asyncio.AbstractEventLoop] = []
_LOCK = threading.Lock()


def run_in_background(coroutine: Coroutine) -> Any:
    """The result of a coroutine, run in the background loop.

    Raises RuntimeError inside that loop: an async reward that waited for another would wait for itself.
    """
    with _LOCK:
        if not _LOOP:
            _LOOP.append(asyncio.new_event_loop())
            threading.Thread(target=_LOOP[0].run_forever, name="rewards", daemon=True).start()
    if threading.current_thread().name == "rewards":
        coroutine.close()
        raise RuntimeError("an async reward cannot call another one: await its `function` instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, _LOOP[0])
    try:
        return future.result()
    except BaseException:  # Ctrl-C: the rest of the batch is not wanted any more
        future.cancel()
        raise


def _after_fork() -> None:  # a child does not have its parent's thread, and must not inherit a held lock
    global _LOCK
    _LOCK = threading.Lock()
    _LOOP.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
