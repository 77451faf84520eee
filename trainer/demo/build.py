"""Remake the embedded model from seeds: tokenizer, autoencoder, text encoders and transformer, on a CPU.

    python trainer/demo/build.py --output /tmp/demo-model
    python trainer/demo/build.py --output /tmp/demo-model --work /tmp/demo-work     (keeps stages, a rerun skips them)

Stages: a BPE tokenizer on captions; an `AutoencoderTiny` on drawn scenes; the scenes as latents; the text encoders on
captions; then the `SD3Transformer2DModel` by rectified flow. Captions are noisy, as web data is: `--caption-noise` of
them misdescribe one attribute, and some are empty (for classifier-free guidance). docs/embedded-model.md has the figures.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "trainer.demo"

from .detect import judge
from .world import BACKGROUNDS, COLORS, IMAGE_SIZE, RELATIONS, SHAPES, caption, corrupt, draw, sample_scene

LATENT_CHANNELS = 16
TOKENS = 20
T5_TOKENS = 256  # the pipeline's default; the model is shown that many zeros now and then, so that it bears them
T5_SHARE = 0.05
DEPTH = 3  # hidden size 64 * DEPTH is how ComfyUI recognises an SD3 of any size
WIDTH = 64 * DEPTH
CLIP_WIDTHS = (128, 64)  # together WIDTH, like CLIP-L and CLIP-G in SD3
# SD3's own latent normalisation, so that ComfyUI's SD3 latent format fits without a word.
SCALING, SHIFT = 1.5305, 0.0609
TIMESTEP_SHIFT = 3.0


def build_tokenizer(seed: int):
    """A CLIP tokenizer of this world's words; unknown words fall back to bytes."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPTokenizer

    rng = random.Random(seed)
    texts = [caption(sample_scene(rng), rng) for _ in range(4000)]
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer = normalizers.Lowercase()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False)
    )
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    words = [*alphabet, *(a + "</w>" for a in alphabet), *("".join(pair) for pair in merges)]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    vocab["<|startoftext|>"], vocab["<|endoftext|>"] = len(vocab), len(vocab) + 1
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=TOKENS)


def build_text_encoder(tokenizer, width: int, layers: int):
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 32),
        max_position_embeddings=TOKENS,
        hidden_act="quick_gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config)


def build_placeholder_t5(width: int = WIDTH):
    """An encoder whose output is 0, as diffusers fills in for SD3 without a T5; `from_pretrained` wants all parts."""
    from transformers import T5Config, T5EncoderModel, T5Tokenizer

    tokenizer = T5Tokenizer(extra_ids=0, model_max_length=T5_TOKENS)
    config = T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=16, d_ff=32, num_layers=1, num_heads=1)
    encoder = T5EncoderModel(config)
    torch.nn.init.zeros_(encoder.encoder.final_layer_norm.weight)
    return tokenizer, encoder.eval()


def build_transformer():
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=IMAGE_SIZE // 8,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=DEPTH,
        attention_head_dim=64,
        num_attention_heads=DEPTH,
        joint_attention_dim=WIDTH,
        caption_projection_dim=WIDTH,
        pooled_projection_dim=sum(CLIP_WIDTHS),
        pos_embed_max_size=16,
    )


def draw_scenes(count: int, seed: int) -> tuple[list, torch.Tensor]:
    """`count` scenes and their pictures, uint8[count, 3, 64, 64]."""
    rng = random.Random(seed)
    scenes, pictures = [], np.empty((count, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    for i in range(count):
        scene = sample_scene(rng)
        scenes.append(scene)
        pictures[i] = np.asarray(draw(scene, rng))
    return scenes, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def to_signed(pictures: torch.Tensor) -> torch.Tensor:
    return (pictures.float() / 127.5 - 1).to(memory_format=torch.channels_last)


def train_autoencoder(pictures: torch.Tensor, steps: int, batch: int, seed: int):
    from diffusers import AutoencoderTiny

    torch.manual_seed(seed)
    vae = AutoencoderTiny(latent_channels=LATENT_CHANNELS, scaling_factor=SCALING, shift_factor=SHIFT)
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
            noisy = z + 0.05 * torch.randn(z.shape, generator=generator)  # the sampler's latents are never exact
            y = vae.decode(noisy).sample
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


def harden_decoder(vae, pictures: torch.Tensor, steps: int, batch: int, seed: int):
    """The decoder alone, on latents with noise of every size up to half their spread: a sampler's latents are never exact.

    The encoder stays, so that latents encoded before stay true.
    """
    torch.manual_seed(seed)
    vae.encoder.requires_grad_(False)
    optimizer = torch.optim.AdamW(vae.decoder.parameters(), lr=5e-4, weight_decay=0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=steps, pct_start=0.05)
    generator = torch.Generator().manual_seed(seed)
    started = time.time()
    for step in range(steps):
        index = torch.randint(len(pictures), (batch,), generator=generator)
        x = to_signed(pictures[index])
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                z = vae.encode(x).latents
            size = torch.rand((batch, 1, 1, 1), generator=generator) * 0.5 / SCALING
            y = vae.decode(z + size * torch.randn(z.shape, generator=generator)).sample
        y = y.float()
        loss = F.l1_loss(y, x) + F.mse_loss(y, x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"decoder {step}/{steps} l1 {F.l1_loss(y, x):.4f} {time.time() - started:.0f} s", flush=True)
    return vae.eval()


@torch.no_grad()
def encode_latents(vae, pictures: torch.Tensor) -> torch.Tensor:
    """Normalised latents float16[N, 16, 8, 8], as the transformer sees them."""
    parts = []
    for chunk in pictures.split(256):
        with torch.autocast("cpu", torch.bfloat16):
            z = vae.encode(to_signed(chunk)).latents
        parts.append(((z.float() - SHIFT) * SCALING).half())
    return torch.cat(parts)


def train_text_encoders(parts: dict, steps: int, batch: int, seed: int) -> None:
    """Both text encoders, before any picture: the pooled embedding must tell the scene that a caption describes.

    SD3's encoders come pre-trained as well (there with pictures); here linear heads read colours, shapes, counts, sizes,
    relation and background off each encoder. Afterwards the encoders are frozen.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    encoders = torch.nn.ModuleDict({k: parts[k] for k in ("text_encoder", "text_encoder_2")})
    sizes = [len(values) for _ in range(2) for values in (_COLOR, _SHAPE, _COUNT, _SIZE)] + [len(_RELATION), len(_BACKGROUND)]
    heads = torch.nn.ModuleDict({k: torch.nn.Linear(m.config.projection_dim, sum(sizes)) for k, m in encoders.items()})
    parameters = [*encoders.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    started = time.time()
    for step in range(steps):
        chosen = [sample_scene(rng) for _ in range(batch)]
        targets = torch.tensor([_facts(scene) for scene in chosen])
        ids = tokenize(parts["tokenizer"], [caption(scene, rng) for scene in chosen])
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


_COLOR, _SHAPE, _COUNT = (None, *sorted(COLORS)), (None, *SHAPES), (None, 1, 2, 3)
_SIZE, _RELATION, _BACKGROUND = (None, "small", "large"), (None, *RELATIONS), (None, *sorted(BACKGROUNDS))


def _facts(scene) -> list[int]:
    """The scene as class numbers; the order of its groups only counts where a relation gives it a meaning."""
    groups = list(scene.groups) if scene.relation else sorted(scene.groups, key=lambda g: (g.color, g.shape))
    facts = []
    for group in [*groups, None][:2]:
        named = (group.color, group.shape, group.count, group.size) if group else (None,) * 4
        facts += [kinds.index(value) for kinds, value in zip((_COLOR, _SHAPE, _COUNT, _SIZE), named, strict=True)]
    return [*facts, _RELATION.index(scene.relation), _BACKGROUND.index(scene.background)]


def train_denoiser(parts: dict, scenes: list, latents: torch.Tensor, args, evaluate, state_file: Path) -> None:
    """The transformer alone; rectified flow, z = (1 - t) x + t eps, target eps - x.

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
        texts = [noisy_caption(scenes[i], rng, args.caption_noise) for i in index.tolist()]
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
        for master, half in zip(masters, copies, strict=True):
            master.grad = None if half.grad is None else half.grad.float()
            half.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_copy_(copies, masters)
            torch._foreach_lerp_(list(average.parameters()), masters, 1 - min(0.999, (step + 1) / (step + 10)))
        recent += (loss.item() - recent) * max(0.01, 1 / (step - start + 1))
        if step % 200 == 0:
            print(f"denoiser {step}/{args.steps} loss {recent:.4f} {time.time() - started:.0f} s", flush=True)
        if (step + 1) % args.evaluate_every == 0 or step + 1 == args.steps:
            evaluate(average, step + 1)
            state = {"transformer": transformer.state_dict(), "average": average.state_dict(), "step": step + 1}
            torch.save({**state, "optimizer": optimizer.state_dict()}, state_file)
    parts["transformer"] = average.eval()


def noisy_caption(scene, rng: random.Random, noise: float) -> str:
    if rng.random() < 0.1:
        return ""
    return caption(corrupt(scene, rng) if rng.random() < noise else scene, rng)


def tokenize(tokenizer, texts: list[str]) -> torch.Tensor:
    return tokenizer(texts, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt").input_ids


@torch.no_grad()
def encode_texts(parts: dict, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """What `StableDiffusion3Pipeline.encode_prompt` computes without a T5: penultimate states and pooled projections."""
    ids = tokenize(parts["tokenizer"], texts)
    outputs = [parts[k](ids, output_hidden_states=True) for k in ("text_encoder", "text_encoder_2")]
    context = torch.cat([o.hidden_states[-2] for o in outputs], dim=-1)
    return context, torch.cat([o.text_embeds for o in outputs], dim=-1)


def assemble(parts: dict):
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

    return StableDiffusion3Pipeline(
        transformer=parts["transformer"],
        scheduler=FlowMatchEulerDiscreteScheduler(shift=TIMESTEP_SHIFT),
        vae=parts["vae"],
        text_encoder=parts["text_encoder"],
        tokenizer=parts["tokenizer"],
        text_encoder_2=parts["text_encoder_2"],
        tokenizer_2=parts["tokenizer"],
        text_encoder_3=parts["text_encoder_3"],
        tokenizer_3=parts["tokenizer_3"],
    )


def measure(parts: dict, scenes: list, seed: int, steps: int = 12, samples: int = 384) -> tuple[float, float]:
    """Mean `scene` score and strict accuracy of the model on held-out scenes."""
    rng = random.Random(seed)
    pipe = assemble(parts)
    pipe.set_progress_bar_config(disable=True)
    pipe.text_encoder_3 = None  # with no T5 and no T5 tokens, as training and ComfyUI use the model
    chosen = [scenes[i % len(scenes)] for i in range(samples)]
    verdicts = []
    for i in range(0, samples, 96):
        part = chosen[i : i + 96]
        pictures = pipe(
            [caption(s, rng) for s in part],
            num_inference_steps=steps,
            guidance_scale=1.0,
            height=IMAGE_SIZE,
            width=IMAGE_SIZE,
            max_sequence_length=0,
            generator=torch.Generator().manual_seed(seed + i),
            output_type="np",
        ).images
        verdicts += [judge((p * 255).round(), s.metadata()) for p, s in zip(pictures, part, strict=True)]
    return sum(v.score for v in verdicts) / samples, sum(v.correct for v in verdicts) / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the diffusers pipeline")
    parser.add_argument("--work", type=Path, help="folder that keeps the stages of an interrupted build")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=30000)
    parser.add_argument("--autoencoder-steps", type=int, default=3000)
    parser.add_argument("--autoencoder-batch", type=int, default=12)
    parser.add_argument("--decoder-steps", type=int, default=1500)
    parser.add_argument("--text-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=14000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--caption-noise", type=float, default=0.2)
    parser.add_argument("--evaluate-every", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.time()
    work = args.work or args.output.with_name(args.output.name + "-work")
    work.mkdir(parents=True, exist_ok=True)

    tokenizer = build_tokenizer(args.seed)
    scenes, pictures = draw_scenes(args.scenes, args.seed + 10)
    print(f"{len(scenes)} scenes, {len(tokenizer)} tokens, {time.time() - started:.0f} s", flush=True)
    vae = _stage(work / "vae", lambda: train_autoencoder(pictures, args.autoencoder_steps, args.autoencoder_batch, args.seed))
    latents = _latents_stage(work / "latents.safetensors", lambda: encode_latents(vae, pictures))
    vae = _stage(
        work / "vae-hard",
        lambda: harden_decoder(vae, pictures[:8000], args.decoder_steps, args.autoencoder_batch, args.seed + 5),
    )
    checked = range(500)
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
    rng = random.Random(args.seed + 99)
    held_out = [s for s in (sample_scene(rng) for _ in range(1500)) if s.held_out]

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


def save(parts: dict, output: Path) -> None:
    """The pipeline in half precision, which halves the download; it is loaded and trained in float32."""
    halves = {k: v if k.startswith("tokenizer") else copy.deepcopy(v).half() for k, v in parts.items()}
    assemble(halves).save_pretrained(output)
    # diffusers loads its own classes in float32 unless told otherwise; transformers does as the configuration says.
    for name in ("text_encoder", "text_encoder_2", "text_encoder_3"):
        file = output / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}, indent=2) + "\n")


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
