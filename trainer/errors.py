"""Errors that a user can act on."""

from __future__ import annotations


class UserError(Exception):
    """Bad input, said in one line: what was wrong, where, what is allowed, what to do.

    The command line prints the line and ends with exit code 2; a node raises it as its own error.
    """


def one_line(error: BaseException) -> str:
    """The error's text on a single line, for events, logs and the terminal."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
