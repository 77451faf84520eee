"""A tab with ComfyUI in a real browser, and what it complained about."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any

from tests.comfyui.server import PACK_NAME, PATIENCE
from tests.web.panel import Panel

LOAD_MS = 60_000 * PATIENCE
WAIT_MS = 30_000 * PATIENCE
OURS = re.compile(rf"/extensions/{re.escape(PACK_NAME)}/|/vgrpo/|vgrpo", re.IGNORECASE)
ELSEWHERE = "api.comfy.org"  # ComfyUI's page asks its registry about each node's pack
SETTINGS = {
    "Comfy.TutorialCompleted": True,  # else a fresh profile opens the templates over the canvas
    "Comfy.Notification.ShowVersionUpdates": False,
    "Comfy.Workflow.Persist": True,
    "Comfy.Locale": "en",
    "VGRPO.Smoothing": 0.6,
}


class Complaints:
    """What a tab and its server said against each other: page errors, console errors, calls that failed."""

    def __init__(self, page: Any) -> None:
        self.all: list[str] = []
        self.paused = False  # while a test cuts the connection on purpose
        page.on("pageerror", lambda error: self._add(f"page error: {error} {getattr(error, 'stack', '') or ''}"))
        page.on("console", self._console)
        page.on("requestfailed", self._failed)
        page.on("response", lambda answer: answer.status >= 400 and self._add(f"{answer.status}: {answer.url}"))
        page.on("crash", lambda _: self._add(f"the page crashed: {PACK_NAME}"))

    def ours(self) -> list[str]:
        """Those of this pack; ComfyUI's own pages have a few of their own."""
        return [text for text in self.all if OURS.search(text) and ELSEWHERE not in text]

    @contextmanager
    def expected(self) -> Any:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def _failed(self, request: Any) -> None:
        if "ERR_ABORTED" not in str(request.failure):  # the page itself no longer wants it
            self._add(f"failed: {request.method} {request.url} {request.failure}")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._add(f"console {message.type}: {message.text} at {message.location.get('url', '')}")

    def _add(self, text: str) -> None:
        if not self.paused:
            self.all.append(text[:1000])


class ComfyPage:
    """One tab. `tab.page` is playwright's Page."""

    def __init__(self, context: Any, url: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.url = url
        self.policy = ""  # what the server lets the page load
        self.complaints = Complaints(self.page)
        self.panel = Panel(self.page)

    def open(self) -> ComfyPage:
        answer = self.page.goto(self.url, timeout=LOAD_MS, wait_until="domcontentloaded")
        self.policy = answer.headers.get("content-security-policy", "")
        return self.ready()

    def reload(self) -> ComfyPage:
        self.page.reload(timeout=LOAD_MS, wait_until="domcontentloaded")
        return self.ready()

    def ready(self) -> ComfyPage:
        """The graph stands and the extensions are set up."""
        self.page.wait_for_function(
            "() => window.app?.vueAppReady !== false && window.app?.rootGraph && window.app.extensionManager?.getSidebarTabs",
            timeout=LOAD_MS,
        )
        self.page.wait_for_selector("#graph-canvas, canvas", state="visible", timeout=LOAD_MS)
        return self

    def js(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def load(self, prompt: dict[str, Any]) -> None:
        """Opens a graph in API format; its nodes get numbers."""
        number = {name: str(at + 1) for at, name in enumerate(prompt)}

        def linked(given: Any) -> Any:
            return [number[given[0]], given[1]] if isinstance(given, list) else given

        numbered = {
            number[name]: {**node, "inputs": {key: linked(given) for key, given in node["inputs"].items()}}
            for name, node in prompt.items()
        }
        self.js("async prompt => { await app.loadApiJson(prompt, 'test') }", numbered)

    def queue(self) -> None:
        """Queues the graph, as the Run button does."""
        self.js("() => app.queuePrompt(0, 1)")

    def look_at(self, kind: str) -> None:
        """Moves the canvas to the first node of that type: a node out of sight shows nothing."""
        self.js(
            "kind => app.canvas.centerOnNode(app.rootGraph.nodes.find(node => (node.comfyClass ?? node.type) === kind))", kind
        )
