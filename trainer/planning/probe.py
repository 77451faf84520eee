"""What each phase's tensors take, found by running the policy's own code on a base without storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..algorithms.base import Algorithm
from ..config import RunConfig
from ..estimate import SurrogateEstimate
from ..evaluation import evaluation_prompts, evaluation_sampling, evaluation_sizes
from ..loop import Learner, algorithm_of, sampling_of
from ..lora.adapter import add_factors, resolve_targets
from ..objective import draw_pairs
from ..policies import decoder_format, load_policy
from ..policies.base import Conditioning, Sampling
from ..policies.pipeline import ENCODED_AT_ONCE
from ..rollout import Rollout
from ..sizes import Size, named_size
from .blueprint import Blueprint, blueprint_of
from .hollow import RealMasks, hollow, new_mode
from .tracking import Usage
from .weights import DenoiserSizes

_STEPS = 2  # of a solver: the second has what it keeps of the first; a multistep one keeps two outputs, each one latent
CPU, META = torch.device("cpu"), torch.device("meta")


@dataclass(frozen=True)
class Cost:
    """`peak`: bytes of all tensors that the phase makes, at most, beside weights and what stays between phases.

    `flops`: of the `count` prompts, network evaluations, pictures or rows that were run.
    """

    peak: int
    flops: int
    count: int

    def flops_each(self) -> float:
        return self.flops / self.count


class Probe:
    """A policy without storage, and its LoRA. Raises UserError for what `build_bench` would refuse of the same base."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """device: where the run is to take place; nothing is put there."""
        from accelerate import init_empty_weights

        self.blueprint: Blueprint = blueprint_of(config.policy)
        # What these do to the weights is arithmetic (weights.py); activations are those of the plain network.
        plain = {"quantization": "none", "offload": "none", "compile": False, "attention": "auto"}
        plain["vae_dtype"] = decoder_format(config.policy, device)
        self.policy = load_policy(config.policy.model_copy(update=plain), META, source=self.blueprint)
        self._mode = new_mode()
        # From here on what is real stays on the CPU, with weights that only say so.
        self.policy.device = CPU
        lora, denoiser = config.policy.lora, self.policy.denoiser
        self.sizes = DenoiserSizes.of(denoiser)
        self.targets = resolve_targets(denoiser, lora.targets, self.policy.family)
        with init_empty_weights(include_buffers=False):
            add_factors(denoiser, lora.rank, lora.alpha, self.targets)
        for parameter in denoiser.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)  # as `LoraAdapter` does
        for module in (denoiser, self.vae):
            hollow(module, self._mode)
        self.trained = [parameter for parameter in denoiser.parameters() if parameter.requires_grad]
        with self._mode:
            for parameter in self.trained:  # as from the second micro-batch on
                parameter.grad = torch.zeros_like(parameter)
        self._row: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None = None
        self.check(config)

    def check(self, config: RunConfig) -> None:
        """Raises UserError for a size or guidance that the base can't take."""
        for size in sizes_of(config):
            self.policy.check(sampling_of(config).at(size), config.rollout.negative_prompt, "rollout")
        for size in judged_sizes(config):
            self.policy.check(evaluation_sampling(config).at(size), "", "evaluation")

    @property
    def vae(self) -> torch.nn.Module:
        return self.policy._pipe.vae

    def latent_numbers(self, config: RunConfig) -> int:
        """How many numbers one picture's latent has."""
        return self._latents(config, 1).numel()

    def merged_bytes(self, config: RunConfig) -> int:
        """A CPU samples with the factors added to copies of the weights, in float32 (`LoraAdapter.for_sampling`)."""
        if config.policy.dtype != "float32":
            return 0
        layers = (self.policy.denoiser.get_submodule(name) for name in self.targets)
        return sum(layer.get_base_layer().weight.numel() * 4 for layer in layers)

    def algorithm(self, config: RunConfig) -> Algorithm:
        """What decides how many network evaluations the first iteration takes; nothing can be trained by it."""
        return algorithm_of(config, Learner(self.policy, adapter=None, stepper=None), 0)

    def encode(self, config: RunConfig, count: int = ENCODED_AT_ONCE) -> tuple[Cost, list[torch.nn.Module]]:
        """Encoding so many of the run's longest prompts at once; and the encoders."""
        self.policy.device = META
        try:
            pipe = self.policy._encoders()
        finally:
            self.policy.device = CPU
        encoders = [module for name in self.policy.ENCODERS if (module := getattr(pipe, name, None)) is not None]
        for encoder in encoders:
            hollow(encoder, self._mode)
        texts = {config.rollout.negative_prompt, *(p.text for p in (*config.prompts.train, *config.prompts.evaluate))}
        longest = sorted(texts, key=len, reverse=True)[:count]
        with torch.no_grad(), Usage(*encoders) as usage, RealMasks():
            rows = self.policy.encode_prompts(pipe, longest)
        with torch.no_grad(), RealMasks():
            (negative,) = self.policy.encode_prompts(pipe, [config.rollout.negative_prompt])
        most = max(rows, key=lambda row: sum(tensor.numel() for tensor in row.values()))
        self._row = self._filled(most), self._filled(negative)
        return Cost(usage.peak, usage.flops, len(longest)), encoders

    def _filled(self, row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One prompt's tensors [1, ...]. Masks decide about shapes, so what has one dimension gets values: ones."""
        out = {}
        for name, tensor in row.items():
            if tensor.ndim == 1:
                out[name] = torch.ones(1, *tensor.shape, dtype=tensor.dtype)
            else:
                with self._mode:
                    out[name] = torch.empty(1, *tensor.shape, dtype=tensor.dtype)
        return out

    def conditioning(self, config: RunConfig, count: int) -> Conditioning:
        """The longest prompt, for so many outputs."""
        if self._row is None:
            self.encode(config)
        tensors, negative = self._row
        return Conditioning(tensors, torch.zeros(count, dtype=torch.long), negative)

    def sample(self, config: RunConfig, sampling: Sampling) -> Cost:
        """One batch of `sampling.batch_size` outputs, its first solver steps."""
        count = sampling.batch_size
        short = replace(sampling, steps=min(_STEPS, sampling.steps))
        evaluations = self.policy.noise_levels(short)[1]
        conditioning = self.conditioning(config, count)
        with torch.no_grad(), Usage(self.policy.denoiser) as usage, RealMasks():
            self.policy.sample(conditioning, range(count), short)
        return Cost(usage.peak, usage.flops, evaluations * count)

    def decode(self, config: RunConfig, count: int) -> Cost:
        """A batch of so many pictures."""
        latents = self._latents(config, count)
        with Usage(self.vae) as usage, RealMasks():
            self.policy.decode(latents)
        return Cost(usage.peak, usage.flops, count)

    def surrogate_values(self, config: RunConfig, rows: int) -> Cost:
        """theta_old's losses of at most so many rows, which go through the network at once."""
        return self._estimate(config, rows, lambda estimate, outputs: estimate.values(outputs))

    def update(self, config: RunConfig, rows: int) -> Cost:
        """The same rows forward and backward."""
        return self._estimate(
            config, rows, lambda estimate, outputs: estimate.backward(outputs, lambda losses, _: losses.sum())
        )

    def _estimate(self, config: RunConfig, rows: int, run: Callable[[SurrogateEstimate, torch.Tensor], object]) -> Cost:
        surrogate = config.surrogate
        pairs = min(surrogate.pairs, rows)  # with more of them an output's rows are spread over several batches
        count = rows // pairs
        levels, _ = self.policy.noise_levels(largest_sampling(config))
        draw = draw_pairs(levels, pairs, surrogate.share, 0, 0, range(1), count, surrogate.stratified)
        rollout = Rollout(
            latents=tuple(self._latents(config, count)),
            images=(),
            conditioning=self.conditioning(config, count),
            group_ids=torch.zeros(count, dtype=torch.long),
            prompts=(),
            seeds=(0,) * count,
        )
        guidance = self.algorithm(config).scored_guidance()
        estimate = SurrogateEstimate(self.policy, rollout, draw, surrogate.weighting, rows, guidance)
        with Usage(self.policy.denoiser) as usage, RealMasks():
            run(estimate, torch.arange(count))
        return Cost(usage.peak, usage.flops, count * pairs)

    def raw_latent(self, config: RunConfig) -> torch.Tensor:
        """One picture's latent of half its sides, as the decoder takes it, without values."""
        latents = self._latents(config, 1)
        raw = self.policy.raw_latents(latents[..., : latents.shape[-2] // 2, : latents.shape[-1] // 2])
        return raw[:, :, None] if "temperal_downsample" in self.vae.config else raw

    def _latents(self, config: RunConfig, count: int) -> torch.Tensor:
        height, width = self.policy._latent_size(largest_sampling(config))
        return torch.zeros(count, self.policy.latent_channels, height, width)


def outputs_of(config: RunConfig) -> int:
    """How many pictures an iteration makes."""
    return config.rollout.prompts_per_iteration * config.rollout.group_size


def sizes_of(config: RunConfig) -> list[Size]:
    """Every size that a rollout may have."""
    named = (named_size(prompt) for prompt in config.prompts.train)
    return list(dict.fromkeys([*config.rollout.sizes, *filter(None, named)]))


def judged_sizes(config: RunConfig) -> list[Size]:
    """Every size that an evaluation's pictures have."""
    return list(dict.fromkeys(evaluation_sizes(config, evaluation_prompts(config))))


def largest_sampling(config: RunConfig) -> Sampling:
    """How the rollout samples at the largest of its sizes."""
    return sampling_of(config).at(max(sizes_of(config), key=_area))


def largest_judged(config: RunConfig) -> Sampling:
    """How an evaluation samples at the largest of its sizes."""
    return evaluation_sampling(config).at(max(judged_sizes(config), key=_area))


def _area(size: Size) -> int:
    return size[0] * size[1]
