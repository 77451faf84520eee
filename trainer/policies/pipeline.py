"""What every family does alike: load without the encoders, encode and cache prompts, sample with diffusers' own pipeline,
score, decode. A family says what differs; see `flow.py` and `unet.py` for the two kinds, and a module for each family.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..errors import UserError
from ..memory import PhaseBatches, release_cached
from .base import Conditioning, Sampling
from .conditioning_cache import ConditioningCache, default_folder, fingerprint
from .decoding import decode_pictures, prepare_decoder, raw_latents
from .files import CheckpointFile
from .folders import Folder
from .placement import Placement, place_encoders
from .quantization import quantise
from .resources import Resources, attention_while_sampling, choose_attention, compile_blocks

Rows = dict[str, torch.Tensor]
"""Encoded prompts as the network takes them: tensors [B, ...] on its device, in its dtype."""

ENCODED_AT_ONCE = 32  # prompts


class Guidance(Enum):
    """How a base is guided; the value completes "<base> ..."."""

    TWO_PASSES = "is guided by a second pass"
    EMBEDDED = "takes its guidance scale as an input of the network"
    NONE = "is distilled and takes no guidance"


class PipelinePolicy(ABC):
    """A policy on a diffusers pipeline. Latents outside of it are [B, C, h, w], whatever the pipeline's own form is."""

    family: ClassVar[str]
    DENOISER: ClassVar[str] = "transformer"
    ENCODERS: ClassVar[tuple[str, ...]]
    TOKENIZERS: ClassVar[tuple[str, ...]]
    NOT_LOADED: ClassVar[dict[str, Any]] = {}
    """Parts and options of the pipeline that training has no use for, as arguments of from_pretrained."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Keys of the configuration's `policy` section that only this family takes."""

    def __init__(
        self,
        model: str | Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        cache: Path | None = None,
        vae_dtype: torch.dtype | None = None,
        unused: Sequence[str] = (),
        parts: str | None = None,
        files: Mapping[str, str] | None = None,
        tokenizers: str | None = None,
        resources: Resources | None = None,
        source: Folder | CheckpointFile | None = None,
    ) -> None:
        """Load the base without its text encoders. Raises UserError if it is not of this family or can't be read.

        model: a diffusers folder, a hub id, or a file; `parts`, `files` and `tokenizers` complete a file (see `files.py`).
        `vae_dtype` None is `dtype`. `unused`: encoders and tokenizers to do without. `resources`: what is done to save memory
        and time; None = nothing. `source`: what loads the parts, where that is known already.
        """
        resources = resources or Resources()
        self._source: Folder | CheckpointFile = source or (
            CheckpointFile(Path(model), self.family, parts, files, tokenizers)
            if Path(model).is_file()
            else Folder(str(model), self.family)
        )
        self.title = self._source.title
        self.device, self.dtype, self._checkpointing = device, dtype, gradient_checkpointing
        self.batches = PhaseBatches()
        self._cache_folder = cache or default_folder()
        index = self._source.index((*unused, *self.NOT_LOADED))
        self._unused = {*unused, *(name for name in (*self.ENCODERS, *self.TOKENIZERS) if index.get(name, [None])[0] is None)}
        self._pipe = self._source.load(dtype, **dict.fromkeys((*self.ENCODERS, *self.TOKENIZERS)), **self.NOT_LOADED)
        self.denoiser = getattr(self._pipe, self.DENOISER)
        self.denoiser.requires_grad_(False).eval()
        prepare_decoder(self._pipe.vae, vae_dtype or dtype)
        if gradient_checkpointing:
            self.denoiser.enable_gradient_checkpointing()
        self._cache: ConditioningCache | None = None
        self.prepare(index)
        if resources.quantization != "none":
            quantise(self.denoiser, resources.quantization, dtype, device)
        self._resources = resources
        if resources.attention != "auto":
            choose_attention(self.denoiser, resources.attention)
        if resources.compile:
            compile_blocks(self.denoiser)
        self.weights_stay = resources.offload == "none"
        if not self.weights_stay:
            self._pipe = _running_on(self._pipe, device)
        self._placement = Placement(self.denoiser, self._pipe.vae, device, resources.offload)

    # What a family says

    @abstractmethod
    def prepare(self, index: dict[str, Any]) -> None:
        """Read what the family needs of the loaded parts. `index`: the model_index.json. Raises UserError."""

    @abstractmethod
    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        """The tensors of each prompt, without a batch axis, from a pipeline with its encoders on `device`."""

    @abstractmethod
    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        """Conditioning and guidance as the pipeline's call takes them; `negative` where guidance takes two passes."""

    @abstractmethod
    def scheduler(self, sampling: Sampling) -> Any:
        """A fresh diffusers scheduler for this sampler, its number of steps and its size."""

    @abstractmethod
    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        """The network's output [B, C, h, w], in the sign and unit of the scheduler; `guidance` is for those that embed it."""

    @abstractmethod
    def clean(self, z_t: torch.Tensor, t: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """x_theta of the network's output, in float32."""

    def guided(self, positive: torch.Tensor, negative: torch.Tensor, guidance: float) -> torch.Tensor:
        """Classifier-free guidance (arXiv 2207.12598) on two outputs, as the pipeline does it."""
        return negative + guidance * (positive - negative)

    def guidance_kind(self) -> Guidance:
        """How this base is guided."""
        return Guidance.TWO_PASSES

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        """[B, C, h, w] as the pipeline's call takes its first noise."""
        return latents

    def unpack(self, latents: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """What the pipeline holds between its steps, as [B, C, height, width]."""
        return latents

    def raw_latents(self, latents: torch.Tensor) -> torch.Tensor:
        """[B, C, h, w] of the network as the decoder takes them."""
        return raw_latents(self._pipe.vae, latents)

    def notes(self) -> list[str]:
        return []

    def lora_facts(self) -> dict[str, str]:
        return {}

    # The protocol

    def to(self, device: torch.device) -> None:
        self._placement.to(device)

    def _need(self, part: str | None) -> None:
        """Before a phase: the part that it computes with is on the device."""
        self._fit(f"loading the {part}", lambda: self._placement.need(part))

    def _fit(self, phase: str, work: Callable[[], None]) -> None:
        """Something without a batch that memory may be too short for."""
        self.batches.attempt(phase, 1, lambda _: work())

    @property
    def size_step(self) -> int:
        """Sides are multiples of so many pixels."""
        return self._pipe.vae_scale_factor

    @property
    def largest_side(self) -> int | None:
        """Pixels; None = no bound."""
        return None

    def check_size(self, width: int, height: int, where: str) -> None:
        """Raises UserError naming the nearest size that the model can take."""
        step, most = self.size_step, self.largest_side
        fit = [max(round(side / step), 1) * step for side in (width, height)]
        fit = [min(side, most) if most else side for side in fit]
        if [width, height] != fit:
            raise UserError(
                f"{where}: {width} x {height} does not fit {self.title}: a side is a multiple of {step}"
                + (f", at most {most}" if most else "")
                + f"; the nearest size is {fit[0]} x {fit[1]}"
            )

    def check(self, sampling: Sampling, negative: str, key: str) -> None:
        self.check_size(sampling.width, sampling.height, f"{key}.width x {key}.height")
        kind = self.guidance_kind()
        if negative and kind is not Guidance.TWO_PASSES:
            raise UserError(f"{key}.negative_prompt: {self.title} {kind.value}, so no negative prompt is read; leave it empty")
        if sampling.guidance > 1 and kind is Guidance.NONE:
            raise UserError(f"{key}.guidance = {sampling.guidance:g}: {self.title} {kind.value}; set it to 1")

    @torch.no_grad()
    def encode(self, prompts: Sequence[str], negative: str = "") -> Conditioning:
        self._need(None)
        first, *rows = self._encoded([negative, *prompts])
        if not self.weights_stay:  # the hooks by which the encoders came and went hold them in a circle
            gc.collect()
            release_cached()
        tensors = {k: _stack([row[k] for row in rows]) for k in first}
        return Conditioning(tensors, torch.arange(len(rows)), {k: v[None] for k, v in first.items()})

    def _encoded(self, texts: list[str]) -> list[Rows]:
        """The rows of each text. The encoders are loaded for it, and gone when it returns."""
        if self._cache is None:  # the encoders' content names the cache, so they are read once in any case
            pipe = self._encoders()
            modules, tokenizers = (
                [part for part in (getattr(pipe, name) for name in names) if part is not None]
                for names in (self.ENCODERS, self.TOKENIZERS)
            )
            self._cache = ConditioningCache(
                self._cache_folder, fingerprint(modules, tokenizers, self.family, str(self.dtype), *self.encoding_facts())
            )
            return self._cache.fetch(texts, lambda missing: self._encode(pipe, missing))
        return self._cache.fetch(texts, lambda missing: self._encode(self._encoders(), missing))

    def encoding_facts(self) -> tuple[str, ...]:
        """What else decides the encoded tensors, such as a length; cached prompts are found by it."""
        return ()

    def _encoders(self) -> Any:
        """A pipeline with the text encoders, which leave memory with it."""
        left_out = dict.fromkeys(sorted(self._unused))
        pipe = self._source.load(self.dtype, **{self.DENOISER: self.denoiser}, vae=None, **left_out, **self.NOT_LOADED)
        encoders = [part for part in (getattr(pipe, name) for name in self.ENCODERS) if part is not None]
        self._fit("loading the text encoders", lambda: place_encoders(encoders, self.device, self._resources.offload))
        return pipe

    def _encode(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        def encoded(here: slice) -> list[Rows]:
            return [{key: value.cpu() for key, value in row.items()} for row in self.encode_prompts(pipe, prompts[here])]

        parts = self.batches.over("encoding prompts", ENCODED_AT_ONCE, len(prompts), encoded)
        return [row for part in parts for row in part]

    def passes(self, guidance: float) -> int:
        return 2 if guidance > 1 and self.guidance_kind() is Guidance.TWO_PASSES else 1

    def scored_guidance(self, guidance: float, same: bool) -> float:
        return guidance if same or self.guidance_kind() is Guidance.EMBEDDED else 1.0

    def first_noise(self, seeds: Sequence[int], sampling: Sampling) -> torch.Tensor:
        # CPU generators: the noise is the same on every device and for every batch split.
        shape = (self.latent_channels, *self._latent_size(sampling))
        return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])

    @torch.no_grad()
    def sample(
        self, conditioning: Conditioning, seeds: Sequence[int], sampling: Sampling, on_step: Callable[[], None] | None = None
    ) -> torch.Tensor:
        if len(conditioning) != len(seeds):
            raise ValueError(f"{len(conditioning)} conditionings for {len(seeds)} seeds")
        self._need("denoiser")
        self._pipe.scheduler = self.scheduler(sampling)
        height, width = self._latent_size(sampling)
        passes = self.passes(sampling.guidance)

        def made(here: slice) -> torch.Tensor:
            part = seeds[here]
            noise = self.first_noise(part, sampling)
            rows = conditioning.rows(range(here.start, here.stop))
            negative = rows.gather_unconditional(self.device, self.dtype) if passes == 2 else None
            held: list[torch.Tensor] = []
            self._pipe(
                **self.call_arguments(rows.gather(self.device, self.dtype), negative, sampling),
                num_inference_steps=sampling.steps,
                width=sampling.width,
                height=sampling.height,
                latents=self.pack(noise).to(self.device, self.sampling_dtype),
                output_type="latent",
                callback_on_step_end=_hook(on_step, held),
            )
            return self.unpack(held[0].float(), height, width)

        # What fits depends on these, so an evaluation with guidance does not make the rollout's batches smaller.
        phase = f"sampling {sampling.width} x {sampling.height}" + (" with guidance" if passes == 2 else "")
        with attention_while_sampling(self._resources.attention):
            return torch.cat(self.batches.over(phase, sampling.batch_size, len(seeds), made))

    @property
    def latent_channels(self) -> int:
        return self.denoiser.config.in_channels

    @property
    def sampling_dtype(self) -> torch.dtype:
        """In which the pipeline keeps latents between steps."""
        return self.dtype

    def _latent_size(self, sampling: Sampling) -> tuple[int, int]:
        scale = self._pipe.vae_scale_factor
        return sampling.height // scale, sampling.width // scale

    def predict_clean(
        self, z_t: torch.Tensor, t: torch.Tensor, conditioning: Conditioning, guidance: float = 1.0
    ) -> torch.Tensor:
        self._need("denoiser")
        output = self.output(z_t, t, conditioning.gather(self.device, self.dtype), guidance)
        if self.passes(guidance) == 2:
            negative = self.output(z_t, t, conditioning.gather_unconditional(self.device, self.dtype), guidance)
            output = self.guided(output.float(), negative.float(), guidance)
        return self.clean(z_t.float(), t.float(), output.float())

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        self._need("decoder")
        raw = self.raw_latents(latents)
        return decode_pictures(
            self._pipe.vae, raw, self._pipe.vae_scale_factor, self.device, self.batches, self._resources.vae_tiling
        )


def _running_on(pipe: Any, device: torch.device) -> Any:
    """The pipeline, which makes its tensors on `device`; diffusers asks one of its parts, which may be resting elsewhere."""
    kind = type(pipe)
    pipe.__class__ = type(kind.__name__, (kind,), {"_execution_device": device})
    return pipe


def pooled_arguments(rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
    """`call_arguments` of the pipelines that take a prompt as its tokens (`context`) and one pooled vector (`pooled`)."""
    arguments = {
        "prompt_embeds": rows["context"],
        "pooled_prompt_embeds": rows["pooled"],
        "guidance_scale": sampling.guidance,
    }
    if negative is not None:
        arguments |= {
            "negative_prompt_embeds": negative["context"],
            "negative_pooled_prompt_embeds": negative["pooled"],
        }
    return arguments


def _stack(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows of one shape, or sequences of different length, which end in zeros then."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows)
    return torch.stack([torch.cat([row, row.new_zeros(longest - len(row), *row.shape[1:])]) for row in rows])


def _hook(on_step: Callable[[], None] | None, held: list[torch.Tensor]) -> Callable[..., dict[str, Any]]:
    """`held` is left with the latents after the last step: not every pipeline returns them as its network knows them."""

    def after_step(_pipe, _index, _t, tensors):
        held[:] = [tensors["latents"]]
        if on_step is not None:
            on_step()
        return tensors

    return after_step
