"""The embedded autoencoder has the layout that ComfyUI's own loader reads: same weights, same pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.comfyui.comfyui_site import comfyui_site
from tests.comfyui.comfyui_tree import NoComfyUI, comfyui_tree, missing
from trainer.demo import MODEL_DIR

PROBE = Path(__file__).with_name("vae_probe.py")


def comfyui_name(name: str) -> str:
    """ComfyUI's decoder has its clamp as a layer of its own, so its numbers are one higher."""
    part, number, rest = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.*)", name).groups()
    return f"taesd_{part}.{int(number) + (part == 'decoder')}.{rest}"


def test_comfyui_decodes_and_encodes_the_same(tmp_path):
    from diffusers import AutoencoderTiny

    try:
        tree = comfyui_tree()
        site = comfyui_site(tree)
    except NoComfyUI as error:
        missing(str(error))
    vae = AutoencoderTiny.from_pretrained(MODEL_DIR / "vae").eval()
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 16, 8, 8, generator=generator) * 0.6
    pictures = torch.rand(2, 3, 64, 64, generator=generator) * 2 - 1
    save_file({comfyui_name(k): v.contiguous() for k, v in vae.state_dict().items()}, tmp_path / "vae.safetensors")
    save_file({"latents": latents}, tmp_path / "latents.safetensors")
    save_file({"pictures": pictures}, tmp_path / "pictures.safetensors")
    files = [str(tmp_path / f"{name}.safetensors") for name in ("vae", "latents", "pictures", "out")]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, str(PROBE), str(tree), *files], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = load_file(files[-1])
    with torch.no_grad():
        assert torch.allclose(theirs["decoded"], vae.decode(latents).sample, atol=1e-5)
        assert torch.allclose(theirs["encoded"], vae.encode(pictures).latents, atol=1e-5)
