"""Runs over HTTP: the aiohttp handlers, written once. ComfyUI mounts them, and so does the command `serve`.

Ids and names from a client are matched against patterns and never joined to a path as they come. What changes something is a
POST with a JSON body, which no page of another origin can send unasked. All disk work is done in a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..errors import UserError, one_line
from .control import ACTIONS, pending
from .events import EVENT_TYPES, EventReader
from .launch import log_tail
from .layout import RunDir, RunNotFound, find_run, list_runs, valid_run_id
from .state import FAILED, LOST, STOPPED, RunState, state_or_lost

MAX_EVENTS, MAX_LINES, MAX_BODY = 1000, 5000, 64 * 1024
RESUMABLE = (STOPPED, FAILED, LOST)
_PICTURE = re.compile(r"grid\.png|p\d{3,6}-s\d{1,6}\.png")
_FOLDER = re.compile(r"\d{6,12}")
_REPORTS = ("curve.png", "before-after.png")


class Actions(Protocol):
    """What changes runs; each raises UserError of one line. Called in a thread."""

    def control(self, run: RunDir, action: str) -> Any: ...
    def delete(self, run: RunDir) -> Any: ...
    def resume(self, run: RunDir, device: str) -> Any: ...


class Refused(Exception):
    """An answer other than 200: its status and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def routes(
    root: Callable[[], Path],
    actions: Actions | None = None,
    describe: Callable[[RunDir], Mapping[str, Any]] = lambda run: {},
    pictures: bool = False,
) -> web.RouteTableDef:
    """The handlers for the runs in `root()`.

    actions: without them whatever changes a run is answered with 403. describe: more fields for a run's description.
    pictures: also serve samples and reports, where no `/view` does.
    """
    table = web.RouteTableDef()

    def get(path: str, read: Callable[[RunDir, Mapping[str, str]], Any]) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            return await _answer(lambda: read(_find(root(), request), {**request.query, **request.match_info}))

        table.get(path)(handler)

    def post(path: str, act: Callable[[Actions, RunDir, dict[str, Any]], Any]) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                body = await _body(request)
                if actions is None:
                    raise Refused(403, "this server only shows runs; start it with --control to change them")
            except Refused as error:
                return _error(error.status, str(error))
            return await _answer(lambda: act(actions, _find(root(), request), body))

        table.post(path)(handler)

    async def listing(request: web.Request) -> web.StreamResponse:
        return await _answer(lambda: {"runs": [summary(run) for run in list_runs(root())]})

    table.get("/vgrpo/runs")(listing)
    get("/vgrpo/runs/{id}", lambda run, query: {**description(run), **describe(run)})
    get("/vgrpo/runs/{id}/events", _events)
    get("/vgrpo/runs/{id}/log", _log)
    get("/vgrpo/runs/{id}/config", lambda run, query: _config(run))
    if pictures:
        get("/vgrpo/runs/{id}/samples/{folder}/{file}", _sample)
        get("/vgrpo/runs/{id}/reports/{file}", _report)
    post("/vgrpo/runs/{id}/control", _control)
    post("/vgrpo/runs/{id}/delete", lambda acts, run, body: {"run": run.id, "deleted": acts.delete(run) is None})
    post("/vgrpo/runs/{id}/resume", _resume)
    return table


# What is shown


def summary(run: RunDir) -> dict[str, Any]:
    """One run in the list: its state, and `seq`, the number of its newest event."""
    state = state_or_lost(run)
    return {
        "id": run.id,
        "name": state.name,
        "status": state.status,
        "iteration": state.iteration,
        "iterations": state.iterations,
        "message": state.message,
        "device": state.device,
        "pid": state.pid if state.active else None,
        "started": state.started,
        "updated": state.updated,
        "heartbeat": state.heartbeat,
        "seq": EventReader(run.events_file).last_seq(),
        "actions": allowed(state),
    }


def description(run: RunDir) -> dict[str, Any]:
    """All about one run but its events, log and configuration. Paths are relative to the run's folder."""
    from .checkpoints import list_checkpoints

    state = state_or_lost(run)
    complete, skipped = list_checkpoints(run)
    return {
        **summary(run),
        "lora": Path(state.lora).name if state.lora else None,
        "requests": pending(run),
        "checkpoints": [{"iteration": c.iteration, "size": c.size, "created": c.created} for c in complete],
        "damaged_checkpoints": [{"name": path.name, "reason": reason} for path, reason in skipped],
        "samples": _evaluations(run),
        "reports": [name for name in _REPORTS if (run.path / name).is_file()],
        "summary": _read_json(run.summary_file),
        "log": str(run.log_file),
    }


def allowed(state: RunState) -> list[str]:
    """What can be asked of a run now: control actions while it is active, else `resume` (a new process) and `delete`."""
    if state.active:
        return [action for action in ACTIONS if action != ("resume" if state.status != "paused" else "pause")]
    return ["resume", "delete"] if state.status in RESUMABLE else ["delete"]


def _evaluations(run: RunDir) -> list[dict[str, Any]]:
    found = []
    for folder in sorted(run.samples.iterdir()) if run.samples.is_dir() else []:
        index = _read_json(folder / "index.json") if _FOLDER.fullmatch(folder.name) else None
        if index:
            files = [file for file in index.get("files", []) if isinstance(file, str) and _PICTURE.fullmatch(file)]
            found.append(
                {
                    "iteration": int(folder.name),
                    "folder": f"samples/{folder.name}",
                    "grid": f"samples/{folder.name}/grid.png" if (folder / "grid.png").is_file() else None,
                    **{key: index.get(key) for key in ("prompts", "seeds", "seeds_per_prompt", "scores", "means")},
                    "files": files,
                }
            )
    return found


def _events(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    after, limit = _number(query, "after", 0, 0, 2**53), _number(query, "limit", MAX_EVENTS, 1, MAX_EVENTS)
    types = [word for word in query.get("types", "").split(",") if word] or None
    if wrong := [word for word in types or () if word not in EVENT_TYPES]:
        raise Refused(400, f"types has {wrong[0][:40]!r}; allowed: {', '.join(EVENT_TYPES)}")
    reader = EventReader(run.events_file)
    last = reader.last_seq()  # first: what comes meanwhile is then left for the next question
    found = reader.window(after, limit + 1, types)
    return {"run": run.id, "after": after, "events": found[:limit], "more": len(found) > limit, "last_seq": last}


def _log(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    return {"run": run.id, "lines": log_tail(run.log_file, _number(query, "tail", 200, 1, MAX_LINES))}


def _config(run: RunDir) -> dict[str, Any]:
    """The configuration as it lies there, and how it differs from the preset that is most like it."""
    from ..config import load_config, load_preset, preset_names

    try:
        text = run.config_file.read_text(encoding="utf-8")
        config = load_config(run.config_file, check_files=False)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the configuration of '{run.id}' cannot be read: {one_line(error)}") from error
    mine = config.to_dict()
    best: tuple[str | None, list[dict[str, Any]]] = (None, [])
    for name in preset_names():
        # What a preset leaves open is the run's own, and no difference.
        given = load_preset(name)
        filled = {"rewards": mine["rewards"], "prompts": mine["prompts"], **given}
        try:
            preset = load_config(filled, check_files=False)
        except UserError:
            continue
        theirs = preset.to_dict()
        keys = [key for key in config.diff_from(preset) if key != "name"]
        rows = [{"key": key, "value": _short(_at(mine, key)), "preset": _short(_at(theirs, key))} for key in keys]
        if best[0] is None or len(rows) < len(best[1]):
            best = (name, rows)
    return {"run": run.id, "yaml": text, "digest": config.digest(), "preset": best[0], "diff": best[1]}


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _short(value: Any) -> Any:
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 8 else value


def _sample(run: RunDir, query: Mapping[str, str]) -> Path:
    if not (_FOLDER.fullmatch(query["folder"]) and _PICTURE.fullmatch(query["file"])):
        raise Refused(404, "no such picture; the description of the run lists those that are there")
    return _file(run.samples / f"{int(query['folder']):06d}" / query["file"])


def _report(run: RunDir, query: Mapping[str, str]) -> Path:
    if query["file"] not in _REPORTS:
        raise Refused(404, f"no such report; there may be: {', '.join(_REPORTS)}")
    return _file(run.path / query["file"])


def _file(path: Path) -> Path:
    if not path.is_file():
        raise Refused(404, f"there is no {path.name} yet")
    return path


# What changes something


def _control(actions: Actions, run: RunDir, body: dict[str, Any]) -> dict[str, Any]:
    action = body.get("action")
    if action not in ACTIONS:
        raise Refused(400, f"action is {str(action)[:40]!r}; allowed: {', '.join(ACTIONS)}")
    actions.control(run, action)
    return {"run": run.id, "action": action}


def _resume(actions: Actions, run: RunDir, body: dict[str, Any]) -> dict[str, Any]:
    device = body.get("device", "auto")
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?", device):
        raise Refused(400, f"device is {str(device)[:40]!r}; allowed: auto, cpu, mps, cuda, xpu, cuda:N, xpu:N")
    actions.resume(run, device)
    return {"run": run.id, "status": state_or_lost(run).status}


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object of a POST. Any other content type is refused: a form of a strange page can send no JSON."""
    if request.content_type != "application/json":
        raise Refused(400, f"the content type is {request.content_type[:60]}; it must be application/json")
    data = await request.content.read(MAX_BODY + 1)
    while len(data) <= MAX_BODY and (more := await request.content.read(MAX_BODY + 1 - len(data))):
        data += more
    if len(data) > MAX_BODY:
        raise Refused(400, f"the body is larger than {MAX_BODY} bytes")
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    return body


# Answers


async def _answer(work: Callable[[], Any]) -> web.StreamResponse:
    """What `work` returns, from a thread: a Path as that file, anything else as JSON; errors as one line."""
    try:
        found = await asyncio.to_thread(lambda: _encode(work()))
    except Refused as error:
        return _error(error.status, str(error))
    except RunNotFound as error:
        return _error(404, str(error))
    except UserError as error:
        return _error(409, str(error))
    except OSError as error:  # a folder deleted while it is read, a disk that is away
        return _error(409, one_line(error))
    if isinstance(found, Path):
        return web.FileResponse(found, headers={"Cache-Control": "no-cache"})
    return web.Response(body=found, content_type="application/json", headers={"Cache-Control": "no-store"})


def _encode(found: Any) -> Path | bytes:
    return found if isinstance(found, Path) else json.dumps(found, allow_nan=False).encode()


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": " ".join(text.split())}, status=status, headers={"Cache-Control": "no-store"})


def _find(root: Path, request: web.Request) -> RunDir:
    run_id = request.match_info["id"]
    if not valid_run_id(run_id):
        raise Refused(400, f"{run_id[:80]!r} is not a run id: 1 to 64 of a-z, 0-9 and '-' are allowed")
    return find_run(root, run_id)


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and low <= int(text) <= high):
        raise Refused(400, f"{name} is {text[:40]!r}; allowed: a whole number from {low} to {high}")
    return int(text)


def _read_json(path: Path) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
