"""Long work that looks for Cancel while it computes. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.25


def watched(work: Callable[[], T], check: Callable[[], None], leave: Callable[[], None] = lambda: None) -> T:
    """What `work` returns or raises. It runs in a thread of its own, while `check` is called four times a second.

    When `check` raises, nobody waits any longer: `leave` is called, the thread is left to itself, and what it returns is lost.
    """
    thread = ThreadPoolExecutor(1, "vgrpo-node")
    try:
        done = thread.submit(work)
        try:
            while wait([done], LOOK_S).not_done:
                check()
        except BaseException:
            leave()
            raise
        return done.result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
