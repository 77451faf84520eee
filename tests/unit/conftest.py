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


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """folders(family): the folder of its tiny model, made when it is first asked for."""
    from tests.tiny_families import make_folder

    made = {}

    def folder(family):
        if family not in made:
            made[family] = make_folder(family, tmp_path_factory.mktemp(family) / "model")
        return made[family]

    return folder
