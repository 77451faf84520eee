"""What a page is made of: the chart library from its wheel, texts in other languages, and for `serve` the page itself."""

from __future__ import annotations

import asyncio
import gzip
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from aiohttp import web

from .addresses import bare_host, is_loopback
from .launch import PACK

WEB, LOCALES = PACK / "web", PACK / "locales"
_TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
# Names without a leading dot, below each other: nothing that matches leaves the folder.
_FILE = re.compile(r"(?:[A-Za-z0-9_-]+/){0,4}[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8}){0,2}")
_DAY = 24 * 3600
# Scripts are only ours; the chart library's style sheet is inline.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def add_assets(table: web.RouteTableDef) -> None:
    """Adds what the panel loads that lies in no folder of scripts."""
    table.get("/vgrpo/assets/plotly.js")(_plotly)
    table.get("/vgrpo/assets/locales/{language}.json")(_locale)


def page_routes(control: bool, folder: str) -> web.RouteTableDef:
    """The headless page at `/`, its files below `/web/`, and what it asks first."""
    table = web.RouteTableDef()

    async def about(request: web.Request) -> web.StreamResponse:
        return web.json_response({"control": control, "folder": folder}, headers={"Cache-Control": "no-store"})

    table.get("/")(_index)
    table.get("/web/{path:.+}")(_static)
    table.get("/vgrpo/about")(about)
    return table


def plotly_file() -> tuple[Path, str] | None:
    """plotly.js in the installed wheel and the wheel's version, None without one. Imports nothing of it."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            try:
                return path, importlib.metadata.version("plotly")
            except importlib.metadata.PackageNotFoundError:
                return path, str(path.stat().st_size)
    return None


def is_local(request: web.Request) -> bool:
    """Whether the request comes from this machine, and from no proxy on it that speaks for others."""
    if any(name in request.headers for name in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")):
        return False
    return is_loopback(request.remote or "") and is_loopback(bare_host(request.host))


async def _plotly(request: web.Request) -> web.StreamResponse:
    found = await asyncio.to_thread(plotly_file)
    if found is None:
        return _missing("the charts need plotly, which is not installed; run: pip install plotly, then restart")
    path, version = found
    headers = {
        "Cache-Control": f"public, max-age={_DAY}",
        "Content-Type": "text/javascript; charset=utf-8",
        "Vary": "Accept-Encoding",
    }
    read = path.read_bytes
    # On one machine unpacking costs more than sending.
    if not is_local(request) and "gzip" in request.headers.get("Accept-Encoding", "").lower():
        headers["Content-Encoding"] = "gzip"
        read = partial(_packed, path, version)
    return await _sent(request, f"plotly-{version}", read, headers)


@lru_cache(maxsize=1)
def _packed(path: Path, version: str) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)


async def _locale(request: web.Request) -> web.StreamResponse:
    """The texts of a language: those of `de`, and over them those of `de-AT`. A language without any has none to give."""
    language = request.match_info["language"]
    if not _LANGUAGE.fullmatch(language):
        return _missing("no such language")
    found = await asyncio.to_thread(locale_texts, language)
    return web.json_response(found, headers={"Cache-Control": "no-cache"})


def locale_texts(language: str, folder: Path = LOCALES) -> dict[str, str]:
    """`locales/<language>/vgrpo.json`; what is no text in it is left out, and a broken file gives none."""
    texts: dict[str, str] = {}
    parts = language.lower().split("-")
    known = {path.name.lower(): path for path in folder.iterdir()} if folder.is_dir() else {}
    for length in range(1, len(parts) + 1):
        path = known.get("-".join(parts[:length]))
        try:
            found = json.loads((path / "vgrpo.json").read_text(encoding="utf-8")) if path else {}
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            texts.update({key: value for key, value in found.items() if isinstance(value, str)})
    return texts


async def _index(request: web.Request) -> web.StreamResponse:
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
    return await _file(request, WEB / "page" / "index.html", "text/html", headers)


async def _static(request: web.Request) -> web.StreamResponse:
    path = request.match_info["path"]
    if not _FILE.fullmatch(path) or Path(path).suffix not in _TYPES:
        return _missing("no such file")
    return await _file(request, WEB / path, _TYPES[Path(path).suffix], {})


async def _file(request: web.Request, path: Path, kind: str, headers: dict[str, str]) -> web.StreamResponse:
    if not path.is_file():
        return _missing(f"there is no {path.name} here; the page needs the folder web of the pack")
    kind = kind if kind == "image/png" else f"{kind}; charset=utf-8"
    headers = {"Cache-Control": "no-cache", "Content-Type": kind, **headers}
    stat = path.stat()
    return await _sent(request, f"{stat.st_mtime_ns:x}-{stat.st_size:x}", path.read_bytes, headers)


async def _sent(request: web.Request, tag: str, read: Callable[[], bytes], headers: dict[str, str]) -> web.Response:
    """What `read` gives, or 304 where the page has it already; `tag` tells one version from another.

    The page asks for some seventy small files at once, and aiohttp's FileResponse takes five times as long for one.
    """
    headers = {**headers, "ETag": f'"{tag}"'}
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=await asyncio.to_thread(read), headers=headers)


def _missing(text: str) -> web.Response:
    return web.json_response({"error": text}, status=404, headers={"Cache-Control": "no-store"})
