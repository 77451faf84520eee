"""Stable Diffusion 3 and 3.5 (any size): rectified flow, z_t = (1 - t) x + t eps, network output v = eps - x.

The embedded model is one instance. Sampling is diffusers' own `StableDiffusion3Pipeline` call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import UserError, one_line
from ..objective import clean_from_velocity
from .base import Conditioning, Sampling
from .conditioning_cache import ConditioningCache, default_folder, fingerprint
from .samplers import TRAIN_TIMESTEPS, flow_scheduler, noise_levels

PIPELINE = "StableDiffusion3Pipeline"
T5_TOKENS = 256  # the pipeline's default
PLAIN_TOKENS = 256  # image and text tokens up to which plain attention is taken on a CPU
DECODE_PIXELS = 4 * 2**20  # pictures decoded at a time hold at most this many pixels
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")


class SD3Policy:
    family = "sd3"

    def __init__(
        self,
        model: str | Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        cache: Path | None = None,
        use_t5: bool = True,
        vae_dtype: torch.dtype | None = None,
    ):
        """Load a diffusers folder or hub id, without its text encoders. Raises UserError if it is no SD3 or can't be read.

        `use_t5=False` leaves T5 out even where the folder has one; a placeholder that always says 0 is left out in any case.
        `vae_dtype` None is `dtype`.
        """
        self.title = Path(model).name if Path(model).is_dir() else str(model)
        self.device, self.dtype, self._checkpointing = device, dtype, gradient_checkpointing
        self._model, self._cache_folder = str(model), cache or default_folder()
        use_t5 = use_t5 and not _t5_is_silent(Path(self._model))
        index = _model_index(self._model, () if use_t5 else (_ENCODERS[2], _TOKENIZERS[2]))
        self._has_t5 = use_t5 and index.get("text_encoder_3", [None])[0] is not None
        self._pipe = _load(self._model, dtype, **dict.fromkeys((*_ENCODERS, *_TOKENIZERS)))
        self.denoiser = self._pipe.transformer
        self.denoiser.requires_grad_(False).eval()
        self._pipe.vae.requires_grad_(False).eval().to(dtype=vae_dtype or dtype, memory_format=torch.channels_last)
        if gradient_checkpointing:
            self.denoiser.enable_gradient_checkpointing()
        self.shift = _timestep_shift(self._pipe.scheduler, self._model)
        self.latent_multiple = self._pipe.vae_scale_factor * self._pipe.patch_size
        self._cache: ConditioningCache | None = None
        self.to(device)

    def to(self, device: torch.device) -> None:
        self.denoiser.to(device)
        self._pipe.vae.to(device)

    def check_size(self, width: int, height: int, where: str) -> None:
        """Raises UserError naming the nearest size that the model can take."""
        step = self.latent_multiple
        most = self.denoiser.config.pos_embed_max_size * step
        fit = [min(max(round(side / step), 1) * step, most) for side in (width, height)]
        if [width, height] != fit:
            raise UserError(
                f"{where}: {width} x {height} does not fit {self.title}: a side is a multiple of {step}, at most {most}; "
                f"the nearest size is {fit[0]} x {fit[1]}"
            )

    # Conditioning

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Conditioning:
        texts = ["", *prompts]
        if self._cache is None:  # the encoders' content names the cache, so they are read once in any case
            pipe = self._encoders()
            modules, tokenizers = (
                [part for part in (getattr(pipe, name) for name in names) if part is not None]
                for names in (_ENCODERS, _TOKENIZERS)
            )
            self._cache = ConditioningCache(
                self._cache_folder, fingerprint(modules, tokenizers, self.family, str(self.dtype), str(self._t5_tokens))
            )
            rows = self._cache.fetch(texts, lambda missing: self._encode(pipe, missing))
        else:
            rows = self._cache.fetch(texts, lambda missing: self._encode(self._encoders(), missing))
        empty, rows = rows[0], rows[1:]
        tensors = {k: torch.stack([row[k] for row in rows]) for k in empty}
        return Conditioning(tensors, torch.arange(len(rows)), {k: v[None] for k, v in empty.items()})

    @property
    def _t5_tokens(self) -> int:
        # Without a T5 diffusers would append 256 tokens of zeros. ComfyUI, where the LoRA is used, appends none.
        return T5_TOKENS if self._has_t5 else 0

    def _encoders(self):
        without = {} if self._has_t5 else {"text_encoder_3": None, "tokenizer_3": None}
        pipe = _load(self._model, self.dtype, transformer=self.denoiser, vae=None, **without)
        for name in _ENCODERS:
            if getattr(pipe, name) is not None:
                getattr(pipe, name).to(self.device)
        return pipe

    def _encode(self, pipe, prompts: list[str]) -> list[dict[str, torch.Tensor]]:
        rows = []
        for start in range(0, len(prompts), 32):
            part = prompts[start : start + 32]
            context, _, pooled, _ = pipe.encode_prompt(
                part, None, None, device=self.device, do_classifier_free_guidance=False, max_sequence_length=self._t5_tokens
            )
            rows += [{"context": c.cpu(), "pooled": p.cpu()} for c, p in zip(context, pooled, strict=True)]
        return rows

    # Sampling

    def noise_levels(self, sampling: Sampling) -> tuple[torch.Tensor, int]:
        levels, evaluations = noise_levels(sampling.sampler, sampling.steps, self.shift)
        return levels, evaluations * (2 if sampling.guidance > 1 else 1)

    @torch.no_grad()
    def sample(
        self, conditioning: Conditioning, seeds: Sequence[int], sampling: Sampling, on_step: Callable[[], None] | None = None
    ) -> torch.Tensor:
        if len(conditioning) != len(seeds):
            raise ValueError(f"{len(conditioning)} conditionings for {len(seeds)} seeds")
        scale = self._pipe.vae_scale_factor
        shape = (self.denoiser.config.in_channels, sampling.height // scale, sampling.width // scale)
        self._pipe.scheduler = flow_scheduler(sampling.sampler, self.shift)
        parts = []
        for start in range(0, len(seeds), sampling.batch_size):
            part = seeds[start : start + sampling.batch_size]
            # CPU generators: the noise is the same on every device and for every batch split.
            noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in part])
            rows = conditioning.rows(range(start, start + len(part)))
            embeds, negative = rows.gather(self.device, self.dtype), {}
            if sampling.guidance > 1:
                empty = rows.gather_unconditional(self.device, self.dtype)
                negative = {"negative_prompt_embeds": empty["context"], "negative_pooled_prompt_embeds": empty["pooled"]}
            latents = self._pipe(
                prompt_embeds=embeds["context"],
                pooled_prompt_embeds=embeds["pooled"],
                **negative,
                guidance_scale=sampling.guidance,
                num_inference_steps=sampling.steps,
                width=sampling.width,
                height=sampling.height,
                latents=noise.to(self.device, self.dtype),
                output_type="latent",
                callback_on_step_end=_hook(on_step),
            ).images
            parts.append(latents.float())
        return torch.cat(parts)

    # The surrogate's view of the network

    def visible_time(self, t: torch.Tensor) -> torch.Tensor:
        # diffusers' SD3 transformer embeds its timestep in float32 whatever the weights' dtype.
        return (t.float() * TRAIN_TIMESTEPS) / TRAIN_TIMESTEPS

    def coefficients(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 1 - t, t

    def predict_clean(self, z_t: torch.Tensor, t: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        rows = conditioning.gather(self.device, self.dtype)
        with self._attention(z_t, rows["context"]):
            v = self.denoiser(
                hidden_states=z_t.to(self.dtype),
                timestep=t.float() * TRAIN_TIMESTEPS,
                encoder_hidden_states=rows["context"],
                pooled_projections=rows["pooled"],
                return_dict=False,
            )[0]
        return clean_from_velocity(z_t.float(), v.float(), t.float())

    def _attention(self, z_t: torch.Tensor, context: torch.Tensor):
        """Plain attention for short sequences on a CPU, where the fused kernel's backward pass is the slower one.

        Not with checkpointing: the recomputation would run outside and save other tensors.
        """
        tokens = z_t.shape[-1] * z_t.shape[-2] // self._pipe.patch_size**2 + context.shape[1]
        if self.device.type != "cpu" or tokens > PLAIN_TOKENS or self._checkpointing:
            return nullcontext()
        return sdpa_kernel(SDPBackend.MATH)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        vae = self._pipe.vae
        scaled = latents / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
        pixels = scaled.shape[-1] * scaled.shape[-2] * self._pipe.vae_scale_factor**2
        parts = []
        for chunk in scaled.split(max(1, DECODE_PIXELS // pixels)):
            chunk = chunk.to(self.device, vae.dtype).contiguous(memory_format=torch.channels_last)
            picture = vae.decode(chunk, return_dict=False)[0].float()
            parts.append(((picture / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu())
        return torch.cat(parts).contiguous()


def _hook(on_step: Callable[[], None] | None):
    if on_step is None:
        return None

    def after_step(_pipe, _index, _t, tensors):
        on_step()
        return tensors

    return after_step


def _model_index(model: str, unused: Sequence[str]) -> dict:
    """The folder's list of parts, all but the `unused` of which are there. Raises UserError."""
    from diffusers import DiffusionPipeline

    if Path(model).is_dir() and not (Path(model) / "model_index.json").is_file():
        raise UserError(f"policy.model: {model} is not a diffusers pipeline folder: it has no model_index.json")
    try:
        index = DiffusionPipeline.load_config(model)
    except Exception as error:
        raise UserError(
            f"policy.model: {model!r} can't be read as a diffusers folder or hub id ({one_line(error)[:200]}); "
            "give a folder with a model_index.json, or a hub id that is cached or reachable"
        ) from error
    found = index.get("_class_name") if isinstance(index, dict) else "file that is no pipeline"
    if found != PIPELINE:
        raise UserError(f"policy.family: {model} holds a {found}, but family sd3 needs a {PIPELINE}")
    parts = [k for k, v in index.items() if not k.startswith("_") and isinstance(v, list) and v[0] and k not in unused]
    missing = [part for part in parts if Path(model).is_dir() and not (Path(model) / part).is_dir()]
    if missing:
        raise UserError(
            f"policy.model: {model} has no folder {', '.join(missing)}, which its model_index.json lists; copy the model again"
        )
    return index


def _t5_is_silent(folder: Path) -> bool:
    """Whether the folder's T5 is a placeholder whose output is 0 for every prompt, by the weight of its last norm.

    Its tokens would be what diffusers fills in without a T5, and cost several times the network's work on a small picture.
    """
    from safetensors import safe_open

    file, key = folder / "text_encoder_3" / "model.safetensors", "encoder.final_layer_norm.weight"
    if not file.is_file():
        return False
    try:
        with safe_open(file, "pt") as tensors:
            return key in tensors.keys() and not tensors.get_tensor(key).any()
    except Exception:  # a damaged file is named when the encoders are loaded
        return False


def _timestep_shift(scheduler, model: str) -> float:
    """The shift of the timesteps that the model was trained for; diffusers' schedulers keep it under two names."""
    shift = scheduler.config.get("shift", scheduler.config.get("flow_shift"))
    if shift is None:
        raise UserError(
            f"policy.model: the {type(scheduler).__name__} of {model} states no timestep shift; "
            "family sd3 needs a flow-matching scheduler such as FlowMatchEulerDiscreteScheduler"
        )
    return float(shift)


def _load(model: str, dtype: torch.dtype, **parts):
    from diffusers import StableDiffusion3Pipeline
    from diffusers.utils import logging

    quiet = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # Newer diffusers call it `dtype`, older ones would ignore that word and load float32.
            warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
            pipe = StableDiffusion3Pipeline.from_pretrained(model, torch_dtype=dtype, use_safetensors=True, **parts)
    except Exception as error:
        raise UserError(f"policy.model: loading {model} failed: {one_line(error)[:300]}") from error
    finally:
        if quiet:
            logging.enable_progress_bar()
    for part, module in pipe.components.items():
        # diffusers only warns of a tensor that the file lacks, and leaves it without storage.
        lacking = [k for k, v in module.state_dict().items() if v.is_meta] if isinstance(module, torch.nn.Module) else []
        if lacking:
            raise UserError(f"policy.model: the weights of {part} in {model} lack {len(lacking)} tensors, first {lacking[0]}")
    pipe.set_progress_bar_config(disable=True)
    return pipe
