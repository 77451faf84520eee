"""Deleting a run: all of it, and never one that runs."""

from __future__ import annotations

import os
import secrets
import shutil

from ..errors import UserError, one_line
from .atomic import ASIDE_PREFIX
from .layout import RunDir, valid_run_id
from .state import require_idle


def delete_run(run: RunDir) -> None:
    """Removes the run's folder from its root. Raises UserError if it is active, is a link, or is held open by a program.

    The folder is first renamed to a hidden name, so a deletion that is cut short leaves no half run in the list.
    """
    if not valid_run_id(run.id) or not run.path.is_dir():
        raise UserError(f"There is no run to delete at {run.path}.")
    if run.path.is_symlink():
        raise UserError(f"The run '{run.id}' is a link to a folder elsewhere; delete the link and the folder by hand.")
    require_idle(run, "deleted")
    doomed = run.path.with_name(f"{ASIDE_PREFIX}deleted-{run.id}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        os.rename(run.path, doomed)
    except OSError as error:
        raise UserError(
            f"Cannot delete {run.path}: {one_line(error)}. Close what has its files open, then try again."
        ) from error
    shutil.rmtree(doomed, ignore_errors=True)
