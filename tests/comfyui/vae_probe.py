"""ComfyUI's own TAESD class on our weights: python vae_probe.py TREE WEIGHTS LATENTS PICTURES OUT"""

from __future__ import annotations

import sys

tree, weights, latents, pictures, out = sys.argv[1:]
sys.path.insert(0, tree)
sys.argv = ["main.py", "--cpu"]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import torch  # noqa: E402
from comfy.taesd.taesd import TAESD  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

model = TAESD(latent_channels=16)
missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
# The scale and shift buffers are ComfyUI's own, and 1 and 0 unless a file says otherwise.
assert set(missing) <= {"vae_scale", "vae_shift"} and not unexpected, (missing, unexpected)
with torch.no_grad():
    decoded = model.decode(load_file(latents)["latents"])
    encoded = model.encode(load_file(pictures)["pictures"])
save_file({"decoded": decoded.contiguous(), "encoded": encoded.contiguous()}, out)
