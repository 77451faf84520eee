"""Remake an embedded model from seeds: tokenizer, autoencoder, text encoders and transformer, on a CPU.

    python trainer/demo/build.py --output /tmp/demo-model                       the model of scenes
    python trainer/demo/build.py --world letters --output /tmp/letters-model    the model of words
    python trainer/demo/build.py --output /tmp/demo-model --work /tmp/demo-work (keeps stages, a rerun skips them)

Stages: a BPE tokenizer; an `AutoencoderTiny` on drawn pictures and noisy latents; the pictures as latents; the text encoders
on captions; the `SD3Transformer2DModel` by rectified flow. Captions are noisy, as web data is: `--caption-noise` of them are
wrong in one attribute, and some are empty (for classifier-free guidance). docs/embedded-model.md has the figures.
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

from .letters.recipe import Letters
from .parts import build_placeholder_t5, build_text_encoder, build_transformer, load_parts, sample, save
from .pretrain import encode_latents, to_signed, train_autoencoder, train_denoiser, train_text_encoders
from .recipe import Recipe
from .scenes import Scenes

RECIPES = {recipe.name: recipe for recipe in (Scenes(), Letters())}


def draw_items(recipe: Recipe, count: int, seed: int) -> tuple[list, torch.Tensor]:
    """`count` items and their pictures, uint8[count, 3, H, W]."""
    rng = random.Random(seed)
    items, pictures = [], np.empty((count, recipe.height, recipe.width, 3), dtype=np.uint8)
    for i in range(count):
        item = recipe.sample(rng)
        items.append(item)
        pictures[i] = np.asarray(recipe.draw(item, rng))
    return items, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def measure(
    recipe: Recipe, parts: dict, seed: int, samples: int = 384, steps: int = 12, guidance: float = 1.0
) -> tuple[float, float]:
    """Mean score and strict accuracy of the model on held-out items."""
    rng, items = random.Random(seed), recipe.held_out()
    chosen = [items[i % len(items)] for i in range(samples)]
    captions = [recipe.caption(item, rng) for item in chosen]
    verdicts = recipe.judge(sample(parts, captions, seed, recipe.width, recipe.height, steps, guidance), chosen)
    return sum(score for score, _ in verdicts) / samples, sum(correct for _, correct in verdicts) / samples


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.world]
    if args.measure:
        score, accuracy = measure(recipe, load_parts(args.measure), seed=1, steps=args.solver_steps, guidance=args.guidance)
        print(f"held-out score {score:.3f}, strict accuracy {accuracy:.3f}")
        return
    started = time.time()
    work = args.work or args.output.with_name(args.output.name + "-work")
    work.mkdir(parents=True, exist_ok=True)

    tokenizer = recipe.tokenizer(args.seed)
    items, pictures = draw_items(recipe, args.items, args.seed + 10)
    print(f"{len(items)} pictures, {len(tokenizer)} tokens, {time.time() - started:.0f} s", flush=True)
    vae = _stage(
        work / "vae",
        lambda: train_autoencoder(pictures, args.autoencoder_steps, args.autoencoder_batch, args.seed, recipe.channels),
    )
    latents = _latents_stage(work / "latents.safetensors", lambda: encode_latents(vae, pictures))
    flat = latents.float().transpose(0, 1).flatten(1)
    print(
        f"autoencoder: {_reconstructed(recipe, vae, pictures[:500], items[:500]):.3f} of reconstructions still satisfy their "
        f"caption; latents mean {flat.mean():.3f} std {flat.std():.3f} (channels {flat.std(1).min():.2f} to "
        f"{flat.std(1).max():.2f}), {time.time() - started:.0f} s",
        flush=True,
    )

    torch.manual_seed(args.seed)
    widths = tuple(width for width, _ in recipe.clip)
    tokenizer_3, text_encoder_3 = build_placeholder_t5(sum(widths))
    parts = {
        "tokenizer": tokenizer,
        "tokenizer_3": tokenizer_3,
        "vae": vae,
        "transformer": build_transformer(recipe.layers, recipe.heads, widths),
        "text_encoder": build_text_encoder(tokenizer, *recipe.clip[0]),
        "text_encoder_2": build_text_encoder(tokenizer, *recipe.clip[1]),
        "text_encoder_3": text_encoder_3,
    }
    _text_stage(work, parts, lambda: train_text_encoders(parts, recipe, args.text_steps, 128, args.seed + 4))

    def evaluate(average, step: int) -> None:
        parts_now = {**parts, "transformer": average}
        score, accuracy = measure(recipe, parts_now, seed=1, steps=args.solver_steps)
        minutes = (time.time() - started) / 60
        print(f"step {step}: held-out score {score:.3f}, strict accuracy {accuracy:.3f}, {minutes:.0f} minutes", flush=True)
        save(parts_now, work / f"step-{step}")

    def caption_of(index: int, rng: random.Random) -> str:
        return recipe.noisy_caption(items[index], rng, args.caption_noise)

    train_denoiser(parts, caption_of, latents, args, evaluate, work / "denoiser.pt")
    save(parts, args.output)
    size = sum(f.stat().st_size for f in args.output.rglob("*.safetensors"))
    print(f"saved {args.output}: {size / 1e6:.1f} MB of weights, {(time.time() - started) / 60:.0f} minutes", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=RECIPES, default=Scenes.name)
    parser.add_argument("--output", type=Path, help="folder for the diffusers pipeline")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="build nothing, measure the pipeline in this folder")
    parser.add_argument("--work", type=Path, help="folder that keeps the stages of an interrupted build")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--evaluate-every", type=int, default=2000)
    parser.add_argument("--solver-steps", type=int, default=12, help="of the pictures that are measured")
    parser.add_argument("--guidance", type=float, default=1.0, help="classifier-free guidance of --measure, 1 = off")
    of_world = parser.add_argument_group("defaults that differ between the worlds")
    for name, value in Scenes.defaults.items():
        of_world.add_argument("--" + name.replace("_", "-"), type=type(value))
    args = parser.parse_args()
    if not (args.measure or args.output):
        parser.error("--output is needed to build")
    for name, value in RECIPES[args.world].defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


@torch.no_grad()
def _reconstructed(recipe: Recipe, vae, pictures: torch.Tensor, items: list) -> float:
    """The share of pictures that the autoencoder gives back so that they still satisfy their caption."""
    with torch.autocast("cpu", torch.bfloat16):
        again = vae.decode(vae.encode(to_signed(pictures)).latents).sample.float()
    again = ((again.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return sum(correct for _, correct in recipe.judge(again, items)) / len(items)


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
