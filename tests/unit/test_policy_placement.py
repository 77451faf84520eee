"""Weights that come and go: the same numbers as weights that stay, and no more of them on the device than was said."""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.bench import bright, factors, iterate, same, shake, tiny_bench
from tests.family_bench import CPU, PROMPTS, ROWS, SAMPLING, SEEDS
from tests.small_run import Watcher, go, new_run, small_config
from tests.tiny_families import make_folder, shaken_lora
from trainer import runs
from trainer.errors import UserError
from trainer.families import FAMILIES
from trainer.lora import LoraAdapter, attach
from trainer.optimization import move_optimizer
from trainer.policies import policy_class
from trainer.policies.frozen import FrozenTensors, blocks_of
from trainer.policies.resources import Resources

META = torch.device("meta")  # a device that is not the CPU and that every machine has
DEEP = {"sd3": {"depth": 2}, "flux": {"num_layers": 2, "num_single_layers": 2}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a family's tiny model, made when it is asked for."""
    made = {}

    def folder(family: str):
        if family not in made:
            made[family] = make_folder(family, tmp_path_factory.mktemp("model") / family, **DEEP.get(family, {}))
        return made[family]

    return folder


def build(folder, family: str, offload: str, checkpointing: bool = True):
    resources = Resources(offload=offload)
    return policy_class(family)(folder, CPU, torch.float32, gradient_checkpointing=checkpointing, resources=resources)


def learn(policy, family: str):
    """(latents, pictures, gradients) of a policy with a LoRA that does something."""
    adapter = shaken_lora(policy, family)
    conditioning = policy.encode(PROMPTS).rows(ROWS)
    latents = policy.sample(conditioning, SEEDS, SAMPLING)
    pictures = policy.decode(latents)
    t = policy.visible_time(torch.linspace(0.2, 0.9, len(latents)))
    policy.predict_clean(latents, t, conditioning).square().mean().backward()
    gradients = {name: p.grad for name, p in adapter.named_parameters() if p.grad is not None}  # not every path leads on
    return latents, pictures, gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_offloading_changes_no_number(folders, family):
    folder = folders(family)
    expected = learn(build(folder, family, "none"), family)
    assert any(gradient.any() for gradient in expected[2].values())
    for offload in ("model", "blocks"):
        latents, pictures, gradients = learn(build(folder, family, offload), family)
        assert torch.equal(latents, expected[0]) and torch.equal(pictures, expected[1])
        assert gradients.keys() == expected[2].keys()
        assert all(torch.equal(gradient, expected[2][name]) for name, gradient in gradients.items()), offload


class OnlyCopies(TorchDispatchMode):
    """Inside, nothing computes with a tensor that is at home: on an accelerator it would be on another device."""

    COPYING = ("aten::_to_copy", "aten::clone", "aten::detach", "aten::alias")

    def __init__(self, parts) -> None:
        super().__init__()
        tensors = [tensor for part in parts for tensor in part.tensors() if tensor.numel()]
        self.homes = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.computed = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().partition(".")[0] not in self.COPYING:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and value.numel():
                    assert value.untyped_storage().data_ptr() not in self.homes, func
            self.computed += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_computes_with_what_is_at_home(folders, family):
    policy = build(folders(family), family, "blocks")
    placement = policy._placement
    conditioning = policy.encode(PROMPTS).rows(ROWS)
    watched = OnlyCopies([*placement._parts.values(), *placement._stream._parts])
    if family == "flux2_klein":  # diffusers' pipeline reads the decoder's statistics, and moves them itself
        watched.homes -= {buffer.untyped_storage().data_ptr() for buffer in policy._pipe.vae.bn.buffers()}
    with watched:
        latents = policy.sample(conditioning, SEEDS, SAMPLING)
        policy.decode(latents)
        z, t = latents.detach().requires_grad_(), policy.visible_time(torch.linspace(0.2, 0.9, len(latents)))
        policy.predict_clean(z, t, conditioning).square().mean().backward()
    assert z.grad.any() and watched.computed > 1000


def test_without_checkpointing_the_numbers_are_right_too(folders):
    folder = folders("sd3")
    expected, found = (learn(build(folder, "sd3", offload, False), "sd3") for offload in ("none", "blocks"))
    assert all(torch.equal(gradient, expected[2][name]) for name, gradient in found[2].items())


@pytest.mark.parametrize("offload", ["model", "blocks"])
def test_whole_iterations_are_the_same(tiny_sd3, monkeypatch, offload):
    """theta_old, KL, EMA: whatever is swapped in and out of the same layers."""
    monkeypatch.setattr(LoraAdapter, "for_sampling", lambda *args: nullcontext())  # it rounds otherwise, and is for `none` only
    objective = {"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.3}
    benches = [
        tiny_bench(tiny_sd3, bright, objective=objective, policy={"offload": how, "gradient_checkpointing": True})
        for how in ("none", offload)
    ]
    for bench in benches:
        shake(bench)
        for iteration in range(2):
            metrics = iterate(bench, iteration).metrics
    assert same(factors(benches[0]), factors(benches[1]))
    assert benches[0].learner.average.checksum() == benches[1].learner.average.checksum()
    assert metrics["steps/taken"] == 2


def test_a_lora_is_not_merged_into_weights_that_come_and_go(tiny_sd3, monkeypatch):
    bench = tiny_bench(tiny_sd3, policy={"offload": "model"})
    assert not bench.policy.weights_stay
    merged = []
    monkeypatch.setattr(LoraAdapter, "merged", lambda adapter: merged.append(1) or nullcontext())
    iterate(bench)
    assert not merged
    iterate(tiny_bench(tiny_sd3))
    assert merged == [1]  # where they stay it is


def lent(part: FrozenTensors) -> bool:
    return part._homes is not None


def test_only_what_a_phase_needs_is_there(folders):
    policy = build(folders("sd3"), "sd3", "model")
    denoiser, decoder = (policy._placement._parts[name] for name in ("denoiser", "decoder"))
    seen = {}

    def look(name):
        return lambda *_: seen.update({name: (lent(denoiser), lent(decoder))})

    policy.denoiser.register_forward_pre_hook(look("denoiser"))
    policy._pipe.vae.decoder.register_forward_pre_hook(look("decoder"))
    load = policy._encoders
    policy._encoders = lambda: (look("encoders")(), load())[1]
    conditioning = policy.encode(PROMPTS).rows(ROWS)
    latents = policy.sample(conditioning, SEEDS, SAMPLING)
    policy.decode(latents)
    assert seen == {"encoders": (False, False), "denoiser": (True, False), "decoder": (False, True)}
    policy.predict_clean(latents, torch.full((5,), 0.5), conditioning)
    assert lent(denoiser) and not lent(decoder)
    policy.to(CPU)
    assert not lent(denoiser) and not lent(decoder)


def test_blocks_are_on_the_device_one_at_a_time(folders, monkeypatch):
    """In the forward pass, and in the backward pass of checkpointed blocks, whose recomputation ends early by an exception."""
    policy = build(folders("flux"), "flux", "blocks")
    blocks = blocks_of(policy.denoiser)
    assert len(blocks) == 4
    copies, alive, most = FrozenTensors.copies, [], []

    def counted(part, device):
        most.append(1 + sum(any(tensor() is not None for tensor in block) for block in alive))
        made = copies(part, device)
        alive.append([weakref.ref(tensor) for tensor in made])
        return made

    conditioning = policy.encode(PROMPTS).rows(ROWS)
    attach(policy.denoiser, 2, 4.0, "attention", 0, "flux", policy.device)
    z, t = torch.randn(5, policy.latent_channels, 8, 8), torch.full((5,), 0.5)
    policy.predict_clean(z, t, conditioning)  # what is around the blocks is lent now
    monkeypatch.setattr(FrozenTensors, "copies", counted)
    x = policy.predict_clean(z, t, conditioning)
    assert most == [1] * 4
    most.clear()
    x.mean().backward()
    assert len(most) == 4 and max(most) <= 2  # the one before is let go with its graph
    assert not any(lent(part) for part in policy._placement._stream._parts)


def test_the_blocks_hold_most_of_every_network(folders):
    for family in FAMILIES:
        policy = build(folders(family), family, "none")
        blocks = blocks_of(policy.denoiser)
        assert blocks and not any(inner in blocks for block in blocks for inner in list(block.modules())[1:])


@pytest.mark.parametrize("offload", ["none", "model", "blocks"])
def test_text_encoders_leave_memory(folders, monkeypatch, offload):
    policy = build(folders("flux"), "flux", offload)
    load, held = policy._encoders, []

    def loaded():
        pipe = load()
        held.extend(weakref.ref(getattr(pipe, name)) for name in policy.ENCODERS)
        return pipe

    monkeypatch.setattr(policy, "_encoders", loaded)
    policy.encode(PROMPTS)
    assert len(held) == 2 and all(encoder() is None for encoder in held)


# Pausing


def test_a_pause_takes_everything_off_the_device(tiny_sd3, monkeypatch):
    bench = tiny_bench(tiny_sd3, bright)
    iterate(bench)  # the optimiser has its moments now
    learner = bench.learner
    moments = [v for state in learner.stepper.optimizer.state.values() for v in state.values() if v.ndim]
    assert moments
    moved = []
    monkeypatch.setattr(LoraAdapter, "to", lambda adapter, device: moved.append(str(device)))  # .data can't become meta
    bench.policy.to(META)
    learner.to(META)
    factors = {id(parameter) for parameter in learner.adapter.parameters()}
    assert moved == ["meta"]
    held = [
        *(p for p in bench.policy.denoiser.parameters() if id(p) not in factors),
        *bench.policy.denoiser.buffers(),
        *bench.policy._pipe.vae.parameters(),
        *(factor for pair in learner.average.factors.values() for factor in pair),
        *(v for state in learner.stepper.optimizer.state.values() for v in state.values() if v.ndim),
    ]
    assert {tensor.device.type for tensor in held} == {"meta"}
    counts = [v for state in learner.stepper.optimizer.state.values() for v in state.values() if not v.ndim]
    assert counts and {tensor.device.type for tensor in counts} == {"cpu"}  # where torch wants them


def test_a_paused_run_goes_on_as_if_it_had_not(tiny_sd3):
    benches = [tiny_bench(tiny_sd3, bright) for _ in range(2)]
    for bench in benches:
        iterate(bench)
    paused = benches[1]
    paused.policy.to(CPU)
    paused.learner.to(CPU)
    for bench in benches:
        iterate(bench, 1)
    assert same(factors(benches[0]), factors(paused))


def test_moving_the_optimiser_keeps_its_numbers():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    move_optimizer(optimizer, CPU)
    assert all(torch.equal(value, before[key]) for key, value in optimizer.state[parameter].items())


# The configuration


def test_blocks_need_checkpointing(tiny_sd3):
    with pytest.raises(UserError, match=r"policy.offload = blocks saves nothing without policy.gradient_checkpointing"):
        tiny_bench(tiny_sd3, policy={"offload": "blocks"})


@pytest.mark.slow
@pytest.mark.parametrize("offload", ["model", "blocks"])
def test_a_run_is_paused_resumed_and_finished(tiny_sd3, tmp_path, offload):
    run = new_run(tmp_path, small_config(tiny_sd3, policy={"offload": offload, "gradient_checkpointing": True}))

    def ask(done):
        if done == 1:
            for action in ("pause", "sample", "resume"):
                runs.request(run, action)

    go(run, Watcher(ask))
    assert runs.read_state(run).status == runs.FINISHED
