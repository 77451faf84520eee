"""The run directory: the single owner of what is on disk for a run.

What is re-exported here is light. `trainer.runs.checkpoints` loads torch when it saves or loads, `trainer.runs.optimizer_state`
when it is imported; both are imported by name.
"""

from __future__ import annotations

from .atomic import write_atomic, write_json
from .control import ACTIONS, pending, request, take_requests
from .events import EVENT_TYPES, EventReader, EventWriter, metric_series, read_events
from .layout import RUN_ID, RunDir, RunNotFound, check_new_run, create_run, find_run, list_runs, new_run_id, valid_run_id
from .processes import process_alive, process_start_time
from .removal import delete_run
from .state import (
    ACTIVE_STATUSES,
    FAILED,
    FINISHED,
    LOST,
    PAUSED,
    RUNNING,
    STARTING,
    STATUSES,
    STOPPED,
    STOPPING,
    RunState,
    own_process,
    read_state,
    require_idle,
    write_state,
)

__all__ = [
    "ACTIONS",
    "ACTIVE_STATUSES",
    "EVENT_TYPES",
    "FAILED",
    "FINISHED",
    "LOST",
    "PAUSED",
    "RUNNING",
    "RUN_ID",
    "STARTING",
    "STATUSES",
    "STOPPED",
    "STOPPING",
    "EventReader",
    "EventWriter",
    "RunDir",
    "RunNotFound",
    "RunState",
    "check_new_run",
    "create_run",
    "delete_run",
    "find_run",
    "list_runs",
    "metric_series",
    "new_run_id",
    "own_process",
    "pending",
    "process_alive",
    "process_start_time",
    "read_events",
    "read_state",
    "request",
    "require_idle",
    "take_requests",
    "valid_run_id",
    "write_atomic",
    "write_json",
    "write_state",
]
