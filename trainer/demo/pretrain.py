"""Training an embedded model's parts, one function a stage of `build.py`. CPU only."""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .parts import LATENT_CHANNELS, SCALING, SHIFT, T5_TOKENS, TIMESTEP_SHIFT, encode_texts, tokenize
from .recipe import Recipe

T5_SHARE = 0.05


def to_signed(pictures: torch.Tensor) -> torch.Tensor:
    return (pictures.float() / 127.5 - 1).to(memory_format=torch.channels_last)


def train_autoencoder(pictures: torch.Tensor, steps: int, batch: int, seed: int, channels: int = 64):
    """TAESD (`channels` wide) on latents with noise of every size up to half their spread.

    A sampler's latents are never exact, and latents that bear noise hold little detail for the transformer to learn
    (arXiv 2507.15856 trains its tokenizer so).
    """
    from diffusers import AutoencoderTiny

    torch.manual_seed(seed)
    vae = AutoencoderTiny(
        latent_channels=LATENT_CHANNELS,
        encoder_block_out_channels=(channels,) * 4,
        decoder_block_out_channels=(channels,) * 4,
        scaling_factor=SCALING,
        shift_factor=SHIFT,
    )
    vae = vae.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=1e-3, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.05)
    generator = torch.Generator().manual_seed(seed)
    started = time.time()
    for step in range(steps):
        index = torch.randint(len(pictures), (batch,), generator=generator)
        x = to_signed(pictures[index])
        with torch.autocast("cpu", torch.bfloat16):
            z = vae.encode(x).latents
            size = torch.rand((batch, 1, 1, 1), generator=generator) * 0.5 / SCALING
            y = vae.decode(z + size * torch.randn(z.shape, generator=generator)).sample
        y, z = y.float(), z.float()
        spread = z.std((0, 2, 3), correction=0)
        prior = ((z.mean((0, 2, 3)) - SHIFT) ** 2).mean() + ((spread - 1 / SCALING) ** 2).mean()
        loss = F.l1_loss(y, x) + F.mse_loss(y, x) + 0.1 * prior
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(
                f"autoencoder {step}/{steps} l1 {F.l1_loss(y, x):.4f} prior {prior:.4f} {time.time() - started:.0f} s",
                flush=True,
            )
    return vae.eval()


@torch.no_grad()
def encode_latents(vae, pictures: torch.Tensor) -> torch.Tensor:
    """Normalised latents float16[N, 16, H / 8, W / 8], as the transformer sees them."""
    parts = []
    for chunk in pictures.split(256):
        with torch.autocast("cpu", torch.bfloat16):
            z = vae.encode(to_signed(chunk)).latents
        parts.append(((z.float() - SHIFT) * SCALING).half())
    return torch.cat(parts)


def train_text_encoders(parts: dict, recipe: Recipe, steps: int, batch: int, seed: int) -> None:
    """Both text encoders, before any picture: the pooled embedding must tell what a caption describes.

    SD3's encoders come pre-trained as well (there with pictures); here linear heads read the recipe's facts (colours, shapes
    and counts, say) off each encoder. Afterwards the encoders are frozen.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    encoders = torch.nn.ModuleDict({k: parts[k] for k in ("text_encoder", "text_encoder_2")})
    sizes = recipe.fact_sizes
    heads = torch.nn.ModuleDict({k: torch.nn.Linear(m.config.projection_dim, sum(sizes)) for k, m in encoders.items()})
    parameters = [*encoders.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    started = time.time()
    for step in range(steps):
        chosen = [recipe.sample(rng) for _ in range(batch)]
        targets = torch.tensor([recipe.facts(item) for item in chosen])
        ids = tokenize(parts["tokenizer"], [recipe.caption(item, rng) for item in chosen])
        loss, right = 0.0, torch.ones(batch, dtype=torch.bool)
        with sdpa_kernel(SDPBackend.MATH):
            for name, encoder in encoders.items():
                for column, logits in enumerate(heads[name](encoder(ids).text_embeds).split(sizes, dim=1)):
                    loss = loss + F.cross_entropy(logits, targets[:, column])
                    if name == "text_encoder":
                        right &= logits.argmax(1) == targets[:, column]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            done = f"{right.float().mean():.3f} of captions understood, {time.time() - started:.0f} s"
            print(f"text encoders {step}/{steps} loss {float(loss):.3f}, {done}", flush=True)
    encoders.requires_grad_(False).eval()


def train_denoiser(
    parts: dict,
    caption_of: Callable[[int, random.Random], str],
    latents: torch.Tensor,
    args: argparse.Namespace,
    evaluate: Callable[[torch.nn.Module, int], None],
    state_file: Path,
) -> None:
    """The transformer alone; rectified flow, z = (1 - t) x + t eps, target eps - x; `caption_of` words a picture by its number.

    The forward and backward passes run in bfloat16 on a copy of the float32 weights, and with plain attention, since the
    fused kernel's backward pass is slow on short sequences. Every random number derives from the stretch between two
    evaluations, whose ends are saved, so an interrupted build ends in the same weights.
    """
    torch.manual_seed(args.seed + 1)
    transformer = parts["transformer"]
    masters, start = list(transformer.parameters()), 0
    optimizer = torch.optim.AdamW(masters, lr=args.lr, weight_decay=0.01, betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.steps, pct_start=0.03, final_div_factor=100
    )
    average = copy.deepcopy(transformer).requires_grad_(False)
    if state_file.is_file():
        state = torch.load(state_file, weights_only=True)
        transformer.load_state_dict(state["transformer"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        for _ in range(start):
            schedule.step()
    working = copy.deepcopy(transformer).to(torch.bfloat16).train()
    copies = list(working.parameters())
    started, recent = time.time(), 0.0
    for step in range(start, args.steps):
        if step == start or step % args.evaluate_every == 0:
            generator, rng = torch.Generator().manual_seed(args.seed + step), random.Random(args.seed + step)
        zeros = T5_TOKENS if rng.random() < T5_SHARE else 0
        batch = args.batch // 4 if zeros else args.batch
        index = torch.randint(len(latents), (batch,), generator=generator)
        texts = [caption_of(i, rng) for i in index.tolist()]
        x = latents[index].float()
        u = torch.rand(batch, generator=generator)
        t = TIMESTEP_SHIFT * u / (1 + (TIMESTEP_SHIFT - 1) * u)
        eps = torch.randn(x.shape, generator=generator)
        z = (1 - t[:, None, None, None]) * x + t[:, None, None, None] * eps
        with sdpa_kernel(SDPBackend.MATH):
            context, pooled = encode_texts(parts, texts)
            v = working(
                hidden_states=z.bfloat16(),
                timestep=t * 1000,
                encoder_hidden_states=F.pad(context, (0, 0, 0, zeros)).bfloat16(),
                pooled_projections=pooled.bfloat16(),
            ).sample
            loss = F.mse_loss(v.float(), eps - x)
            loss.backward()
        _step_masters(masters, copies, optimizer, schedule)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), masters, 1 - min(0.999, (step + 1) / (step + 10)))
        recent += (loss.item() - recent) * max(0.01, 1 / (step - start + 1))
        if step % 200 == 0:
            print(f"denoiser {step}/{args.steps} loss {recent:.4f} {time.time() - started:.0f} s", flush=True)
        if (step + 1) % args.evaluate_every == 0 or step + 1 == args.steps:
            evaluate(average, step + 1)
            state = {"transformer": transformer.state_dict(), "average": average.state_dict(), "step": step + 1}
            torch.save({**state, "optimizer": optimizer.state_dict()}, state_file)
    parts["transformer"] = average.eval()


def _step_masters(masters: list, copies: list, optimizer, schedule) -> None:
    """One step of the float32 weights with the gradients of their half-precision copies, which then follow."""
    for master, half in zip(masters, copies, strict=True):
        master.grad = None if half.grad is None else half.grad.float()
        half.grad = None
    torch.nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        torch._foreach_copy_(copies, masters)
