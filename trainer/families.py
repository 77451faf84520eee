"""The model families by name. Plain data: configuration, nodes and policies all read it, and it imports nothing.

A further family is one line here, a module in `policies`, and its LoRA names in `lora/families` (docs/adding-a-family.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A family's name in configurations, what people call it, and where its policy is."""

    name: str
    title: str
    pipeline: str
    """The diffusers pipeline class that its folders name in model_index.json."""
    policy: str
    """`module:class` below `trainer.policies`."""
    kind: str = "flow"
    """`flow`: a rectified flow, whose timesteps can be shifted. `unet`: a network of the DDPM kind with a noise schedule."""
    attention: tuple[str, ...] = ()
    """Libraries that can compute its attention in torch's place (`policy.attention`): diffusers must dispatch it, and flash and
    sage take no mask, which networks need whose prompts differ in length."""


_MASKED = ("xformers",)
_ANY = ("flash", "sage", "xformers")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("sd3", "Stable Diffusion 3 / 3.5", "StableDiffusion3Pipeline", "sd3:SD3Policy"),
        Family("sd15", "Stable Diffusion 1.5", "StableDiffusionPipeline", "sd15:SD15Policy", "unet"),
        Family("sdxl", "Stable Diffusion XL", "StableDiffusionXLPipeline", "sdxl:SDXLPolicy", "unet"),
        Family("flux", "FLUX.1", "FluxPipeline", "flux:FluxPolicy", attention=_ANY),
        Family("chroma", "Chroma", "ChromaPipeline", "chroma:ChromaPolicy", attention=_MASKED),
        Family("qwen_image", "Qwen-Image", "QwenImagePipeline", "qwen_image:QwenImagePolicy", attention=_MASKED),
        Family("z_image", "Z-Image", "ZImagePipeline", "z_image:ZImagePolicy", attention=_MASKED),
        Family("flux2_klein", "FLUX.2 klein", "Flux2KleinPipeline", "flux2_klein:Flux2KleinPolicy", attention=_ANY),
    )
}


def family_of_pipeline(pipeline: object) -> Family | None:
    """The family whose folders hold this diffusers pipeline class, or None."""
    return next((family for family in FAMILIES.values() if family.pipeline == pipeline), None)
