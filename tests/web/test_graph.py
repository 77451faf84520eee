"""From the panel back into the graph: the LoRA's loader and the pictures of a finished run."""

from __future__ import annotations

import pytest

from tests.web.runs_for_pages import finished_run

pytestmark = pytest.mark.slow
RUN = "for-graph"
NODES = """() => app.rootGraph.nodes.map(node => ({
  id: node.id, type: node.comfyClass ?? node.type,
  values: Object.fromEntries((node.widgets ?? []).map(widget => [widget.name, widget.value])),
  from: Object.fromEntries((node.inputs ?? [])
    .map(input => [input.name, app.rootGraph.getLink?.(input.link)?.origin_id ?? null])),
}))"""


def nodes(tab, kind):
    return [node for node in tab.js(NODES) if node["type"] == kind]


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "vue"])
def test_lora_and_pictures_into_the_graph(comfy, open_page, tiny_sd3, vue):
    if not (comfy.runs_root / RUN).exists():
        finished_run(comfy.runs_root, tiny_sd3, RUN)
    tab = open_page(vue=vue)
    panel = tab.panel
    tab.load(
        {
            "model": {"class_type": "VGRPOLoadDemoModel", "inputs": {}},
            "out": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["model", 0], "shift": 3.0}},
        }
    )
    demo, sampling = (nodes(tab, kind)[0] for kind in ("VGRPOLoadDemoModel", "ModelSamplingSD3"))
    tab.js("id => app.canvas.selectItems([app.rootGraph.getNodeById(id)])", demo["id"])
    panel.open_sidebar().press(RUN, "Add LoRA loader")
    panel.until(lambda: nodes(tab, "VGRPOApplyRunLoRA") or nodes(tab, "LoraLoaderModelOnly"), "there is a loader")
    loader = (nodes(tab, "VGRPOApplyRunLoRA") or nodes(tab, "LoraLoaderModelOnly"))[0]
    assert loader["from"]["model"] == demo["id"]
    assert nodes(tab, "ModelSamplingSD3")[0]["from"]["model"] == loader["id"], "the model goes through the LoRA now"
    if source := loader["from"].get("run"):
        [load_run] = nodes(tab, "VGRPOLoadRun")
        assert load_run["id"] == source and load_run["values"]["run"] == RUN

    panel.open_run(RUN).tab("Samples")
    view = panel.view("Samples")
    view.get_by_role("slider", name="Iteration", exact=True).fill("1")
    view.get_by_role("button", name="Send grid to graph").click()
    wanted = {"run": RUN, "checkpoint": "iteration", "iteration": 2}

    before = nodes(tab, "VGRPOApplyRunLoRA")

    def there():
        return [node for node in nodes(tab, "VGRPOLoadRun") if wanted.items() <= node["values"].items()]

    panel.until(there, "Load Run has that iteration")
    panel.tab("Events").get_by_role("button", name="Add LoRA loader with the checkpoint of iteration 3").click()
    wanted["iteration"] = 3
    panel.until(there, "Load Run has that checkpoint")
    assert len(nodes(tab, "VGRPOApplyRunLoRA")) == len(before) + 1
    assert sampling["id"] in [node["id"] for node in tab.js(NODES)]
