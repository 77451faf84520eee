"""One trainer a run: an operating system's lock, which two that start at once can't both get, nor a crash leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import UserError
from .layout import RunDir
from .state import require_idle


@contextmanager
def claim(run: RunDir, purpose: str) -> Iterator[None]:
    """Around everything that writes a run. Raises UserError, in `require_idle`'s words, if another process is behind it.

    A disk without locks, or without room for one, leaves it at what the run's state says.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(str(run.lock_file), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"The run '{run.id}' is at work in another process, so it cannot be {purpose}; stop it and wait until it ends."
        ) from None
    except (OSError, NotImplementedError):
        pass
    try:
        require_idle(run, purpose, unless_mine=True)
        yield
    finally:
        with suppress(OSError, NotImplementedError):
            lock.release()
