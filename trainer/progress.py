"""Progress in a terminal: one bar with iteration, reward and time left, messages above it."""

from __future__ import annotations

import sys
from contextlib import suppress

from tqdm import tqdm

# A terminal that was closed, or a full disk behind a redirection, must not end a run.
_LOST = (OSError, ValueError)


class TerminalProgress:
    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self._bar: tqdm | None = None

    def begin(self, done: int, total: int) -> None:
        """Shows the bar, and counts the time from here."""
        with suppress(*_LOST):
            self._bar = tqdm(
                total=total,
                initial=done,
                unit="iteration",
                file=self._stream,
                dynamic_ncols=True,
                smoothing=0.1,
                bar_format="{n_fmt}/{total_fmt} |{bar}| {rate_noinv_fmt}, {remaining} left{postfix}",
            )

    def iteration(self, done: int, total: int, metrics: dict[str, float]) -> None:
        with suppress(*_LOST):
            if self._bar is None:
                self.begin(done, total)
            self._bar.set_postfix_str(f"reward {metrics['reward/total/mean']:.3f}", refresh=False)
            self._bar.update(done - self._bar.n)

    def message(self, text: str) -> None:
        with suppress(*_LOST):
            if self._bar is None:
                print(text, file=self._stream)
            else:
                self._bar.write(text, file=self._stream)

    def close(self) -> None:
        with suppress(*_LOST):
            if self._bar is not None:
                self._bar.close()
        self._bar = None
