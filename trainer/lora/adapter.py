"""The LoRA inside a running denoiser: attached with peft, read and set through canonical factors."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..seeds import derive_seed
from .factors import LoraFactors
from .families import get_family

ADAPTER = "policy"


def layer_shapes(denoiser: nn.Module) -> dict[str, tuple[int, ...]]:
    """Every layer that can have a LoRA, with or without one attached, by name: (in features, out features) of a Linear,
    (in channels, out channels, kernel height, kernel width) of a convolution."""
    out: dict[str, tuple[int, ...]] = {}
    for name, module in denoiser.named_modules():
        if ".lora_" in name:
            continue
        if isinstance(module, nn.Linear):
            out[name.removesuffix(".base_layer")] = (module.in_features, module.out_features)
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            out[name.removesuffix(".base_layer")] = (module.in_channels, module.out_channels, *module.kernel_size)
    return out


def resolve_targets(denoiser: nn.Module, targets: str | Sequence[str], family: str = "sd3") -> list[str]:
    """The layers that a preset of the family or a list of name suffixes means, in the denoiser's order.

    A suffix is whole name parts: "attn.to_q" finds `transformer_blocks.0.attn.to_q`, "q" does not. A preset looks inside blocks
    only, where FLUX's `proj_out` is a block's, not the model's. Raises UserError for an unknown preset and for a suffix that no
    layer ends with.
    """
    network = layer_shapes(denoiser)
    names = get_family(family)
    if isinstance(targets, str):
        if targets not in names.presets:
            known = ", ".join(names.presets)
            raise UserError(
                f"LoRA targets {targets!r} is no preset of {names.name} ({known}); give one, or a list of module names"
            )
        # A preset covers a whole family, so some of its suffixes may be absent in one model (no attn2, no text stream).
        endings = tuple(f".{suffix}" for suffix in names.presets[targets])
        found = [name for name in network if name.endswith(endings)]
    else:
        for suffix in targets:
            if not any(_ends_with(name, suffix) for name in network):
                some = ", ".join(_nearest(suffix, network))
                raise UserError(f"LoRA target {suffix!r} is no Linear or Conv2d of this model; there are for example {some}")
        found = [name for name in network if any(_ends_with(name, suffix) for suffix in targets)]
    if not found:
        raise UserError(f"LoRA targets {targets!r} find no layer in this model; is it of the family {names.name}?")
    return found


def attach(
    denoiser: Any,
    rank: int,
    alpha: float,
    targets: str | Sequence[str],
    seed: int,
    family: str = "sd3",
    device: torch.device | None = None,
) -> LoraAdapter:
    """Freezes a diffusers denoiser and adds a trainable LoRA to the target layers, on `device`, or where their weights are now.

    A starts as peft's default (uniform in +-1/sqrt(in)) from a generator of its own for each module, derived from the seed and
    the module's name, and B as 0: the start does not depend on, or move, the global random state. The factors are float32
    whatever the denoiser's dtype (diffusers#6514).
    """
    names = resolve_targets(denoiser, targets, family)
    add_factors(denoiser, rank, alpha, names)
    adapter = LoraAdapter(denoiser, names, rank, float(alpha), seed)
    if device is not None:
        adapter.to(device)
    return adapter


def add_factors(denoiser: Any, rank: int, alpha: float, names: Sequence[str]) -> None:
    """peft's layers around the named ones, and nothing of the rest; what values they start with is left open."""
    from peft import LoraConfig

    # A pattern over whole names: a plain list would be matched by suffix.
    pattern = "|".join(re.escape(name) for name in names)
    with torch.random.fork_rng(devices=[]):
        denoiser.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules=pattern), adapter_name=ADAPTER)


class LoraAdapter:
    """The trainable LoRA of a denoiser. Made by `attach`."""

    def __init__(self, denoiser: nn.Module, names: Sequence[str], rank: int, alpha: float, seed: int) -> None:
        self.denoiser = denoiser
        self.names = tuple(names)
        self.rank, self.alpha, self.seed = rank, alpha, seed
        self._layers: dict[str, Any] = {name: denoiser.get_submodule(name) for name in names}
        for layer in self._layers.values():
            for factor in (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]):
                factor.to(torch.float32)
        self._borrowed = 0
        self.load(self.initial())
        self.assert_trainable()

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(`<module>.lora_A` | `<module>.lora_B`, parameter), always in the same order: the optimiser state is saved by it."""
        return [(f"{name}.lora_{which}", p) for name in self.names for which, p in zip("AB", self._pair(name), strict=True)]

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self.named_parameters()]

    @torch.no_grad()
    def to(self, device: torch.device) -> None:
        """Moves the factors in place (an optimiser keeps working, but its own state stays), the base weights not."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(device)

    def snapshot(self) -> LoraFactors:
        """A detached copy of the values in use now."""
        return LoraFactors({name: self._matrices(name) for name in self.names}, self.rank, self.alpha).clone()

    def initial(self) -> LoraFactors:
        """The factors that training from scratch starts with."""
        factors = {}
        for name in self.names:
            a, b = self._matrices(name)
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "lora-init", name))
            bound = 1.0 / math.sqrt(a.shape[1])
            factors[name] = (torch.empty(a.shape).uniform_(-bound, bound, generator=generator), torch.zeros(b.shape))
        return LoraFactors(factors, self.rank, self.alpha)

    @torch.no_grad()
    def load(self, factors: LoraFactors) -> None:
        """Copies the factors into the parameters, in place (an optimiser keeps working).

        Every module must be there, none may be left over, and what was copied is compared afterwards (verl-omni#608). Another
        alpha is converted, another rank is not (see `start_from`). Raises UserError for a mismatch; then nothing has changed.
        """
        if self._borrowed:
            raise RuntimeError("LoraAdapter.load inside using(): it would overwrite the borrowed factors")
        values = self._fitting(factors)
        parameters = self.parameters()
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
        if not all(torch.equal(parameter, value) for parameter, value in zip(parameters, values, strict=True)):
            raise RuntimeError("LoRA factors differ from their source after the copy; do they hold NaN?")
        torch.clear_autocast_cache()

    def start_from(self, factors: LoraFactors) -> float:
        """Continues from a LoRA made elsewhere, at this adapter's rank and alpha; returns the relative error of its change.

        The error is 0 unless the LoRA has a higher rank than the adapter (then it is the best approximation, see
        `LoraFactors.resize`). Modules that the LoRA lacks start from scratch; a module that the adapter does not train is a
        UserError. Directions that are zero in both factors would never get a gradient, so their row of A gets a fresh start,
        which does not change B @ A.
        """
        extra = [name for name in factors.factors if name not in self._layers]
        if extra:
            shown = ", ".join(extra[:3])
            raise UserError(
                f"the LoRA to continue from changes {len(extra)} modules outside the targets ({shown}); widen the targets"
            )
        resized, error = factors.to(torch.float32, "cpu").resize(self.rank)
        known = resized.with_alpha(self.alpha).factors
        start = {}
        for name, (fresh_a, fresh_b) in self.initial().factors.items():
            a, b = known.get(name, (fresh_a, fresh_b))
            dead = ~a.any(dim=1) & ~b.any(dim=0)
            start[name] = (torch.where(dead[:, None], fresh_a, a), b)
        self.load(LoraFactors(start, self.rank, self.alpha))
        return error

    @contextmanager
    def using(self, factors: LoraFactors) -> Iterator[None]:
        """Other values (theta_old, EMA) in the same denoiser, without gradients; afterwards the trained ones are back, always.

        Runs under `torch.no_grad()`, and a forward pass with gradients switched on again raises RuntimeError: the parameters
        only borrow the values, so gradients would go to the wrong place. May be nested. `snapshot` sees the borrowed values.
        """
        parameters = self.parameters()
        values = self._fitting(factors)
        held = [parameter.data for parameter in parameters]
        hook = self.denoiser.register_forward_pre_hook(_refuse_gradients)
        self._borrowed += 1
        try:
            # Swapping storage instead of copying: nothing to copy back, and a graph built before keeps its own values.
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data = value
            # Autocast caches half-precision copies of the parameters and would go on using those of the other values.
            torch.clear_autocast_cache()
            with torch.no_grad():
                yield
        finally:
            for parameter, value in zip(parameters, held, strict=True):
                parameter.data = value
            torch.clear_autocast_cache()
            self._borrowed -= 1
            hook.remove()

    @contextmanager
    def merged(self) -> Iterator[None]:
        """The factors in use added to the base weights, without gradients; afterwards the base is back, bit for bit.

        A layer then costs one matrix product instead of three, and its weights are in memory twice. Only for float32: in half
        precision a small change of a weight would be rounded away, and the policy would be another one.
        """
        layers = [(self._layers[name], *self._matrices(name)) for name in self.names]
        weights = [layer.get_base_layer().weight for layer, _, _ in layers]
        if wrong := {weight.dtype for weight in weights} - {torch.float32}:
            raise RuntimeError(f"LoraAdapter.merged needs float32 weights, found {wrong.pop()}")
        if wrong := {type(weight) for weight in weights} - {nn.Parameter}:
            raise RuntimeError(f"LoraAdapter.merged needs plain weights, found {wrong.pop().__name__}")
        held = [weight.data for weight in weights]
        try:
            with torch.no_grad(), self.disabled():
                for weight, (_, a, b) in zip(weights, layers, strict=True):
                    flat = torch.addmm(weight.data.flatten(1), b.data, a.data, alpha=self.alpha / self.rank)
                    weight.data = flat.view(weight.shape)
                torch.clear_autocast_cache()
                yield
        finally:
            for weight, value in zip(weights, held, strict=True):
                weight.data = value
            torch.clear_autocast_cache()

    def for_sampling(self, weights_stay: bool = True) -> AbstractContextManager[None]:
        """Around sampling many pictures: `merged` where that pays and can be, which is on a CPU.

        weights_stay: whether the base's weights are where they are used all the while.
        """
        weights = [layer.get_base_layer().weight for layer in self._layers.values()]
        fit = all(type(w) is nn.Parameter and w.dtype == torch.float32 and w.device.type == "cpu" for w in weights)
        return self.merged() if fit and weights_stay else nullcontext()

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The base model: the LoRA takes no part. Afterwards it does again, and is as trainable as before."""
        layers = list(self._layers.values())
        flags = [(parameter, parameter.requires_grad) for layer in layers for parameter in layer.parameters()]
        enabled = [layer for layer in layers if not layer.disable_adapters]
        try:
            for layer in enabled:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in enabled:
                layer.enable_adapters(True)
            # peft switches gradients off and on for all its adapters; only ours may be trainable.
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def assert_trainable(self) -> None:
        """Raises RuntimeError unless exactly the LoRA's parameters, and more than none, are trained (trl#6701)."""
        ours = {id(parameter) for parameter in self.parameters()}
        trained = {id(parameter): name for name, parameter in self.denoiser.named_parameters() if parameter.requires_grad}
        frozen = len(ours - set(trained))
        other = [name for key, name in trained.items() if key not in ours]
        if not ours or frozen or other:
            raise RuntimeError(
                f"not exactly the LoRA is trainable: {len(ours)} LoRA parameters, {frozen} of them frozen, "
                f"{len(other)} others trainable ({', '.join(other[:3]) or 'none'})"
            )

    def _pair(self, name: str) -> tuple[nn.Parameter, nn.Parameter]:
        layer = self._layers[name]
        return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight

    def _matrices(self, name: str) -> tuple[Tensor, Tensor]:
        """A and B as the canonical factors have them: a convolution's kernel laid flat."""
        a, b = self._pair(name)
        return a.flatten(1), b.flatten(1)

    def _fitting(self, factors: LoraFactors) -> list[Tensor]:
        """The factors as float32 values in the shapes of `parameters()`, on their device; what fits already is not copied."""
        missing = [name for name in self.names if name not in factors.factors]
        extra = [name for name in factors.factors if name not in self._layers]
        if missing or extra:
            shown = ", ".join((missing or extra)[:3])
            counts = f"{len(missing)} missing, {len(extra)} unknown ({shown})"
            raise UserError(f"the LoRA has {len(factors)} modules, the model trains {len(self.names)}: {counts}")
        if factors.rank != self.rank:
            raise UserError(f"the LoRA has rank {factors.rank}, the model trains rank {self.rank}")
        ready = factors.to(torch.float32).with_alpha(self.alpha)
        values = []
        for name in self.names:
            for parameter, value in zip(self._pair(name), ready.factors[name], strict=True):
                flat = parameter.flatten(1).shape
                if flat != value.shape:
                    raise UserError(f"LoRA module {name} is {tuple(value.shape)}, this model's is {tuple(flat)}")
                values.append(value.detach().to(parameter.device).reshape(parameter.shape))
        return values


def _refuse_gradients(module: nn.Module, inputs: Any) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError("a forward pass with gradients inside LoraAdapter.using(): the borrowed values cannot be trained")


def _ends_with(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def _nearest(suffix: str, network: Mapping[str, object]) -> list[str]:
    """Up to six names to choose from, without block numbers, the most similar first."""
    short = list(dict.fromkeys(re.sub(r"^\w+\.\d+\.", "", name) for name in network))
    near = difflib.get_close_matches(suffix, short, n=3, cutoff=0.4)
    return (near + [name for name in short if name not in near])[:6]
