"""The system's Chromium, driven by playwright. Nothing is downloaded: CHROMIUM_PATH names another one than that on PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.comfyui.comfyui_tree import missing

INSTALL = "apt-get install chromium (Debian, Ubuntu: chromium-browser), or set CHROMIUM_PATH"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    # A container has no user namespaces and a small /dev/shm; without a GPU, WebGL is drawn by SwiftShader.
    *("--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader", "--force-color-profile=srgb"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--mute-audio"),
    # Any other host than this machine does not exist: a page that asks for one fails at once.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class NoChromium(Exception):
    """There is no browser here; the text says what to install."""


def chromium_path() -> str:
    """Raises NoChromium."""
    given = os.environ.get("CHROMIUM_PATH")
    found = shutil.which(given) if given else next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        raise NoChromium(f"no Chromium at {given}" if given else f"these tests drive a Chromium on PATH: {INSTALL}")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """playwright's Browser. Raises NoChromium."""
    path = chromium_path()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoChromium("pip install playwright (its own browsers are not needed)") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*OPTIONS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def chromium_or_skip() -> Iterator[Any]:
    try:
        with chromium() as browser:
            yield browser
    except NoChromium as error:
        missing(str(error))
