"""The harness itself: ComfyUI starts, a V3 pack loads, prompts run, and what goes wrong is said."""

from __future__ import annotations

import pytest

from tests.comfyui.server import Refused, ServerFailed

ECHO = {"1": {"class_type": "VGRPOTestEcho", "inputs": {"text": "hello"}}}


def test_a_trivial_pack_loads_and_its_node_runs(client):
    result = client.run(ECHO).ok()
    assert result.outputs["1"]["said"] == ["hello"]
    assert result.executed == ["1"]


def test_a_refused_prompt_says_why(client):
    with pytest.raises(Refused) as refused:
        client.run({"1": {"class_type": "VGRPOTestEcho", "inputs": {}}})
    assert refused.value.answer["node_errors"]["1"]["errors"][0]["type"] == "required_input_missing"


def test_a_start_that_fails_shows_the_log(new_server):
    with pytest.raises(ServerFailed, match="unrecognized arguments: --no-such-argument"):
        new_server(pack="", arguments=("--no-such-argument",))
