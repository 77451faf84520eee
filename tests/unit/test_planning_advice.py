"""What a plan advises: every remedy, in its order, no more of them than are needed; on plans made up by a rule."""

from __future__ import annotations

import pytest
import torch

from trainer.config import load_config
from trainer.config.text import parse
from trainer.planning.advice import advise, changed
from trainer.planning.plan import DECODE, ENCODE, ROLLOUT, UPDATE, Phase, Plan
from trainer.planning.report import text

GIB = 2**30


class Ruled:
    """A planner whose phases take what `rule(config)` says: phase -> GiB."""

    def __init__(self, rule, memory=10, device="cuda"):
        self.rule, self.device, self.rough = rule, torch.device(device), False
        self.memory = int(memory * GIB / 0.9) + 1  # so that `memory` may be used

    def plan(self, config, changes=None):
        phases = tuple(Phase(name, int(size * GIB), 0, 0) for name, size in self.rule(config).items())
        return Plan("base", "cuda", phases, self.memory, (), changes or {})


def base(**policy):
    return load_config(
        {
            "policy": {"model": "demo", **policy},
            "prompts": {"train": ["a"] * 48, "evaluate": ["b"]},
            "rewards": {"brightness": {}},
            "rollout": {"width": 256, "height": 256, "batch_size": 8},
            "surrogate": {"batch_size": 8},
        }
    )


def advice(rule, config=None, **options):
    found = advise(Ruled(rule, **options), config or base())
    return None if found is None else found.changes


def update(needs):
    return lambda config: {ROLLOUT: 1, UPDATE: needs(config)}


def test_what_fits_needs_no_change():
    assert advice(lambda _: {ROLLOUT: 9.9}) == {}


def test_checkpointing_comes_first():
    assert advice(update(lambda c: 9 if c.policy.gradient_checkpointing else 20)) == {"policy.gradient_checkpointing": True}


def test_smaller_update_batches_next_no_smaller_than_need_be():
    found = advice(update(lambda c: 4 * c.surrogate.batch_size * (1 if c.policy.gradient_checkpointing else 2)))
    assert found == {"policy.gradient_checkpointing": True, "surrogate.batch_size": 2}


def test_a_change_that_turns_out_not_to_be_needed_is_taken_back():
    found = advice(update(lambda c: c.surrogate.batch_size * 2.5 - c.policy.gradient_checkpointing))
    assert found == {"surrogate.batch_size": 4}


def test_rollouts_by_their_own_batch():
    assert advice(lambda c: {ROLLOUT: 2 * c.rollout.batch_size, UPDATE: 1}) == {"rollout.batch_size": 4}


def test_decoding_by_tiles():
    assert advice(lambda c: {DECODE: 8 if c.policy.vae_tiling == "on" else 12}) == {"policy.vae_tiling": "on"}


def test_a_reward_that_scores_beside_the_decoder_by_tiles_too():
    assert advice(lambda c: {"reward hpsv2": 8 if c.policy.vae_tiling == "on" else 12}) == {"policy.vae_tiling": "on"}


def test_encoding_by_the_base_leaving_the_device():
    assert advice(lambda c: {ENCODE: {"none": 14, "model": 9, "blocks": 2}[c.policy.offload]}) == {"policy.offload": "model"}


def test_weights_that_are_too_large_in_fewer_bits():
    bits = {"none": 24, "int8": 12, "nf4": 7}
    assert advice(update(lambda c: bits[c.policy.quantization])) == {"policy.quantization": "nf4"}
    assert advice(update(lambda c: bits[c.policy.quantization]), memory=12) == {"policy.quantization": "int8"}


def test_the_optimiser_in_eight_bits():
    assert advice(update(lambda c: 9 if c.optimizer.name == "adamw8bit" else 11)) == {"optimizer.name": "adamw8bit"}


def test_streamed_blocks_bring_the_checkpointing_that_they_need():
    found = advice(update(lambda c: 3 if c.policy.offload == "blocks" else 30))
    assert found == {"policy.offload": "blocks", "policy.gradient_checkpointing": True}


def test_a_smaller_picture_at_last_in_steps():
    found = advice(update(lambda c: c.rollout.width * c.rollout.height / 4000))
    assert found == {"rollout.width": 192, "rollout.height": 192}


def test_nothing_helps():
    assert advice(update(lambda _: 99)) is None


def test_a_cpu_is_not_advised_to_offload():
    assert advice(update(lambda c: 3 if c.policy.offload != "none" else 30), device="cpu") is None


def test_a_device_without_kernels_is_not_advised_to_quantise():
    assert advice(update(lambda c: 3 if c.policy.quantization != "none" else 30), device="mps") is None


def test_the_advice_can_be_pasted():
    config = base()
    planner = Ruled(update(lambda c: 4 * c.surrogate.batch_size * (1 if c.policy.gradient_checkpointing else 2)))
    plan, found = planner.plan(config), advise(planner, config)
    shown = text(plan, found, advised=True)
    assert "it does NOT fit: update needs 64.00 GiB" in shown
    pasted = parse(shown.split("to paste:\n\n")[1], "advice")
    assert pasted == {"policy": {"gradient_checkpointing": True}, "surrogate": {"batch_size": 2}}
    assert planner.plan(changed(config, found.changes)).fits
    assert "nothing that was tried" in text(plan, None, advised=True)


@pytest.mark.parametrize("memory", [None, 10])
def test_what_is_free_is_said_or_said_to_be_unknown(memory):
    plan = Plan("base", "mps", (Phase(UPDATE, GIB, 0, 0),), memory and memory * GIB)
    shown = text(plan, None, advised=False)
    assert ("it fits" in shown) == (memory is not None)
    assert ("free memory: unknown; say it with --memory GIB" in shown) == (memory is None)
    assert plan.fits
