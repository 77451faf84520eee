"""Remake the embedded model from seeds: tokenizer, autoencoder, text encoders and transformer, on a CPU.

    python trainer/demo/build.py --output /tmp/demo-model
    python trainer/demo/build.py --output /tmp/demo-model --work /tmp/demo-work     (keeps stages, a rerun skips them)

Stages: a BPE tokenizer on captions; an `AutoencoderTiny` on drawn scenes and noisy latents; the scenes as latents; the text
encoders on captions; the `SD3Transformer2DModel` by rectified flow. Captions are noisy, as web data is: `--caption-noise` of
them misdescribe one attribute, and some are empty (for classifier-free guidance). docs/embedded-model.md has the figures.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "trainer.demo"

from .detect import judge
from .parts import (
    CLIP_WIDTHS,
    build_placeholder_t5,
    build_text_encoder,
    build_tokenizer,
    build_transformer,
    load_parts,
    measure,
    save,
)
from .pretrain import (
    encode_latents,
    to_signed,
    train_autoencoder,
    train_denoiser,
    train_text_encoders,
)
from .world import IMAGE_SIZE, draw, sample_scene


def draw_scenes(count: int, seed: int) -> tuple[list, torch.Tensor]:
    """`count` scenes and their pictures, uint8[count, 3, 64, 64]."""
    rng = random.Random(seed)
    scenes, pictures = [], np.empty((count, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    for i in range(count):
        scene = sample_scene(rng)
        scenes.append(scene)
        pictures[i] = np.asarray(draw(scene, rng))
    return scenes, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for the diffusers pipeline")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="build nothing, measure the pipeline in this folder")
    parser.add_argument("--work", type=Path, help="folder that keeps the stages of an interrupted build")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=20000)
    parser.add_argument("--autoencoder-steps", type=int, default=2500)
    parser.add_argument("--autoencoder-batch", type=int, default=12)
    parser.add_argument("--text-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=16000)
    parser.add_argument("--guidance", type=float, default=1.0, help="classifier-free guidance of --measure, 1 = off")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--caption-noise", type=float, default=0.33)
    parser.add_argument("--evaluate-every", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = random.Random(args.seed + 99)
    held_out = [s for s in (sample_scene(rng) for _ in range(1500)) if s.held_out]
    if args.measure:
        score, accuracy = measure(load_parts(args.measure), held_out, seed=1, guidance=args.guidance)
        print(f"held-out scene score {score:.3f}, strict accuracy {accuracy:.3f}")
        return
    if args.output is None:
        parser.error("--output is needed to build")
    started = time.time()
    work = args.work or args.output.with_name(args.output.name + "-work")
    work.mkdir(parents=True, exist_ok=True)

    tokenizer = build_tokenizer(args.seed)
    scenes, pictures = draw_scenes(args.scenes, args.seed + 10)
    print(f"{len(scenes)} scenes, {len(tokenizer)} tokens, {time.time() - started:.0f} s", flush=True)
    vae = _stage(work / "vae", lambda: train_autoencoder(pictures, args.autoencoder_steps, args.autoencoder_batch, args.seed))
    latents = _latents_stage(work / "latents.safetensors", lambda: encode_latents(vae, pictures))
    checked = range(min(500, len(scenes)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = vae.decode(vae.encode(to_signed(pictures[: len(checked)])).latents).sample.float()
    again = ((again.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).numpy()
    exact = sum(judge(again[i], scenes[i].metadata()).correct for i in checked) / len(checked)
    flat = latents.float().transpose(0, 1).flatten(1)
    print(
        f"autoencoder: {exact:.3f} of reconstructions still satisfy their caption; latents mean {flat.mean():.3f} std "
        f"{flat.std():.3f} (channels {flat.std(1).min():.2f} to {flat.std(1).max():.2f}), {time.time() - started:.0f} s",
        flush=True,
    )

    torch.manual_seed(args.seed)
    tokenizer_3, text_encoder_3 = build_placeholder_t5()
    parts = {
        "tokenizer": tokenizer,
        "tokenizer_3": tokenizer_3,
        "vae": vae,
        "transformer": build_transformer(),
        "text_encoder": build_text_encoder(tokenizer, CLIP_WIDTHS[0], 3),
        "text_encoder_2": build_text_encoder(tokenizer, CLIP_WIDTHS[1], 2),
        "text_encoder_3": text_encoder_3,
    }
    _text_stage(work, parts, lambda: train_text_encoders(parts, args.text_steps, 128, args.seed + 4))

    def evaluate(average, step: int) -> None:
        parts_now = {**parts, "transformer": average}
        score, accuracy = measure(parts_now, held_out, seed=1)
        minutes = (time.time() - started) / 60
        print(
            f"step {step}: held-out scene score {score:.3f}, strict accuracy {accuracy:.3f}, {minutes:.0f} minutes", flush=True
        )
        save(parts_now, work / f"step-{step}")

    train_denoiser(parts, scenes, latents, args, evaluate, work / "denoiser.pt")
    save(parts, args.output)
    size = sum(f.stat().st_size for f in args.output.rglob("*.safetensors"))
    print(f"saved {args.output}: {size / 1e6:.1f} MB of weights, {(time.time() - started) / 60:.0f} minutes", flush=True)


def _text_stage(work: Path, parts: dict, train) -> None:
    from transformers import CLIPTextModelWithProjection

    names = ("text_encoder", "text_encoder_2")
    if not (work / names[-1]).is_dir():
        train()
        for name in names:
            parts[name].save_pretrained(work / name)
    for name in names:
        encoder = CLIPTextModelWithProjection.from_pretrained(work / name, dtype=torch.float32)
        parts[name] = encoder.requires_grad_(False).eval()


def _latents_stage(file: Path, make) -> torch.Tensor:
    from safetensors.torch import load_file, save_file

    if not file.is_file():
        save_file({"latents": make().contiguous()}, file)
    return load_file(file)["latents"]


def _stage(folder: Path, make):
    from diffusers import AutoencoderTiny

    if folder.is_dir():
        return AutoencoderTiny.from_pretrained(folder).to(memory_format=torch.channels_last).eval()
    model = make()
    model.save_pretrained(folder)
    return model


if __name__ == "__main__":
    main()
