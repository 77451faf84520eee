"""Runs over HTTP: the aiohttp handlers, written once. ComfyUI mounts them, and so does the command `serve`.

Ids and names from a client are matched against patterns and never joined to a path as they come. What changes something is a
POST with a JSON body, which no page of another origin can send unasked. All disk work is done in a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..errors import UserError, one_line
from .control import ACTIONS
from .describe import PICTURE, REPORTS, configuration, description, evaluation, headless_command, summary, workflow
from .event_index import event_index
from .events import EVENT_TYPES, EventReader
from .launch import DEVICE, DEVICE_WORDS, log_tail
from .layout import EVALUATION_FOLDER, RunDir, RunNotFound, find_run, list_runs, valid_run_id
from .page import add_assets, is_local
from .series import MAX_POINTS, run_series
from .state import state_or_lost

MAX_EVENTS, MAX_LINES, MAX_BODY, MAX_IDS = 1000, 5000, 64 * 1024, 200
DEFAULT_POINTS = 2000


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
    view: Callable[[RunDir], Mapping[str, Any]] = lambda run: {},
    reveal: Callable[[Path], bool] | None = None,
) -> web.RouteTableDef:
    """The handlers for the runs in `root()`, and for what a page of theirs loads.

    actions: without them whatever changes a run is answered with 403. describe: more fields for a run's description; view: for
    its entry in the list too, so it must be quick. pictures: also serve samples and reports, where no `/view` does. reveal:
    opens a folder for somebody who sits at this machine.
    """
    table = web.RouteTableDef()
    add_assets(table)

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
        return await _answer(lambda: {"runs": [{**summary(run), **view(run)} for run in _chosen(root(), request.query)]})

    async def revealing(request: web.Request) -> web.StreamResponse:
        # It changes nothing, so it needs no actions; the content type keeps pages of other origins out all the same.
        try:
            await _body(request)
        except Refused as error:
            return _error(error.status, str(error))
        local = is_local(request)
        return await _answer(lambda: _reveal(_find(root(), request), reveal if local else None))

    table.get("/vgrpo/runs")(listing)
    get("/vgrpo/runs/{id}", lambda run, query: {**description(run), **view(run), **describe(run)})
    get("/vgrpo/runs/{id}/events", _events)
    get("/vgrpo/runs/{id}/series", _series)
    get("/vgrpo/runs/{id}/samples/{folder}", _evaluation)
    get("/vgrpo/runs/{id}/log", _log)
    get("/vgrpo/runs/{id}/config", lambda run, query: configuration(run))
    get("/vgrpo/runs/{id}/command", lambda run, query: {"run": run.id, "command": headless_command(run)})
    get("/vgrpo/runs/{id}/workflow", _workflow)
    table.post("/vgrpo/runs/{id}/reveal")(revealing)
    if pictures:
        get("/vgrpo/runs/{id}/samples/{folder}/{file}", _sample)
        get("/vgrpo/runs/{id}/reports/{file}", _report)
    post("/vgrpo/runs/{id}/control", _control)
    post("/vgrpo/runs/{id}/delete", lambda acts, run, body: {"run": run.id, "deleted": acts.delete(run) is None})
    post("/vgrpo/runs/{id}/resume", _resume)
    return table


# What is shown


def _chosen(root: Path, query: Mapping[str, str]) -> list[RunDir]:
    """All runs, the newest first; with `ids` these, as far as they are there."""
    if "ids" not in query:
        return list_runs(root)
    ids = [word for word in query["ids"].split(",") if word]
    if len(ids) > MAX_IDS or not all(valid_run_id(word) for word in ids):
        raise Refused(
            400, f"ids is not a list of up to {MAX_IDS} run ids, separated by commas; allowed: a-z, 0-9 and '-' in each"
        )
    found = []
    for run_id in dict.fromkeys(ids):
        with suppress(RunNotFound):
            found.append(find_run(root, run_id))
    return found


def _events(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    after, limit = _number(query, "after", 0, 0, 2**53), _number(query, "limit", MAX_EVENTS, 1, MAX_EVENTS)
    types = [word for word in query.get("types", "").split(",") if word] or None
    if wrong := [word for word in types or () if word not in EVENT_TYPES]:
        raise Refused(400, f"types has {wrong[0][:40]!r}; allowed: {', '.join(EVENT_TYPES)}")
    reader = EventReader(run.events_file)
    last = reader.last_seq()  # first: what comes meanwhile is then left for the next question
    if "before" in query:
        before = _number(query, "before", 0, 1, 2**53)
        found = [event for event in event_index(run.events_file).before(before, limit + 1, types) if event["seq"] > after]
        shown = found[-limit:]
    else:
        # A window is found by bisection; only rare kinds need to be known by place.
        found = event_index(run.events_file).after(after, limit + 1, types) if types else reader.window(after, limit + 1)
        shown = found[:limit]
    return {"run": run.id, "after": after, "events": shown, "more": len(found) > limit, "last_seq": last}


def _series(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    points = _number(query, "points", DEFAULT_POINTS, 2, MAX_POINTS)
    low, high = (_number(query, name, 0, 0, 2**53) if name in query else None for name in ("from", "to"))
    return {"run": run.id, **run_series(run.events_file).answer(points, low, high)}


def _evaluation(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    found = evaluation(run, int(query["folder"])) if EVALUATION_FOLDER.fullmatch(query["folder"].zfill(6)) else None
    if found is None:
        raise Refused(404, "no such evaluation; the description of the run lists those that are there")
    return {"run": run.id, **found}


def _workflow(run: RunDir, query: Mapping[str, str]) -> Any:
    found = workflow(run)
    if found is None:
        raise Refused(404, f"the run '{run.id}' was not started from a graph, so there is none to open")
    return found


def _reveal(run: RunDir, reveal: Callable[[Path], bool] | None) -> dict[str, Any]:
    return {"run": run.id, "path": str(run.path), "opened": reveal is not None and reveal(run.path)}


def _log(run: RunDir, query: Mapping[str, str]) -> dict[str, Any]:
    return {"run": run.id, "lines": log_tail(run.log_file, _number(query, "tail", 200, 1, MAX_LINES))}


def _sample(run: RunDir, query: Mapping[str, str]) -> Path:
    if not (EVALUATION_FOLDER.fullmatch(query["folder"]) and PICTURE.fullmatch(query["file"])):
        raise Refused(404, "no such picture; the description of the run lists those that are there")
    return _file(run.evaluation(int(query["folder"])) / query["file"])


def _report(run: RunDir, query: Mapping[str, str]) -> Path:
    if query["file"] not in REPORTS:
        raise Refused(404, f"no such report; there may be: {', '.join(REPORTS)}")
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
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise Refused(400, f"device is {str(device)[:40]!r}; allowed: {DEVICE_WORDS}")
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
