from __future__ import annotations

import gc
import json
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.bench import CPU, PROMPTS, shake, tiny_bench, watch_denoiser
from trainer import policies
from trainer.config import PolicyConfig
from trainer.policies.base import Sampling
from trainer.policies.samplers import flow_scheduler
from trainer.policies.sd3 import SD3Policy

SAMPLERS = ("euler", "heun", "dpmsolver++", "unipc")
SAMPLING = Sampling("euler", steps=5, guidance=1.0, width=64, height=64, batch_size=16)
SEEDS = (11, 12, 13, 14, 15)
ROWS = (0, 0, 1, 2, 1)  # the prompt of each output
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def policy(tiny_sd3, tmp_path_factory):
    return SD3Policy(tiny_sd3, CPU, cache=tmp_path_factory.mktemp("conditioning"))


@pytest.fixture(scope="module")
def with_t5(tiny_sd3, tmp_path_factory):
    """A folder whose T5 says something; that of the tiny one is a placeholder, as the embedded model's."""
    folder = shutil.copytree(tiny_sd3, tmp_path_factory.mktemp("t5") / "model")
    file = folder / "text_encoder_3" / "model.safetensors"
    tensors = load_file(file)
    tensors["encoder.final_layer_norm.weight"].fill_(1)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def conditioning(policy):
    return policy.encode(PROMPTS).rows(ROWS)


@pytest.fixture(scope="module")
def pipeline(tiny_sd3):
    """The same folder as anybody would load it."""
    from diffusers import StableDiffusion3Pipeline

    pipe = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# The replay check: the surrogate sees the network exactly as the sampler did.


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_predict_clean_replays_what_the_pipeline_computed(policy, conditioning, sampler, guidance):
    sampling = replace(SAMPLING, sampler=sampler, guidance=guidance, batch_size=3)
    with watch_denoiser(policy) as calls:
        policy.sample(conditioning, SEEDS, sampling)
    levels, evaluations = policy.noise_levels(sampling)
    assert sum(len(call.hidden) for call in calls) == evaluations * len(SEEDS)
    assert len(calls) == 2 * (evaluations // 2 if guidance > 1 else evaluations)  # two batches: 3 + 2

    solver = flow_scheduler(sampler, policy.shift)
    solver.set_timesteps(sampling.steps)
    per_batch, seen = len(calls) // 2, []
    for place, call in enumerate(calls):
        sigma = solver.sigmas[place % per_batch]
        assert torch.equal(call.timestep, (sigma * 1000).expand(len(call.timestep)))
        members = range(3) if place < per_batch else range(3, 5)
        rows = slice(len(members), None) if guidance > 1 else slice(None)  # the unconditional half comes first
        z, v, t = call.hidden[rows], call.output[rows], sigma.expand(len(members))
        with torch.no_grad():
            clean = policy.predict_clean(z, t, conditioning.rows(members))
        torch.testing.assert_close(clean, z - sigma * v, rtol=0, atol=1e-5)
        assert float(v.abs().mean()) > 0.01  # a network that says nothing would pass
        seen.append(sigma)
    assert torch.equal(torch.unique_consecutive(torch.stack(seen[:per_batch])), levels)


def test_what_training_shows_the_network_is_what_sampling_showed_it(policy, conditioning):
    """The level that the surrogate draws, rounded as the policy says, gives the sampler's own timestep."""
    for sampler in SAMPLERS:
        sampling = replace(SAMPLING, sampler=sampler, steps=17)
        levels, _ = policy.noise_levels(sampling)
        with watch_denoiser(policy) as calls, torch.no_grad():
            t = policy.visible_time(levels)
            policy.predict_clean(torch.zeros(len(t), 16, 8, 8), t, conditioning.rows([0] * len(t)))
        torch.testing.assert_close(calls[0].timestep, levels * 1000, rtol=2e-7, atol=0)


def test_half_precision_weights_still_see_the_exact_level(tiny_sd3, tmp_path):
    """bfloat16 has a spacing of 4 near timestep 900; some transformers round theirs, SD3's embeds it in float32."""
    policy = SD3Policy(tiny_sd3, CPU, torch.bfloat16, cache=tmp_path)
    conditioning, seen = policy.encode(PROMPTS), []
    t = torch.tensor([0.9001, 0.9002, 0.9003])
    z = torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    policy.denoiser.time_text_embed.time_proj.register_forward_hook(lambda _m, inputs, out: seen.append((inputs[0], out)))
    with torch.no_grad(), watch_denoiser(policy) as calls:
        clean = policy.predict_clean(z, policy.visible_time(t), conditioning)
    (timestep, embedded), call = seen[0], calls[0]
    torch.testing.assert_close(timestep, t * 1000, rtol=2e-7, atol=0)
    assert len(embedded.unique(dim=0)) == 3
    assert call.hidden.dtype == call.output.dtype == torch.bfloat16 and clean.dtype == torch.float32
    assert torch.equal(clean, z - policy.visible_time(t).view(3, 1, 1, 1) * call.output.float())


def test_coefficients_are_rectified_flow(policy):
    t = torch.tensor([0.25, 1.0])
    a, b = policy.coefficients(t)
    assert a.tolist() == [0.75, 0.0] and b.tolist() == [0.25, 1.0]


def test_the_prediction_has_a_gradient_in_the_factors_and_nothing_else(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    shake(bench)
    z = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    bench.policy.predict_clean(z, torch.tensor([0.3, 0.9]), bench.train_conditioning.rows([0, 1])).square().mean().backward()
    named = dict(bench.learner.adapter.named_parameters())
    assert all(p.grad is not None and p.grad.any() for n, p in named.items() if "attn.to_out" in n or "to_v" in n)
    ours = {id(p) for p in named.values()}
    assert all(p.grad is None for p in bench.policy.denoiser.parameters() if id(p) not in ours)


# Sampling


def test_guidance_is_the_formula(policy, conditioning):
    g = 4.0
    with watch_denoiser(policy) as calls:
        policy.sample(conditioning, SEEDS, replace(SAMPLING, guidance=g))
    n = len(SEEDS)
    first, second = calls[0], calls[1]
    empty = conditioning.gather_unconditional(CPU, torch.float32)
    given = conditioning.gather(CPU, torch.float32)
    assert torch.equal(first.context, torch.cat([empty["context"], given["context"]]))
    assert torch.equal(first.pooled, torch.cat([empty["pooled"], given["pooled"]]))
    unconditional, conditional = first.output[:n], first.output[n:]
    assert (conditional - unconditional).abs().max() > 1e-3  # the prompt matters
    v = unconditional + g * (conditional - unconditional)
    levels, _ = policy.noise_levels(SAMPLING)
    expected = first.hidden[:n] + (levels[1] - levels[0]) * v
    torch.testing.assert_close(second.hidden[:n], expected, rtol=0, atol=1e-5)
    assert torch.equal(second.hidden[:n], second.hidden[n:])


def test_guidance_one_never_asks_for_the_empty_prompt(policy, conditioning):
    with watch_denoiser(policy) as calls:
        policy.sample(conditioning, SEEDS, SAMPLING)
    assert {len(call.hidden) for call in calls} == {len(SEEDS)}
    assert torch.equal(calls[0].context, conditioning.gather(CPU, torch.float32)["context"])


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_outputs_do_not_depend_on_the_batch_split(policy, conditioning, sampler, guidance):
    sampling = replace(SAMPLING, sampler=sampler, guidance=guidance)
    whole = policy.sample(conditioning, SEEDS, sampling)
    assert whole.shape == (5, 16, 8, 8) and whole.dtype == torch.float32
    for size in (1, 2, 3):
        split = policy.sample(conditioning, SEEDS, replace(sampling, batch_size=size))
        torch.testing.assert_close(split, whole, rtol=0, atol=1e-5)
    assert all((whole[i] - whole[j]).abs().max() > 0.1 for i in range(5) for j in range(i))


def test_an_outputs_noise_comes_from_its_own_seed_alone(policy, conditioning):
    with watch_denoiser(policy) as calls:
        policy.sample(conditioning, SEEDS, SAMPLING)
    for row, seed in enumerate(SEEDS):
        own = torch.randn(16, 8, 8, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(calls[0].hidden[row], own)
    torch.manual_seed(99)  # the global state plays no part
    first = policy.sample(conditioning, SEEDS, SAMPLING)
    torch.manual_seed(1)
    assert torch.equal(policy.sample(conditioning, SEEDS, SAMPLING), first)
    backwards = policy.sample(conditioning.rows([4, 3, 2, 1, 0]), SEEDS[::-1], SAMPLING)
    torch.testing.assert_close(backwards.flip(0), first, rtol=0, atol=1e-5)


def test_sizes_other_than_square(policy, conditioning):
    latents = policy.sample(conditioning.rows([0]), [1], replace(SAMPLING, width=96, height=32, steps=2))
    assert latents.shape == (1, 16, 4, 12)
    assert policy.decode(latents).shape == (1, 32, 96, 3)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_step(policy, conditioning, sampler):
    """x = z_1 - v(z_1, 1): one evaluation decides."""
    with watch_denoiser(policy) as calls:
        latents = policy.sample(conditioning, SEEDS, replace(SAMPLING, sampler=sampler, steps=1))
    assert len(calls) == 1
    torch.testing.assert_close(latents, calls[0].hidden - calls[0].output, rtol=0, atol=2e-5)


def test_on_step_is_called_each_step_and_may_abort(policy, conditioning):
    class Stop(Exception):
        pass

    seen = []
    policy.sample(conditioning, SEEDS, replace(SAMPLING, batch_size=3), lambda: seen.append(1))
    assert len(seen) == 2 * SAMPLING.steps
    whole = policy.sample(conditioning, SEEDS, SAMPLING)

    def stop():
        raise Stop

    with pytest.raises(Stop):
        policy.sample(conditioning, SEEDS, SAMPLING, stop)
    assert torch.equal(policy.sample(conditioning, SEEDS, SAMPLING), whole)  # nothing is left of the aborted one


def test_seeds_and_conditionings_must_pair_up(policy, conditioning):
    with pytest.raises(ValueError, match="5 conditionings for 2 seeds"):
        policy.sample(conditioning, [1, 2], SAMPLING)


# Encoding


def test_conditioning_is_the_pipelines_own(with_t5, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(with_t5)
    ours = SD3Policy(with_t5, CPU, cache=tmp_path).encode([*PROMPTS, PROMPTS[0]])
    context, _, pooled, _ = pipeline.encode_prompt(
        [*PROMPTS, PROMPTS[0]], None, None, do_classifier_free_guidance=False, max_sequence_length=256
    )
    given = ours.gather(CPU, torch.float32)
    torch.testing.assert_close(given["context"], context, rtol=0, atol=2e-5)
    torch.testing.assert_close(given["pooled"], pooled, rtol=0, atol=1e-6)
    assert (context[0] - context[1]).abs().max() > 1e-3
    context, _, pooled, _ = pipeline.encode_prompt("", None, None, do_classifier_free_guidance=False, max_sequence_length=256)
    empty = ours.gather_unconditional(CPU, torch.float32)
    torch.testing.assert_close(empty["context"], context.expand(4, -1, -1), rtol=0, atol=2e-5)
    torch.testing.assert_close(empty["pooled"], pooled.expand(4, -1), rtol=0, atol=1e-6)


def test_without_t5_its_tokens_are_left_out(with_t5, tmp_path):
    """ComfyUI, where the LoRA is used, appends none; diffusers would append 256 tokens of zeros."""
    short = SD3Policy(with_t5, CPU, cache=tmp_path, use_t5=False).encode(PROMPTS).tensors["context"]
    long = SD3Policy(with_t5, CPU, cache=tmp_path).encode(PROMPTS).tensors["context"]
    assert long.shape[1] == short.shape[1] + 256
    torch.testing.assert_close(long[:, : short.shape[1]], short, rtol=0, atol=1e-6)


def test_a_t5_that_always_says_zero_is_left_out_by_itself(tiny_sd3, with_t5, tmp_path):
    silent = SD3Policy(tiny_sd3, CPU, cache=tmp_path).encode(PROMPTS).tensors["context"]
    without = SD3Policy(with_t5, CPU, cache=tmp_path, use_t5=False).encode(PROMPTS).tensors["context"]
    torch.testing.assert_close(silent, without, rtol=0, atol=1e-6)


def test_a_base_that_lacks_its_t5_trains_with_a_warning_and_one_that_never_had_one_without(tiny_sd3, with_t5, tmp_path):
    (note,) = SD3Policy(with_t5, CPU, cache=tmp_path, use_t5=False).notes()
    assert "trained without T5" in note and "policy.files.text_encoder_3" in note
    assert SD3Policy(with_t5, CPU, cache=tmp_path).notes() == SD3Policy(tiny_sd3, CPU, cache=tmp_path).notes() == []


def _count_encoder_calls(monkeypatch) -> list[int]:
    from transformers import CLIPTextModelWithProjection

    calls, forward = [], CLIPTextModelWithProjection.forward

    def counted(self, input_ids, *args, **kw):
        calls.append(len(input_ids))
        return forward(self, input_ids, *args, **kw)

    monkeypatch.setattr(CLIPTextModelWithProjection, "forward", counted)
    return calls


def test_a_second_policy_finds_the_encoded_prompts_on_disk(tiny_sd3, tmp_path, monkeypatch):
    calls = _count_encoder_calls(monkeypatch)
    first = SD3Policy(tiny_sd3, CPU, cache=tmp_path).encode(PROMPTS)
    assert calls == [4, 4]  # three prompts and the empty one, by two encoders
    calls.clear()
    second = SD3Policy(tiny_sd3, CPU, cache=tmp_path).encode(PROMPTS)
    assert calls == []
    assert all(torch.equal(first.tensors[k], second.tensors[k]) for k in first.tensors)
    assert all(torch.equal(first.unconditional[k], second.unconditional[k]) for k in first.unconditional)
    SD3Policy(tiny_sd3, CPU, cache=tmp_path).encode([*PROMPTS, "a new one", "a new one"])
    assert calls == [1, 1]


def test_another_dtype_is_encoded_on_its_own(tiny_sd3, tmp_path, monkeypatch):
    SD3Policy(tiny_sd3, CPU, cache=tmp_path).encode(PROMPTS)
    calls = _count_encoder_calls(monkeypatch)
    half = SD3Policy(tiny_sd3, CPU, torch.bfloat16, cache=tmp_path).encode(PROMPTS)
    assert calls == [4, 4] and half.tensors["context"].dtype == torch.bfloat16


def test_a_copied_folder_shares_the_cache_and_a_changed_encoder_does_not(tiny_sd3, tmp_path, monkeypatch):
    cache, copy = tmp_path / "cache", tmp_path / "elsewhere"
    before = SD3Policy(tiny_sd3, CPU, cache=cache).encode(PROMPTS)
    shutil.copytree(tiny_sd3, copy)
    calls = _count_encoder_calls(monkeypatch)
    SD3Policy(copy, CPU, cache=cache).encode(PROMPTS)
    assert calls == []
    file = copy / "text_encoder_2" / "model.safetensors"
    tensors = load_file(file)
    name = next(key for key in tensors if key.endswith("fc2.weight"))
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, file, {"format": "pt"})
    after = SD3Policy(copy, CPU, cache=cache).encode(PROMPTS)
    assert calls == [4, 4]
    assert not torch.equal(before.tensors["context"], after.tensors["context"])


def test_a_changed_tokenizer_is_another_encoder(tiny_sd3, tmp_path, monkeypatch):
    cache, copy = tmp_path / "cache", tmp_path / "elsewhere"
    before = SD3Policy(tiny_sd3, CPU, cache=cache).encode(PROMPTS)
    shutil.copytree(tiny_sd3, copy)
    file = copy / "tokenizer" / "tokenizer.json"
    rules = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = rules["model"]["vocab"]
    red, blue = (next(w for w in vocabulary if w.startswith(colour)) for colour in ("red", "blue"))
    vocabulary[red], vocabulary[blue] = vocabulary[blue], vocabulary[red]
    file.write_text(json.dumps(rules), encoding="utf-8")
    after = SD3Policy(copy, CPU, cache=cache).encode(PROMPTS)
    assert not torch.equal(before.tensors["context"][0], after.tensors["context"][0])


def test_encoders_leave_memory(with_t5, tmp_path, monkeypatch):
    from transformers import PreTrainedModel

    alive, load = [], PreTrainedModel.from_pretrained.__func__

    def watched(cls, *args, **kw):
        model = load(cls, *args, **kw)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(watched))
    policy = SD3Policy(with_t5, CPU, cache=tmp_path)
    assert alive == []  # nor are they loaded with the policy
    conditioning = policy.encode(PROMPTS)
    assert len(alive) == 3
    policy.encode(["a later one"])
    assert len(alive) == 6
    gc.collect()
    assert [ref() for ref in alive] == [None] * 6
    held = [v for v in vars(policy).values() if isinstance(v, torch.nn.Module)] + list(policy._pipe.components.values())
    assert {type(part).__name__ for part in held if isinstance(part, torch.nn.Module)} == {
        "SD3Transformer2DModel",
        "AutoencoderTiny",
    }
    assert not conditioning.tensors["context"].requires_grad


# Decoding


def test_decode_is_the_pipelines_own_picture(policy, pipeline, conditioning):
    """Bit for bit what diffusers would have saved, so that a score belongs to the picture that is kept."""
    latents = policy.sample(conditioning, SEEDS, SAMPLING)
    ours = policy.decode(latents)
    assert ours.dtype == torch.uint8 and ours.shape == (5, 64, 64, 3) and ours.device == CPU and ours.is_contiguous()
    given = conditioning.gather(CPU, torch.float32)
    pipeline.scheduler = flow_scheduler("euler", policy.shift)
    noise = torch.stack([torch.randn(16, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in SEEDS])
    theirs = pipeline(
        prompt_embeds=given["context"],
        pooled_prompt_embeds=given["pooled"],
        guidance_scale=1.0,
        num_inference_steps=SAMPLING.steps,
        width=64,
        height=64,
        latents=noise,
        output_type="np",
    ).images
    assert np.array_equal(ours.numpy(), (theirs * 255).round().astype("uint8"))
    assert ours.float().std() > 1  # not one flat colour


def test_decode_does_not_depend_on_the_batch(policy, monkeypatch):
    latents = torch.randn(5, 16, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
    whole = policy.decode(latents)
    assert len(whole.unique()) > 20
    monkeypatch.setattr("trainer.policies.decoding.DECODE_PIXELS", 64 * 64 * 2)
    assert torch.equal(policy.decode(latents), whole)


def test_decode_rounds_and_clamps(policy, monkeypatch):
    """Pixels at and beyond the ends, and between two levels."""
    values = torch.tensor([-1.5, -1.0, 0.0, 2 * 100.4 / 255 - 1, 2 * 100.6 / 255 - 1, 1.0, 7.0, 0.999])
    picture = values.view(1, 1, 1, 8).expand(1, 3, 8, 8)
    monkeypatch.setattr(policy._pipe.vae, "decode", lambda latents, return_dict: (picture,))
    row = policy.decode(torch.zeros(1, 16, 1, 1))[0, 0, :, 0].tolist()
    assert row == [0, 0, 128, 100, 101, 255, 255, 255]


@pytest.mark.parametrize(
    ("setting", "dtype", "matrix_units", "kind", "found"),
    [
        ("auto", "float32", True, "cpu", "bfloat16"),
        ("auto", "float32", False, "cpu", "float32"),
        ("auto", "float16", True, "cuda", "float16"),
        ("float32", "bfloat16", True, "cpu", "float32"),
    ],
)
def test_the_decoder_s_number_format(monkeypatch, setting, dtype, matrix_units, kind, found):
    monkeypatch.setattr(policies, "multiplies_bfloat16", lambda: matrix_units)
    config = PolicyConfig.model_validate({"model": "demo", "dtype": dtype, "vae_dtype": setting})
    assert policies.decoder_format(config, torch.device(kind)) == found


def test_a_half_precision_decoder_draws_nearly_the_same_picture_with_the_same_network(tiny_sd3, tmp_path, policy):
    half = SD3Policy(tiny_sd3, CPU, cache=tmp_path, vae_dtype=torch.bfloat16)
    assert half.denoiser.dtype == torch.float32 and half._pipe.vae.dtype == torch.bfloat16
    latents = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(3))
    one, other = policy.decode(latents).int(), half.decode(latents).int()
    assert one.float().std() > 5 and (one - other).abs().float().mean() < 3
