"""The harness itself: ComfyUI starts, a V3 pack loads, prompts run, and what goes wrong is said."""

from __future__ import annotations

import pytest

from tests.comfyui.server import Refused, ServerFailed, wait_until

ECHO = {"1": {"class_type": "VGRPOTestEcho", "inputs": {"text": "hello"}}}


def test_a_trivial_pack_loads_and_its_node_runs(client):
    result = client.run(ECHO).ok()
    assert result.outputs["1"]["said"] == ["hello"]
    assert result.executed == ["1"]


def test_a_refused_prompt_says_why(client):
    with pytest.raises(Refused) as refused:
        client.run({"1": {"class_type": "VGRPOTestEcho", "inputs": {}}})
    assert refused.value.answer["node_errors"]["1"]["errors"][0]["type"] == "required_input_missing"


@pytest.mark.slow
def test_a_server_is_killed_and_starts_again(new_server):
    server = new_server(pack="")
    first = server.process.pid
    server.kill()
    server.start()
    assert server.process.pid != first
    with server.client() as client:
        assert client.run(ECHO).ok().outputs["1"]["said"] == ["hello"]
    server.stop()
    server.arguments = ("--no-such-argument",)
    with pytest.raises(ServerFailed, match="unrecognized arguments"):
        server.start()
    assert wait_until(lambda: server.process is None, 1, "nothing is left running")
