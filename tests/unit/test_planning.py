"""What `plan` says of a run: against what its phases really take, and how each setting counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.allocations import peak_of
from tests.real_phases import phases_config, real_phases
from tests.tiny_families import make_folder
from trainer.config import FAMILIES, load_config
from trainer.config.beyond import NormGuardConfig
from trainer.errors import UserError
from trainer.families import FAMILIES as BY_NAME
from trainer.memory import PhaseBatches
from trainer.planning.blueprint import blueprint_of
from trainer.planning.hollow import RealMasks, meta_module, new_mode
from trainer.planning.plan import DECODE, ENCODE, OLD, ROLLOUT, UPDATE, Planner
from trainer.planning.tokens import stand_in
from trainer.planning.tracking import Usage
from trainer.planning.weights import DenoiserSizes, bytes_a_weight, bytes_of
from trainer.policies import policy_class
from trainer.policies.decoding import decode_pictures, prepare_decoder
from trainer.policies.published import PUBLISHED as SIZES

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FLOAT = 4  # bytes


def config_of(folder, family="sd3", pixels=64, **changes):
    return phases_config(folder, family, pixels, **changes)


def changed(config, section, **values):
    part = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: part})


def phases(plan):
    return {phase.name: phase for phase in plan.phases}


@pytest.fixture(scope="module")
def planner():
    return Planner(CPU)


# --- against what is really taken


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "family", ["sd3", pytest.param("sdxl", marks=pytest.mark.slow), pytest.param("flux", marks=pytest.mark.slow)]
)
def test_tensors_are_what_the_allocator_hands_out(tmp_path, family, checkpointing):
    folder = make_folder(family, tmp_path / "model")
    config = config_of(folder, family, 128)
    config = changed(config, "policy", gradient_checkpointing=checkpointing)
    planned = phases(Planner(CPU).plan(config))
    compared = []
    for name, run in real_phases(config, CPU, tmp_path / "cache"):
        run()  # what is made once and kept is no part of it
        compared.append(name)
        assert planned[name].tensors == pytest.approx(peak_of(run), rel=0.15), name
    assert compared == [ENCODE, ROLLOUT, DECODE, OLD, UPDATE]


def test_a_decoder_of_videos_takes_what_its_tensors_say():
    """Channels come last in it: its convolutions would else reorder their input and output, beside what a plan counts."""
    from diffusers import AutoencoderKLQwenImage

    vae = AutoencoderKLQwenImage(base_dim=8, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    prepare_decoder(vae, torch.float32)
    raw = torch.randn(4, 16, 32, 32)

    def decode():
        return decode_pictures(vae, raw, 8, CPU, PhaseBatches())

    decode()
    with Usage(vae) as usage:
        decode()
    assert usage.peak == pytest.approx(peak_of(decode), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_planned(tmp_path, family):
    """Prompts of different length too, whose masks decide about shapes."""
    found = phases(Planner(CPU).plan(config_of(make_folder(family, tmp_path / "model"), family)))
    assert list(found) == [ENCODE, ROLLOUT, DECODE, OLD, UPDATE]
    assert all(phase.tensors > 0 for phase in found.values())
    assert found[UPDATE].flops > found[OLD].flops > 0


def test_weights_and_factors_are_those_of_the_real_parts(tiny_sd3, planner):
    from trainer.setup import build_bench

    config = config_of(tiny_sd3)
    bench = build_bench(config, CPU)
    denoiser, vae = bench.policy.denoiser, bench.policy._pipe.vae
    factors = sum(p.numel() for p in bench.learner.adapter.parameters()) * FLOAT
    plan = phases(planner.plan(config))
    assert plan[UPDATE].weights == bytes_of([denoiser, vae]) - factors
    latents = 4 * 16 * 8 * 8 * FLOAT
    # Factors, their average, theta_old's, two moments of the optimiser, gradients.
    assert plan[UPDATE].trained == 6 * factors + latents
    assert plan[OLD].trained == 5 * factors + latents
    merged = sum(bench.learner.adapter._layers[name].get_base_layer().weight.numel() for name in bench.learner.adapter.names)
    assert plan[ROLLOUT].weights == plan[UPDATE].weights + merged * FLOAT


def test_a_plan_holds_no_weights(planner):
    """FLUX.1 dev has 22 GiB of them: the probe's tensors have no storage."""
    blueprint = blueprint_of(load_config(preset_source("flux")).policy)
    pipe = blueprint.load(torch.bfloat16, text_encoder=None, text_encoder_2=None, tokenizer=None, tokenizer_2=None)
    assert all(parameter.is_meta for parameter in pipe.transformer.parameters())
    assert bytes_of(pipe.transformer) > 22 * 2**30


# --- how settings count


def test_checkpointing_and_batches_change_the_tensors_of_their_phase_alone(tiny_sd3, planner):
    config = config_of(tiny_sd3)
    base = phases(planner.plan(config))
    saved = phases(planner.plan(changed(config, "policy", gradient_checkpointing=True)))
    assert saved[UPDATE].tensors < base[UPDATE].tensors
    assert saved[ROLLOUT].tensors == base[ROLLOUT].tensors
    fewer = phases(planner.plan(changed(config, "surrogate", batch_size=2)))
    assert fewer[UPDATE].tensors < base[UPDATE].tensors and fewer[OLD].tensors < base[OLD].tensors
    assert fewer[DECODE] == base[DECODE]
    smaller = phases(planner.plan(changed(config, "rollout", batch_size=1)))
    assert smaller[ROLLOUT].tensors < base[ROLLOUT].tensors and smaller[DECODE].tensors < base[DECODE].tensors
    assert smaller[UPDATE].tensors == base[UPDATE].tensors


def test_rank_optimiser_and_average_change_what_is_trained(tiny_sd3, planner):
    config = config_of(tiny_sd3)
    base = phases(planner.plan(config))[UPDATE].trained
    double = changed(config, "policy", lora=config.policy.lora.model_copy(update={"rank": 8, "alpha": 16.0}))
    latents = 4 * 16 * 8 * 8 * FLOAT
    assert phases(planner.plan(double))[UPDATE].trained - latents == 2 * (base - latents)
    factors = (base - latents) // 6
    assert phases(planner.plan(changed(config, "optimizer", ema_decay=0.0)))[UPDATE].trained == base - factors
    assert phases(planner.plan(changed(config, "optimizer", name="sgd")))[UPDATE].trained == base - 2 * factors
    small = phases(planner.plan(changed(config, "optimizer", name="adamw8bit")))[UPDATE].trained
    assert base - 2 * factors < small < base - factors


def test_the_norm_guard_asks_the_base_once_more(tiny_sd3, planner):
    config = config_of(tiny_sd3)
    guarded = changed(config, "objective", norm_guard=NormGuardConfig(weight=1.0))
    base, more = phases(planner.plan(config)), phases(planner.plan(guarded))
    assert more[OLD].evaluations == 2 * base[OLD].evaluations and more[OLD].flops == 2 * base[OLD].flops
    assert more[OLD].tensors == base[OLD].tensors and more[UPDATE] == base[UPDATE]


def test_guidance_by_two_passes_doubles_evaluations_and_work(tiny_sd3, planner):
    config = config_of(tiny_sd3)
    base = phases(planner.plan(config))
    guided = phases(planner.plan(changed(config, "rollout", guidance=4.0)))
    assert base[ROLLOUT].evaluations == 4 * 6 and guided[ROLLOUT].evaluations == 2 * 4 * 6
    assert guided[ROLLOUT].flops == pytest.approx(2 * base[ROLLOUT].flops, rel=0.01)
    assert guided[ROLLOUT].tensors > base[ROLLOUT].tensors
    same = changed(changed(config, "rollout", guidance=4.0), "surrogate", guidance="same")
    assert phases(planner.plan(same))[UPDATE].evaluations == 2 * base[UPDATE].evaluations == 2 * 4 * 2


def test_theta_old_is_a_phase_only_with_several_gradient_steps(tiny_sd3, planner):
    config = config_of(tiny_sd3, objective={"gradient_steps": 1})
    assert OLD not in phases(planner.plan(config))
    assert planner.plan(config).evaluations == 4 * 6 + 4 * 2


def test_an_evaluation_that_is_guided_while_rollouts_are_not_is_a_phase(tiny_sd3, planner):
    config = config_of(tiny_sd3, evaluation={"steps": 6, "guidance": 5.0, "prompts": 2})
    found = phases(planner.plan(config))
    assert found["evaluate"].tensors > 0 and "evaluate" not in phases(planner.plan(config_of(tiny_sd3)))


def test_another_algorithm_is_planned_with_what_it_keeps_and_takes(tiny_sd3, planner):
    """That its evaluations are those of a run is tested with the algorithms."""
    plan, usual = planner.plan(config_of(tiny_sd3, algorithm="diffusion_nft")), planner.plan(config_of(tiny_sd3))
    assert phases(plan)[UPDATE].trained > phases(usual)[UPDATE].trained  # its lagging copy
    one_step = planner.plan(config_of(tiny_sd3, algorithm="diffusion_nft", objective={"gradient_steps": 1}))
    assert phases(one_step)[OLD].evaluations == phases(usual)[OLD].evaluations == 4 * 2  # it asks that copy in any case


def test_several_sizes_are_planned_with_the_largest(tmp_path):
    folder, planner = make_folder("sd3", tmp_path / "model"), Planner(CPU)
    small, large = config_of(folder), config_of(folder, pixels=128)
    both = config_of(folder, rollout={"width": [64, 128, 64], "height": [64, 128, 96]})
    assert phases(planner.plan(both))[DECODE].tensors == phases(planner.plan(large))[DECODE].tensors
    assert phases(planner.plan(both))[DECODE].tensors > phases(planner.plan(small))[DECODE].tensors


def test_prompts_are_encoded_fewer_at_once_where_there_is_no_room(tiny_sd3):
    planner = Planner(CPU)
    config = config_of(tiny_sd3, prompts={"train": [f"{n} red squares" for n in range(32)], "evaluate": ["a star"]})
    whole = phases(planner.plan(config))[ENCODE]
    planner.memory = int((whole.peak - whole.tensors // 2) / 0.9)
    plan = planner.plan(config)
    assert phases(plan)[ENCODE].tensors < whole.tensors and any("the trainer will take fewer" in note for note in plan.notes)


def test_offloading_takes_away_what_a_phase_does_not_need(tiny_sd3):
    config, planner = config_of(tiny_sd3), Planner(CUDA)
    stays = phases(planner.plan(config))
    away = phases(planner.plan(changed(config, "policy", offload="model")))
    probe = planner.probe(config)
    denoiser, vae = probe.sizes.resident("none", "none"), bytes_of(probe.vae)
    assert stays[UPDATE].weights == stays[DECODE].weights == denoiser + vae
    assert away[UPDATE].weights == away[ROLLOUT].weights == denoiser and away[DECODE].weights == vae
    assert away[ENCODE].weights < stays[ENCODE].weights - denoiser - vae + 1


def test_on_a_cpu_offloading_saves_nothing(tiny_sd3, planner):
    config = config_of(tiny_sd3)
    assert planner.plan(changed(config, "policy", offload="model")).phases == planner.plan(config).phases


def test_streamed_blocks_and_fewer_bits():
    network = torch.nn.Module()
    network._no_split_modules = ["Sequential"]
    network.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(64, 128)) for _ in range(5))
    network.out = torch.nn.Linear(128, 8)
    block, rest = (64 * 128 + 128) * FLOAT, (128 * 8 + 8) * FLOAT
    sizes = DenoiserSizes.of(network)
    assert sizes.resident("none", "none") == 5 * block + rest
    assert sizes.resident("none", "blocks") == 3 * block + rest
    four_bits = 5 * (128 * FLOAT + round(64 * 128 * bytes_a_weight("nf4", 64, 128))) + rest
    assert sizes.resident("nf4", "none") == four_bits < sizes.resident("int8", "none") < sizes.resident("none", "none")
    whole = 64 * 128 * FLOAT
    assert sizes.made_whole("none") == 0 and sizes.made_whole("nf4", "all") == whole
    assert sizes.made_whole("fp8", "block") == whole and sizes.made_whole("fp8", "all") == 5 * whole


def test_nf4_is_what_bitsandbytes_keeps():
    functional = pytest.importorskip("bitsandbytes.functional", reason="needs bitsandbytes")
    packed, state = functional.quantize_4bit(torch.randn(512, 256), quant_type="nf4", compress_statistics=True)
    kept = packed.numel() + state.absmax.numel() + FLOAT * state.state2.absmax.numel()
    assert kept == pytest.approx(512 * 256 * bytes_a_weight("nf4", 256, 512), rel=0.01)


def test_a_rough_plan_is_hardly_ever_below_the_exact_one(tiny_sd3):
    exact, rough = Planner(CPU), Planner(CPU)
    rough.rough = True
    config = config_of(tiny_sd3)
    for mine, theirs in zip(exact.plan(config).phases, rough.plan(config).phases, strict=True):
        assert theirs.peak > 0.95 * mine.peak
        assert theirs.flops == pytest.approx(mine.flops, rel=0.02)


def test_what_was_run_once_is_remembered(tiny_sd3, monkeypatch):
    planner, config = Planner(CPU), config_of(tiny_sd3)
    first = planner.plan(config)
    monkeypatch.setattr(type(planner.probe(config)), "update", lambda *_: pytest.fail("run again"))
    assert planner.plan(config).phases == first.phases


# --- rewards


def test_arithmetic_on_pixels_is_no_phase_and_a_network_is_one(tiny_sd3):
    planner = Planner(CUDA, memory=2**40)
    plain = planner.plan(config_of(tiny_sd3))
    plan = planner.plan(config_of(tiny_sd3, rewards={"hpsv2": {}}))
    reward = phases(plan)["reward hpsv2"]
    assert reward.flops is None and reward.weights - phases(plain)[DECODE].weights > 10**9
    assert any("published size" in note for note in plan.notes)
    # With much of the device free it stays there; with little of it, it leaves between rounds.
    assert phases(plan)[UPDATE].weights - phases(plain)[UPDATE].weights > 10**9
    planner.memory = 2**31
    assert phases(planner.plan(config_of(tiny_sd3, rewards={"hpsv2": {}})))[UPDATE].weights == phases(plain)[UPDATE].weights


def test_a_reward_on_another_device_takes_nothing(tiny_sd3):
    plan = Planner(CUDA, memory=2**40).plan(config_of(tiny_sd3, rewards={"hpsv2": {"device": "cpu"}}))
    assert "reward hpsv2" not in phases(plan) and any("runs on cpu" in note for note in plan.notes)


# --- where the sizes come from


def preset_source(family, **changes):
    return {
        "preset": family,
        "prompts": {"train": ["a fox"] * 64, "evaluate": ["a fox in snow"]},
        "rewards": {"brightness": {}},
        "monitors": {},
        **changes,
    }


# Billions of parameters, as published with the models; SD 3.5 Medium's positions are a buffer.
PUBLISHED = {
    "sd15": 0.860,
    "sdxl": 2.567,
    "sd3": 2.243,
    "flux": 11.901,
    "chroma": 8.900,
    "qwen_image": 20.430,
    "z_image": 6.155,
    "flux2_klein": 3.876,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_built_in_sizes_are_those_of_the_published_models(family):
    import diffusers

    _, kind, config = SIZES[family][policy_class(family).DENOISER]
    count = sum(p.numel() for p in meta_module(getattr(diffusers, kind), config, torch.bfloat16).parameters())
    assert count / 1e9 == pytest.approx(PUBLISHED[family], abs=0.001)


def test_a_hub_id_that_is_not_here_is_planned_with_published_sizes():
    blueprint = blueprint_of(load_config(preset_source("sdxl")).policy)
    assert blueprint.title == "stabilityai/stable-diffusion-xl-base-1.0"
    assert "not on this machine" in blueprint.notes[0] and "Stable Diffusion XL" in blueprint.notes[0]
    assert blueprint.index(())["_class_name"] == BY_NAME["sdxl"].pipeline


def test_a_family_without_built_in_sizes_must_be_here(monkeypatch):
    monkeypatch.setattr("trainer.planning.blueprint.PUBLISHED", {})
    with pytest.raises(UserError, match=r"policy\.model: 'Qwen/Qwen-Image' is not on this machine.*fetch it, or give a folder"):
        blueprint_of(load_config(preset_source("qwen_image")).policy)


def test_a_folder_whose_configuration_is_damaged_is_named(tmp_path):
    folder = make_folder("sd3", tmp_path / "model")
    (folder / "transformer" / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"policy\.model: the configuration .*transformer can't be used: not a mapping"):
        Planner(CPU).plan(config_of(folder))


def unet_file(folder):
    from safetensors.torch import save_file

    path = folder / "some.safetensors"
    tensors = {"input_blocks.0.0.weight": (320, 4, 3, 3), "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, 768)}
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, path)
    return path


def test_a_file_that_is_not_as_large_as_its_configuration_is_named(tmp_path):
    config = load_config(preset_source("sd15", policy={"model": str(unet_file(tmp_path))}))
    with pytest.raises(UserError, match=r"the denoiser in .* has 0\.000 billion .* says 0\.860; name the right"):
        blueprint_of(config.policy)


def test_parts_of_a_file_that_are_nowhere_are_named(tmp_path):
    config = load_config(preset_source("sd15", policy={"model": str(unet_file(tmp_path)), "parts": "org/name"}))
    with pytest.raises(UserError, match=r"policy\.parts: 'org/name' is neither a diffusers folder nor a hub id"):
        blueprint_of(config.policy)


def test_a_size_that_the_base_cannot_take_is_refused_as_by_training(tmp_path):
    folder = make_folder("sd3", tmp_path / "model")
    with pytest.raises(
        UserError, match=r"rollout\.width x rollout\.height: 512 x 512 does not fit.* nearest size is 256 x 256"
    ):
        Planner(CPU).plan(config_of(folder, pixels=512))


def test_a_stand_in_tokenizer_gives_a_token_for_four_letters():
    tokenizer = stand_in(512)
    assert len(tokenizer("a fox in the snow").input_ids) == 5
    assert len(tokenizer("a fox" * 999, truncation=True, max_length=77).input_ids) == 77


def test_what_a_real_mask_picks_of_a_tensor_without_storage_is_known():
    mode = new_mode()
    with mode:
        hidden = torch.empty(2, 4, 8)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    with RealMasks():
        assert hidden[mask].shape == (3, 8)
        assert hidden[:, :2][torch.tensor([1, 0])].shape == (2, 2, 8)


# --- counting


def test_usage_counts_the_most_that_lives_at_once_and_no_views():
    weight = torch.nn.Linear(256, 256, bias=False)
    with Usage(weight) as usage:
        one = torch.zeros(1024)
        view = one.view(32, 32).t()
        del one, view
        two = torch.zeros(2048)
        weight.weight.t()
    assert usage.peak == 2048 * FLOAT and two is not None


def test_usage_counts_flops_of_products_and_attention():
    with Usage() as usage:
        torch.zeros(4, 8) @ torch.zeros(8, 16)
    assert usage.flops == 2 * 4 * 8 * 16
    query = torch.zeros(1, 2, 64, 16)
    with Usage() as usage:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert usage.flops == 2 * (2 * 2 * 64 * 64 * 16)


def test_a_plan_as_data_is_json(tiny_sd3, planner):
    from trainer.planning.report import data

    plan = planner.plan(config_of(tiny_sd3))
    told = json.loads(json.dumps(data(replace(plan, memory=2**30), None)))
    assert told["fits"] is True and told["peak"] == plan.peak.peak and told["seconds"] is None
    assert [phase["name"] for phase in told["phases"]] == [ENCODE, ROLLOUT, DECODE, OLD, UPDATE]
