"""A real ComfyUI server in a process of its own, with the pack as a user would have it, and a client of its API.

`ComfyServer(folder).start()` serves from the base directory `folder`: models, input, output, user and custom_nodes are its own.
The pack lies in custom_nodes as a copy of what a user installs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.comfyui.comfyui_site import comfyui_site
from tests.comfyui.comfyui_tree import comfyui_tree
from trainer import runs
from trainer.errors import UserError
from trainer.runs.state import state_or_lost

ROOT = Path(__file__).parents[2]
PACK_NAME = "V-GRPO"
# ComfyUI serves no web files of a pack whose folder has a name like this (aiohttp's static routes), but its nodes must work.
STRANGE_PACK_NAME = "V-GRPO nœuds 训练"
PROBE_NAME = "probe pack"
MODEL_FOLDERS = ("checkpoints", "clip", "diffusers", "diffusion_models", "loras", "text_encoders", "vae")
_NOT_INSTALLED = ("tests", "runs", "build", "dist", "node_modules")  # at the top of the repository
# How many times longer than usual tests wait: for a machine that has other work. Limits are generous all the same, since a
# process that ends is seen at once; they are for one that hangs.
PATIENCE = float(os.environ.get("VGRPO_TEST_PATIENCE") or 1)
START_S = 600.0 * PATIENCE  # a free machine takes about 10 s
_DONE = {"execution_success": "success", "execution_error": "error", "execution_interrupted": "interrupted"}


class ServerFailed(AssertionError):
    """The server did not start, or is gone; the text ends with its log."""


class Refused(AssertionError):
    """ComfyUI did not accept a prompt. `answer` is what it said."""

    def __init__(self, answer: Any) -> None:
        super().__init__(json.dumps(answer, indent=1)[:4000])
        self.answer = answer


def install_pack(custom_nodes: Path, name: str = PACK_NAME) -> Path:
    """Copies the repository as an installed pack; compiled files come along, so a start is timed as a user's second one."""
    target = custom_nodes / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT, target, ignore=_not_installed)
    return target


def _not_installed(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(".") or (name in _NOT_INSTALLED and Path(folder) == ROOT)]


class ComfyServer:
    """One server and its base directory. It may be stopped, killed and started again; trainers are processes of their own.

    pack: the name of its folder, '' to leave it out (the little probe pack is always there).
    """

    def __init__(
        self, base: Path, *, pack: str = PACK_NAME, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> None:
        self.tree, self.site = comfyui_tree(), comfyui_site(comfyui_tree())
        self.base = base
        self.output, self.input, self.models = base / "output", base / "input", base / "models"
        self.runs_root = self.output / "vgrpo"
        self.log_file = base / "server.log"
        self.arguments, self.env = arguments, env or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.started_in_s = 0.0
        self._log_start = 0
        for folder in (self.output, self.input, base / "user", *(self.models / name for name in MODEL_FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(Path(__file__).with_name("probe_pack"), base / "custom_nodes" / PROBE_NAME, dirs_exist_ok=True)
        self.pack = install_pack(base / "custom_nodes", pack) if pack else None
        self._installed = self._pack_files()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ComfyServer:
        """Starts and waits until it serves. Raises ServerFailed with the end of the log."""
        self.port = self.port or free_port()  # started again, it is where its pages look for it
        command = [sys.executable, str(self.tree / "main.py"), "--cpu", "--listen", "127.0.0.1", "--port", str(self.port)]
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:", "--disable-auto-launch"]
        command += ["--disable-api-nodes", *self.arguments]  # a few seconds of imports, and it answers with a strict CSP
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        begin = time.monotonic()
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.base,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name != "nt",
            )
        try:
            wait_until(self._serves, START_S, "ComfyUI serves")
        except BaseException as error:
            self.stop()
            if not isinstance(error, Exception):
                raise
            raise ServerFailed(f"ComfyUI does not serve: {error}; the end of its log:\n{self.log()[-3000:]}") from error
        self.started_in_s = time.monotonic() - begin
        return self

    def stop(self) -> None:
        """Asks this very process to end, then insists; what else is in its group goes with it."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the server and to whatever stayed in its process group."""
        if self.process is None:
            return
        if os.name != "nt":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        self.process = None

    def end_trainers(self) -> None:
        """No trainer outlives the tests: those still at work in this base directory are killed, each by its own id."""
        asked: set[str] = set()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            active = {run.id: state for run in runs.list_runs(self.runs_root) if (state := state_or_lost(run)).active}
            for run_id, state in active.items():
                with suppress(ProcessLookupError, UserError):
                    if state.pid and state.pid != os.getpid():
                        os.kill(state.pid, signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
                    elif run_id not in asked:  # it is being launched, and has no id yet
                        asked.add(run_id)
                        runs.request(runs.find_run(self.runs_root, run_id), "stop")
            if not active:
                return
            time.sleep(0.2)

    def pack_changes(self) -> list[str]:
        """What was written, changed or removed in the pack's folder since it was installed: nothing, if all is well."""
        now = self._pack_files()
        return sorted(name for name in now.keys() | self._installed.keys() if now.get(name) != self._installed.get(name))

    def log(self) -> str:
        """What the server wrote since its latest start."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_bytes()[self._log_start :].decode("utf-8", errors="replace")

    def client(self) -> Client:
        return Client(self)

    def _pack_files(self) -> dict[str, tuple[int, int]]:
        if self.pack is None:
            return {}
        files = [path for path in self.pack.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {str(path.relative_to(self.pack)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    def _environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
        return {**env, **fixed, "PYTHONPATH": str(self.site), "VGRPO_CACHE": str(self.base / "cache"), **self.env}

    def _serves(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise ServerFailed("its process ended")
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"{self.url}/system_stats", timeout=5 * PATIENCE) as answer:
                return answer.status == 200
        return False


@dataclass
class Result:
    """How a prompt ended. `status` is success, error or interrupted; `outputs` is ComfyUI's history, by node id."""

    prompt_id: str
    status: str
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    executed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def message(self) -> str:
        return str(self.error.get("exception_message", "")).strip()

    def ok(self) -> Result:
        assert self.status == "success", f"the prompt ended with {self.status}: {self.error.get('node_type')}: {self.message}"
        return self


class Client:
    """One browser's worth of connection: a WebSocket that remembers every message, and HTTP calls."""

    def __init__(self, server: ComfyServer) -> None:
        self.server = server
        self.id = uuid.uuid4().hex
        self.messages: list[dict[str, Any]] = []
        self.previews = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._open = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        assert self._open.wait(60 * PATIENCE), "ComfyUI does not answer on its WebSocket"

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # HTTP

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """(status, answer); the answer is JSON where it says so, else bytes. An error status is no exception."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.server.url + path, data, {**sent, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60 * PATIENCE) as answer:
                status, kind, raw = answer.status, answer.headers.get_content_type(), answer.read()
        except urllib.error.HTTPError as error:
            status, kind, raw = error.code, error.headers.get_content_type(), error.read()
        return status, json.loads(raw) if kind == "application/json" and raw else raw

    def get(self, path: str, **query: Any) -> Any:
        status, answer = self.call("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))
        assert status == 200, f"GET {path}: {status} {answer!r:.500}"
        return answer

    def post(self, path: str, body: Any = None) -> Any:
        status, answer = self.call("POST", path, {} if body is None else body)
        assert status in (200, 202), f"POST {path}: {status} {answer!r:.500}"
        return answer

    def nodes(self) -> dict[str, Any]:
        return self.get("/object_info")

    def node(self, name: str) -> dict[str, Any]:
        return self.get(f"/object_info/{name}")[name]

    def settings(self, values: dict[str, Any]) -> None:
        """Stores settings as the page does."""
        self.post("/settings", values)

    def picture(self, image: dict[str, str]) -> Any:
        """uint8[H, W, 3] of one entry of a node's `images` output."""
        import io

        import numpy as np
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.get("/view", **image))).convert("RGB"))

    # Prompts

    def queue(self, prompt: dict[str, Any], workflow: dict[str, Any] | None = None, **more: Any) -> str:
        """Queues a graph in API format and returns its prompt id. Raises Refused."""
        extra = {"extra_pnginfo": {"workflow": workflow}} if workflow is not None else {}
        body = {"prompt": prompt, "client_id": self.id, "extra_data": extra, **more}
        status, answer = self.call("POST", "/prompt", body)
        if status != 200 or answer.get("node_errors"):
            raise Refused(answer)
        return answer["prompt_id"]

    def wait(self, prompt_id: str, timeout: float = 600.0 * PATIENCE) -> Result:
        """Waits until the prompt has ended, however it ends."""
        begin = time.monotonic()
        last = self.message(lambda m: m["type"] in _DONE and m["data"].get("prompt_id") == prompt_id, timeout)
        result = Result(prompt_id, _DONE[last["type"]], seconds=time.monotonic() - begin)
        result.error = last["data"] if result.status == "error" else {}
        mine = [m for m in self.messages if m["data"].get("prompt_id") == prompt_id]
        result.executed = [m["data"]["node"] for m in mine if m["type"] == "executing" and m["data"].get("node")]
        # The message is sent a moment before the history is written.
        history = wait_until(lambda: self.get(f"/history/{prompt_id}"), 60 * PATIENCE, "the history holds the prompt")
        result.outputs = history[prompt_id]["outputs"]
        return result

    def run(self, prompt: dict[str, Any], timeout: float = 600.0 * PATIENCE, **more: Any) -> Result:
        return self.wait(self.queue(prompt, **more), timeout)

    def interrupt(self) -> None:
        self.call("POST", "/interrupt", {})

    # WebSocket

    def message(
        self, wanted: Callable[[dict[str, Any]], bool], timeout: float = 60.0 * PATIENCE, since: int = 0
    ) -> dict[str, Any]:
        """The first message that `wanted` accepts, past ones (from number `since` on) included."""
        deadline, looked_at = time.monotonic() + timeout, since
        with self._changed:
            while True:
                while looked_at < len(self.messages):
                    looked_at += 1
                    if wanted(self.messages[looked_at - 1]):
                        return self.messages[looked_at - 1]
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(min(left, 2.0)):
                    if left <= 0:
                        raise TimeoutError(self._too_long(timeout))
                    if self.server.process is None or self.server.process.poll() is not None:
                        raise ServerFailed(f"ComfyUI's process is gone; the end of its log:\n{self.server.log()[-3000:]}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of all messages of one type so far."""
        with self._changed:
            return [m["data"] for m in self.messages if m["type"] == kind]

    def _too_long(self, timeout: float) -> str:
        last = [m for m in self.messages if m["type"] != "crystools.monitor"][-5:]
        return (
            f"nothing within {timeout:.0f} s; the last messages: {last}; the end of ComfyUI's log:\n{self.server.log()[-2000:]}"
        )

    async def _listen(self) -> None:
        url = f"{self.server.url}/ws?clientId={self.id}"
        with suppress(aiohttp.ClientError, OSError):
            async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket_:
                self._open.set()
                while not self._closing.is_set():
                    try:
                        message = await socket_.receive(timeout=0.2)
                    except (TimeoutError, asyncio.TimeoutError):
                        continue
                    if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                        return
                    with self._changed:
                        if message.type == aiohttp.WSMsgType.TEXT:
                            self.messages.append({"data": {}, **json.loads(message.data)})
                        else:
                            self.previews += 1
                        self._changed.notify_all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], Any], timeout: float, what: str, every: float = 0.1) -> Any:
    """The first true value of `condition`; TimeoutError that says `what` did not happen."""
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        time.sleep(every)


@contextmanager
def serving(base: Path, **options: Any) -> Iterator[ComfyServer]:
    """A server for the length of a `with`; its trainers end with it, also when this process is told to end."""
    server = ComfyServer(base, **options)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield server.start()
    finally:
        server.stop()
        server.end_trainers()
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # what pytest tidies up after
