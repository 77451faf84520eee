"""What the tests of single modules share."""

from __future__ import annotations

import pytest

from tests.comfy_api import ComfyNodes


@pytest.fixture(scope="session")
def comfy_nodes(tmp_path_factory):
    """The pack's nodes on a real ComfyUI's node API; the process starts with the first test that asks."""
    nodes = ComfyNodes(tmp_path_factory.mktemp("comfy nodes"))
    yield nodes
    nodes.close()
