"""What a LoRA file says about itself: ModelSpec, the `ss_*` fields of sd-scripts that other tools read, and our own.

ModelSpec 1.0.1: https://github.com/Stability-AI/ModelSpec. No date: the same LoRA is always the same file.
"""

from __future__ import annotations

from collections.abc import Mapping

from .factors import LoraFactors
from .families import Family, Layout, Network


def describe(
    factors: LoraFactors, file_alpha: float, family: Family, network: Network, layout: Layout, facts: Mapping[str, str]
) -> dict[str, str]:
    """All metadata of a file. `facts` are the caller's and stay as they are; some of them are also said in others' words:
    `name` (title), `base`, `resolution` ("1024x1024") and `prediction` ("epsilon" or "v_prediction").

    `file_alpha` is the alpha that a reader of the file's keys applies: the rank, where the real one is folded into B.
    """
    base = family.identity(network, facts.get("prediction"))
    title = facts.get("name") or "V-GRPO LoRA"
    spec = {
        "sai_model_spec": "1.0.1",
        "architecture": f"{base.architecture}/lora",
        "implementation": base.implementation,
        "title": title,
        "resolution": facts.get("resolution", base.resolution),
        "description": f"trained with V-GRPO on {facts['base']}" if "base" in facts else "trained with V-GRPO",
    }
    if "prediction" in facts:
        spec["prediction_type"] = facts["prediction"].removesuffix("_prediction")
    kohya = {
        "ss_base_model_version": base.base_version,
        "ss_network_dim": str(factors.rank),
        "ss_network_alpha": f"{file_alpha:g}",
        "ss_output_name": title,
    }
    if "base" in facts:
        kohya["ss_sd_model_name"] = facts["base"]
    if layout.flat:  # it names what reads such keys, and nothing of sd-scripts reads the others
        kohya["ss_network_module"] = base.network_module
    ours = {"format": "pt", "family": family.name, "rank": str(factors.rank), "alpha": f"{factors.alpha:g}"}
    return {f"modelspec.{key}": value for key, value in spec.items()} | kohya | ours | dict(facts)
