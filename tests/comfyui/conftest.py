"""One ComfyUI server for the tests that only use it, and a maker of servers for those that kill theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.comfyui.comfyui_tree import NoComfyUI, missing
from tests.comfyui.server import Client, ComfyServer, serving

STRANGE_FOLDER = "Cömfy UI 训练"  # where users do install it


@pytest.fixture(scope="session")
def comfy(tmp_path_factory: Any) -> Iterator[ComfyServer]:
    """A running server with the pack, shared by all tests that leave it as it is."""
    try:
        with serving(tmp_path_factory.mktemp("comfyui") / STRANGE_FOLDER) as server:
            yield server
            # Newer versions of ComfyUI digest the pack's folder, and an update must find it as it left it.
            assert server.pack_changes() == []
    except NoComfyUI as error:
        missing(str(error))


@pytest.fixture
def client(comfy: ComfyServer) -> Iterator[Client]:
    with comfy.client() as client:
        yield client


@pytest.fixture
def new_server(tmp_path_factory: Any) -> Iterator[Callable[..., ComfyServer]]:
    """new_server(**options of ComfyServer): a running server of the test's own."""
    with ExitStack() as stack:

        def make(**options: Any) -> ComfyServer:
            try:
                return stack.enter_context(serving(tmp_path_factory.mktemp("comfyui") / STRANGE_FOLDER, **options))
            except NoComfyUI as error:
                missing(str(error))

        yield make
