"""Chroma (`ChromaTransformer2DModel`): FLUX's blocks without modulation layers, which one guidance network replaces."""

from __future__ import annotations

from .base import Identity, NativeModule, Network, expand
from .flux import Flux

_GUIDANCE = "distilled_guidance_layer"
_GUIDANCE_LAYER = {"in_layer": ("linear_1",), "out_layer": ("linear_2",)}


class Chroma(Flux):
    name = "chroma"
    label = "Chroma"
    native_only = (f"{_GUIDANCE}.",)

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        """FLUX's table (what Chroma lacks drops out), and the guidance network."""
        out = super().candidates(network)
        out |= {name: NativeModule((name,)) for name in (f"{_GUIDANCE}.in_proj", f"{_GUIDANCE}.out_proj")}
        out |= expand(network, f"{_GUIDANCE}.layers", f"{_GUIDANCE}.layers", _GUIDANCE_LAYER)
        return out

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        return Identity("chroma", "https://huggingface.co/lodestones/Chroma", "1024x1024", "chroma", "networks.lora_flux")
