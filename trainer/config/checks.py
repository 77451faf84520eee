"""Checks across keys: combinations that cannot act are refused, those that are known to disappoint are warned about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..algorithms import ALGORITHMS
from ..families import FAMILIES
from ..sizes import BUCKET, named_size, size_text
from .shape import KEYS as SHAPE_KEYS
from .table import show

if TYPE_CHECKING:
    from .model import RunConfig

# Few distinct values a group: the soft clip then squashes the only differences there are (arXiv 2604.23380, GenEval).
COARSE_REWARDS = ("geneval",)
_DISTILLED = re.compile(r"turbo|lightning|lcm|hyper|dmd|(?<!de-)(?<!de)distill|schnell|flash", re.IGNORECASE)
_CONVERGING_PAIRS = 4


def refusals(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(key, one line) for each combination that cannot do what it says."""
    objective, rollout = config.objective, config.rollout
    if objective.gradient_steps == 1:
        if objective.clip_eps is not None:
            yield (
                "objective.clip_eps",
                f"objective.clip_eps = {objective.clip_eps:g} can never act with objective.gradient_steps = 1: the ratio is "
                "exactly 1 in the only step; set clip_eps to null or gradient_steps to 2 or more",
            )
        if objective.kl_coef > 0 and not ALGORITHMS[config.algorithm].kl_to_base:
            yield (
                "objective.kl_coef",
                f"objective.kl_coef = {objective.kl_coef:g} can never act with objective.gradient_steps = 1: at the behaviour "
                "policy itself the KL has gradient 0; set kl_coef to 0 or gradient_steps to 2 or more",
            )
    yield from _of_the_family(config)
    yield from _of_the_algorithm(config)
    yield from _of_the_memory(config)
    yield from _of_the_sizes(config)
    yield from _of_deferred(config)
    spare = len(config.prompts.train) - rollout.prompts_per_iteration
    for key, value in (("rollout.refill", rollout.refill), ("rollout.rest_flat", rollout.rest_flat)):
        if value and spare == 0:
            yield (
                key,
                f"{key} = {show(value)} can never act: an iteration takes all {len(config.prompts.train)} of prompts.train, so "
                "there is none to draw instead; add prompts, or lower rollout.prompts_per_iteration",
            )
    yield from _beyond_the_paper(config)
    if config.surrogate.guidance == "same" and rollout.guidance == 1:
        yield (
            "surrogate.guidance",
            "surrogate.guidance = same can never act with rollout.guidance = 1: there is no guidance to score with; set "
            "surrogate.guidance to none or raise rollout.guidance",
        )
    if rollout.negative_prompt and rollout.guidance == config.evaluation.guidance == 1:
        yield (
            "rollout.negative_prompt",
            "rollout.negative_prompt can never act: rollout.guidance and evaluation.guidance are 1, and without guidance no "
            "negative prompt is read; raise one of them, or leave it empty",
        )
    outputs = rollout.prompts_per_iteration * rollout.group_size
    if objective.gradient_steps > outputs:
        yield (
            "objective.gradient_steps",
            f"objective.gradient_steps = {objective.gradient_steps}, but an iteration has only {outputs} outputs "
            f"({rollout.prompts_per_iteration} prompts x {rollout.group_size}) to split into minibatches; "
            f"allowed: 1 to {outputs}",
        )
    train = len(config.prompts.train)
    if rollout.prompts_per_iteration > train:
        yield (
            "rollout.prompts_per_iteration",
            f"rollout.prompts_per_iteration = {rollout.prompts_per_iteration}, but prompts.train has only {train}, and "
            f"prompts are drawn without replacement; allowed: 1 to {train}, or add prompts",
        )
    if config.optimizer.warmup > config.iterations:
        yield (
            "optimizer.warmup",
            f"optimizer.warmup = {config.optimizer.warmup} is more than iterations = {config.iterations}, so the learning "
            f"rate would never be reached; allowed: 0 to {config.iterations}",
        )


def _of_deferred(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What the gradient depends on beside the outputs, or needs before it, and what would make it too large."""
    objective, key = config.objective, "objective.deferred"
    if not objective.deferred:
        return
    start = f"{key} = {objective.deferred} takes gradients before the rewards are known"
    if objective.gradient_steps > 1:
        yield (
            key,
            f"{start}, which only a single gradient step allows: in later ones the ratio and its clip depend on the advantage; "
            "set objective.gradient_steps to 1, or deferred to 0",
        )
    if objective.advantage.keep < 1:
        yield key, f"{start}, and objective.advantage.keep chooses the outputs by their rewards; set one of them to its default"
    if objective.norm_guard.weight:
        yield key, f"{start}, and objective.norm_guard adds a gradient of its own; set one of them to 0"
    if config.rollout.refill:
        yield key, f"{start}, and rollout.refill waits for them to draw more prompts; set one of them to 0"
    if objective.advantage.scale == "batch":
        yield (
            key,
            f"{start} and adds each group's when it is scored, but objective.advantage.scale = batch needs all of them at "
            "once; set scale to group or none, or deferred to 0",
        )
    if config.policy.offload != "none":
        yield (
            key,
            f"{start}, so that rewards and denoiser are on the device together, which policy.offload = {config.policy.offload} "
            "is there to prevent; set one of them to its default",
        )


def _of_the_sizes(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Widths and heights that make no sizes, and prompts that ask for others."""
    rollout, evaluation = config.rollout, config.evaluation
    for key, section in (("rollout", rollout), ("evaluation", evaluation)):
        try:
            if (section.width is None) != (section.height is None):
                raise ValueError("both must be given, or neither")
            _ = section.sizes
        except ValueError as error:
            yield f"{key}.width", f"{key}.width = {show(section.width)} with {key}.height = {show(section.height)}: {error}"
            if section is rollout:
                return
    for key, prompts in (("prompts.train", config.prompts.train), ("prompts.evaluate", config.prompts.evaluate)):
        for index, prompt in enumerate(prompts):
            try:
                size = named_size(prompt)
                wrong = None if size is None or size in rollout.sizes else f"{size_text(size)} is no size of the rollout"
            except ValueError as error:
                wrong = str(error)
            if wrong:
                yield (
                    key,
                    f"{key}[{index}] ({show(prompt.text)}): {BUCKET}: {wrong}; allowed here: "
                    f"{', '.join(map(size_text, rollout.sizes))} (rollout.width x rollout.height)",
                )


def _of_the_family(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings that another kind of base has, and this one has not."""
    policy = config.policy
    if not policy.model.lower().endswith(".safetensors"):
        for key in ("parts", "files", "tokenizers"):
            if getattr(policy, key):
                yield (
                    f"policy.{key}",
                    f"policy.{key} completes a checkpoint file, and policy.model = {policy.model} is none; leave it out",
                )
    if FAMILIES[policy.family].kind == "unet":
        if config.rollout.shift is not None:
            yield "rollout.shift", f"rollout.shift: family {policy.family} has a noise schedule and no shift; leave it null"
        return
    for key in ("prediction", "zero_terminal_snr"):
        if getattr(policy, key) is not None:
            unets = ", ".join(name for name, family in FAMILIES.items() if family.kind == "unet")
            yield (
                f"policy.{key}",
                f"policy.{key} is for the UNet families ({unets}); family {policy.family} is a flow: leave it null",
            )
    if policy.lora.targets == "attention+mlp+conv":
        yield (
            "policy.lora.targets",
            f"policy.lora.targets = attention+mlp+conv, but family {policy.family} has no convolutions to train; allowed: "
            "attention, attention+mlp or a list of module name endings",
        )


def _of_the_algorithm(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings that another algorithm has, and bases and samplers that this one has no formula for."""
    traits, rollout = ALGORITHMS[config.algorithm], config.rollout
    for key in traits.idle:
        value, default = _value_and_default(config, key)
        if value != default:
            yield (
                key,
                f"{key} = {show(value)} can never act with algorithm = {traits.name}; leave it at {show(default)}, or choose "
                f"another algorithm ({', '.join(name for name, other in ALGORITHMS.items() if key not in other.idle)})",
            )
    family = FAMILIES[config.policy.family]
    if family.kind not in traits.kinds:
        others = ", ".join(name for name, other in ALGORITHMS.items() if family.kind in other.kinds)
        yield (
            "algorithm",
            f"algorithm = {traits.name}: {traits.title} ({traits.paper}) is for rectified flows, and family {family.name} is "
            f"none; allowed: {others}",
        )
    if not traits.trajectory:
        return
    if rollout.sampler not in traits.samplers:
        allowed = ", ".join(traits.samplers)
        yield (
            "rollout.sampler",
            f"rollout.sampler = {rollout.sampler}: {traits.name} takes its steps by itself; allowed: {allowed}",
        )
    least = 1 + (config.trajectory.window if "trajectory.window" not in traits.idle else 1)
    if rollout.steps < least:
        yield (
            "rollout.steps",
            f"rollout.steps = {rollout.steps}: {traits.name} needs at least {least}, since the last step is never stochastic"
            + ("; take more steps, or a smaller trajectory.window" if least > 2 else "; take more steps"),
        )
    if rollout.guidance > 1 and config.surrogate.guidance != "same":
        yield (
            "surrogate.guidance",
            f"surrogate.guidance = {config.surrogate.guidance}: {traits.name} scores the very steps of the rollout, which are "
            f"guided by {rollout.guidance:g}; set it to same",
        )


def _value_and_default(config: RunConfig, key: str) -> tuple[object, object]:
    *sections, name = key.split(".")
    inner = config
    for section in sections:
        inner = getattr(inner, section)
    return getattr(inner, name), type(inner).model_fields[name].default


def _beyond_the_paper(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Options that can't act as they are set, or have no formula for this base."""
    weight, guard = config.surrogate.timestep_weight, config.objective.norm_guard
    if weight.schedule != "linear" and weight.end in (None, weight.start):
        yield (
            "surrogate.timestep_weight.schedule",
            f"surrogate.timestep_weight.schedule = {weight.schedule} can never act: the lean is {weight.start:g} throughout; "
            "set surrogate.timestep_weight.end to another one than start, or leave the schedule at linear",
        )
    if guard.margin and not guard.weight:
        yield (
            "objective.norm_guard.margin",
            f"objective.norm_guard.margin = {guard.margin:g} can never act with objective.norm_guard.weight = 0; set the "
            "weight, or leave the margin at 0",
        )
    if guard.weight and FAMILIES[config.policy.family].kind != "flow":
        yield (
            "objective.norm_guard.weight",
            f"objective.norm_guard.weight = {guard.weight:g}: the guard is on the velocity of a rectified flow "
            f"(arXiv 2606.27771), and family {config.policy.family} has none; set it to 0",
        )


def _of_the_memory(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Ways to save memory or time that this family has not, or that exclude each other."""
    policy = config.policy
    able = FAMILIES[policy.family].attention
    if policy.attention not in ("auto", "native", *able):
        yield (
            "policy.attention",
            f"policy.attention = {policy.attention}, but the attention of family {policy.family} can't be computed by it; "
            f"allowed: {', '.join(('auto', 'native', *able))}",
        )
    if policy.offload == "blocks" and not policy.gradient_checkpointing:
        yield (
            "policy.offload",
            "policy.offload = blocks saves nothing without policy.gradient_checkpointing: every block's weights would stay on "
            "the device for the backward pass; set gradient_checkpointing to true, or offload to model",
        )
    if policy.compile and (policy.offload == "blocks" or policy.quantization != "none"):
        other = "offload = blocks" if policy.offload == "blocks" else f"quantization = {policy.quantization}"
        yield (
            "policy.compile",
            f"policy.compile and policy.{other} exclude each other: the weights are not where the compiled code expects them; "
            "set one of them to its default",
        )


def warnings(config: RunConfig) -> list[str]:
    """One line for each setting that is allowed but known to disappoint."""
    return list(_warnings(config))


def _warnings(config: RunConfig) -> Iterator[str]:
    objective, surrogate, advantage = config.objective, config.surrogate, config.objective.advantage
    traits = ALGORITHMS[config.algorithm]
    clips = "objective.clip_eps" not in traits.idle
    if objective.gradient_steps > 1 and clips and objective.clip_eps is None and objective.kl_coef == 0:
        yield (
            f"objective.gradient_steps = {objective.gradient_steps} with neither clip_eps nor kl_coef: nothing bounds how far "
            "the policy leaves the one that made the outputs; clip_eps of 6e-3 to 1e-2 is typical (arXiv 2604.23380)"
        )
    if surrogate.pairs < _CONVERGING_PAIRS and not traits.trajectory:
        yield (
            f"surrogate.pairs = {surrogate.pairs}: 4 is the paper's sweet spot and 2 does not converge in the paper's ablation "
            "(arXiv 2604.23380)"
        )
    if surrogate.weighting == "eps":
        yield "surrogate.weighting = eps collapses in the paper's ablation; adaptive is its best (arXiv 2604.23380)"
    if objective.soft_clip_eta is not None:
        for name, settings in config.rewards.items():
            if settings.get("kind", name) in COARSE_REWARDS:
                yield (
                    f"objective.soft_clip_eta = {objective.soft_clip_eta:g} with the coarse reward {name}: the soft clip hurts "
                    "there in the paper (arXiv 2604.23380); null turns it off"
                )
        if advantage.scale == "none":
            yield (
                f"objective.soft_clip_eta = {objective.soft_clip_eta:g} with objective.advantage.scale = none: eta counts in "
                "standard deviations, but the advantages are then in the reward's own unit"
            )
    if config.policy.quantization == "fp8" and not config.policy.gradient_checkpointing:
        yield (
            "policy.quantization = fp8 without policy.gradient_checkpointing: the backward pass keeps all weights dequantised, "
            "so that the update takes as much memory as without quantization; set gradient_checkpointing to true"
        )
    # The folders above count too: in the hub's cache the name stands two folders above the files.
    found = _DISTILLED.search("/".join(re.split(r"[/\\]", config.policy.model)[-3:]))
    if found:
        yield (
            f"policy.model = {config.policy.model} looks distilled ({found[0]!r} in its name): few-step bases turn blurry "
            "under this loss (DiffusionNFT#45); train the undistilled base instead, or keep the change small: "
            "objective.gradient_steps 2 or more with objective.kl_coef 0.3, and a third of optimizer.lr"
        )
    held_out = {prompt.text for prompt in config.prompts.evaluate}
    shared = len(held_out & {prompt.text for prompt in config.prompts.train})
    if shared:
        yield (
            f"prompts.evaluate: {shared} of {len(held_out)} held-out prompts are also in prompts.train, so the curve shows "
            "memory as well"
        )
    for name in config.monitors:
        counting = ("weight", *SHAPE_KEYS)
        options = {key: value for key, value in config.rewards.get(name, {}).items() if key not in counting}
        if name in config.rewards and options != config.monitors[name]:
            yield (f"monitors.{name} is a reward as well, with other options; it is scored once, with those of rewards.{name}")
