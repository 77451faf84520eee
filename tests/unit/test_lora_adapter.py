from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from tests.lora_models import inputs, output, random_factors, tiny_sd3, train_a_little
from trainer.errors import UserError
from trainer.lora import LoraAdapter, LoraFactors, attach, layer_shapes, resolve_targets


def adapter_on(denoiser: object, targets: object = "attention", seed: int = 7) -> LoraAdapter:
    return attach(denoiser, rank=4, alpha=8.0, targets=targets, seed=seed)


@pytest.fixture
def adapter() -> LoraAdapter:
    return adapter_on(tiny_sd3())


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, trainer.lora; print([m for m in ('diffusers', 'transformers', 'peft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_presets_find_the_modules_of_the_family() -> None:
    plain, dual = tiny_sd3(), tiny_sd3(dual=True)
    # Three blocks of 8, and the last has no to_add_out.
    assert len(resolve_targets(plain, "attention")) == 3 * 8 - 1
    # Two ff a stream a block, and the last block has no ff_context.
    assert len(resolve_targets(plain, "attention+mlp")) == 3 * 12 - 1 - 2
    second = {f"transformer_blocks.{b}.attn2.{part}" for b in (0, 1) for part in ("to_q", "to_k", "to_v", "to_out.0")}
    assert second <= set(resolve_targets(dual, "attention"))
    assert len(resolve_targets(dual, "attention")) == 3 * 8 - 1 + 8


def test_explicit_targets_are_whole_name_parts() -> None:
    denoiser = tiny_sd3()
    assert resolve_targets(denoiser, ["attn.to_q", "proj_out"]) == [f"transformer_blocks.{b}.attn.to_q" for b in range(3)] + [
        "proj_out"
    ]
    adapter = adapter_on(denoiser, ["transformer_blocks.1.attn.to_q", "proj_out"])
    assert adapter.names == ("transformer_blocks.1.attn.to_q", "proj_out")


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["attn.to_q", "attn.to_queries"], r"'attn.to_queries' is no Linear or Conv2d of this model.*attn\.to_q"),
        (["o_q"], "'o_q' is no Linear"),
        (["pos_embed"], "'pos_embed' is no Linear"),
        ("attn", r"no preset of sd3 \(attention, attention\+mlp\)"),
        ([], "find no layer"),
    ],
)
def test_targets_that_match_nothing_are_refused_in_one_line(targets: object, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        resolve_targets(tiny_sd3(), targets)
    assert "\n" not in str(caught.value)


def test_shapes_are_the_same_with_and_without_the_lora() -> None:
    denoiser = tiny_sd3(dual=True)
    before = layer_shapes(denoiser)
    adapter_on(denoiser, "attention+mlp")
    assert layer_shapes(denoiser) == before
    assert before["transformer_blocks.0.ff.net.0.proj"] == (192, 768)


def test_a_fresh_lora_changes_nothing_and_exactly_it_is_trainable() -> None:
    denoiser = tiny_sd3()
    before = output(denoiser)
    adapter = adapter_on(denoiser)
    assert torch.equal(output(denoiser), before)
    trained = {id(p) for p in denoiser.parameters() if p.requires_grad}
    assert trained == {id(p) for p in adapter.parameters()} and len(trained) == 2 * len(adapter.names)


def test_assert_trainable_finds_a_frozen_factor_and_a_trainable_base(adapter: LoraAdapter) -> None:
    adapter.parameters()[3].requires_grad_(False)
    with pytest.raises(RuntimeError, match="1 of them frozen, 0 others"):
        adapter.assert_trainable()
    adapter.parameters()[3].requires_grad_(True)
    adapter.denoiser.proj_out.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"0 of them frozen, 1 others trainable .proj_out.weight"):
        adapter.assert_trainable()


def test_the_start_depends_on_seed_and_name_only() -> None:
    torch.manual_seed(1)
    first = adapter_on(tiny_sd3()).snapshot()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    denoiser = tiny_sd3()
    second = adapter_on(denoiser).snapshot()
    assert torch.equal(torch.get_rng_state(), state)
    assert first.checksum() == second.checksum()
    assert adapter_on(tiny_sd3(), seed=8).snapshot().checksum() != first.checksum()
    # More targets do not move the others, and no two modules start alike.
    wider = adapter_on(tiny_sd3(), "attention+mlp").snapshot()
    assert all(torch.equal(wider.factors[name][0], a) for name, (a, _) in first.factors.items())
    starts = [a for a, _ in first.factors.values()]
    assert not any(torch.equal(a, b) for i, a in enumerate(starts) for b in starts[:i])
    # peft's default distribution: uniform in +-1/sqrt(in), standard deviation 1/sqrt(3 in).
    values = torch.cat([a.flatten() for a in starts])
    assert values.abs().max() <= 1 / math.sqrt(192)
    assert float(values.std()) == pytest.approx(1 / math.sqrt(3 * 192), rel=0.02)
    assert not any(b.any() for _, b in first.factors.values())


def test_master_factors_are_float32_on_a_half_precision_base_and_train() -> None:
    denoiser = tiny_sd3().to(torch.bfloat16)
    adapter = adapter_on(denoiser)
    assert {p.dtype for p in adapter.parameters()} == {torch.float32}
    assert denoiser.proj_out.weight.dtype == torch.bfloat16
    train_a_little(adapter)
    denoiser(**inputs(dtype=torch.bfloat16)).sample.float().square().mean().backward()
    assert {p.grad.dtype for p in adapter.parameters()} == {torch.float32}
    torch.optim.AdamW(adapter.parameters(), lr=1e-3).step()
    assert {p.dtype for p in adapter.parameters()} == {torch.float32}


def test_a_loaded_lora_is_trainable_and_moves() -> None:
    adapter = adapter_on(tiny_sd3())
    loaded = train_a_little(adapter)
    adapter.assert_trainable()
    optimizer = torch.optim.SGD(adapter.parameters(), lr=1e-2)
    adapter.denoiser(**inputs()).sample.square().mean().backward()
    optimizer.step()
    after = adapter.snapshot()
    # The last block's text queries end nowhere (context_pre_only), so only they stay.
    still = [n for n in adapter.names if torch.equal(after.factors[n][1], loaded.factors[n][1])]
    assert still == ["transformer_blocks.2.attn.add_q_proj"]


def test_snapshot_and_load_are_bitwise_in_place_and_separate(adapter: LoraAdapter) -> None:
    parameters = adapter.parameters()
    factors = random_factors(adapter.snapshot(), 3)
    adapter.load(factors)
    assert all(p is q for p, q in zip(parameters, adapter.parameters(), strict=True))
    taken = adapter.snapshot()
    assert taken.checksum() == factors.checksum()
    with torch.no_grad():
        parameters[0].zero_()
    assert taken.checksum() == factors.checksum() != adapter.snapshot().checksum()
    names = [name for name, _ in adapter.named_parameters()]
    assert names[:2] == ["transformer_blocks.0.attn.to_q.lora_A", "transformer_blocks.0.attn.to_q.lora_B"]
    assert len(names) == len(set(names)) == len(parameters)


def test_load_converts_another_alpha(adapter: LoraAdapter) -> None:
    factors = random_factors(adapter.snapshot(), 3)
    adapter.load(factors)
    expected = output(adapter.denoiser)
    adapter.load(factors.with_alpha(2.0))
    assert torch.equal(output(adapter.denoiser), expected)
    assert adapter.snapshot().alpha == 8.0


def test_a_copy_that_copies_nothing_is_noticed(adapter: LoraAdapter, monkeypatch) -> None:
    other = random_factors(adapter.snapshot(), 9)
    monkeypatch.setattr(torch.nn.Parameter, "copy_", lambda self, value: self, raising=False)
    with pytest.raises(RuntimeError, match="differ from their source"):
        adapter.load(other)


def test_load_refuses_what_does_not_fit_and_changes_nothing(adapter: LoraAdapter) -> None:
    train_a_little(adapter)
    before = adapter.snapshot()
    factors = random_factors(before, 9).factors
    first = adapter.names[0]
    short = LoraFactors({n: f for n, f in factors.items() if n != first}, 4, 8.0)
    longer = LoraFactors({**factors, "elsewhere": factors[first]}, 4, 8.0)
    bent = LoraFactors({**factors, adapter.names[-1]: (torch.ones(4, 8), torch.ones(8, 4))}, 4, 8.0)
    for wrong, words in [
        (short, f"22 modules, the model trains 23: 1 missing, 0 unknown \\({first}"),
        (longer, "0 missing, 1 unknown .elsewhere"),
        (bent, r"is \(4, 8\), this model's is \(4, 192\)"),
        (before.resize(6)[0], "rank 6, the model trains rank 4"),
    ]:
        with pytest.raises(UserError, match=words):
            adapter.load(wrong)
        with pytest.raises(UserError, match=words), adapter.using(wrong):
            pass
        assert adapter.snapshot().checksum() == before.checksum()


def test_using_swaps_and_restores_after_an_exception_and_when_nested(adapter: LoraAdapter) -> None:
    base = output(adapter.denoiser)
    policy = train_a_little(adapter)
    with_policy = output(adapter.denoiser)
    old, ema = random_factors(policy, 11), random_factors(policy, 12)
    kept = old.checksum()
    with pytest.raises(KeyError), adapter.using(old):
        with_old = output(adapter.denoiser)
        with adapter.using(ema):
            with_ema = output(adapter.denoiser)
        assert torch.equal(output(adapter.denoiser), with_old)
        raise KeyError
    assert torch.equal(output(adapter.denoiser), with_policy)
    assert len({float(x.sum()) for x in (base, with_policy, with_old, with_ema)}) == 4
    assert adapter.snapshot().checksum() == policy.checksum() and old.checksum() == kept
    adapter.assert_trainable()
    adapter.load(old)
    assert torch.equal(output(adapter.denoiser), with_old)


def test_using_forbids_gradients_and_loading(adapter: LoraAdapter) -> None:
    policy = train_a_little(adapter)
    with adapter.using(random_factors(policy, 11)):
        assert not torch.is_grad_enabled()
        with pytest.raises(RuntimeError, match=r"with gradients inside LoraAdapter.using"), torch.enable_grad():
            adapter.denoiser(**inputs())
        with pytest.raises(RuntimeError, match="inside using"):
            adapter.load(policy)
    assert torch.is_grad_enabled()
    assert adapter.denoiser(**inputs()).sample.requires_grad


@pytest.mark.parametrize("checkpointing", [False, True])
def test_using_between_forward_and_backward_leaves_the_gradients_alone(checkpointing: bool) -> None:
    def gradients(borrow: bool) -> list[torch.Tensor]:
        adapter = adapter_on(tiny_sd3().train())
        policy = train_a_little(adapter)
        if checkpointing:
            adapter.denoiser.enable_gradient_checkpointing()
        loss = adapter.denoiser(**inputs()).sample.square().mean()
        if borrow:
            with adapter.using(random_factors(policy, 11)):
                output(adapter.denoiser)
            with adapter.disabled():
                output(adapter.denoiser)
        loss.backward()
        return [p.grad for p in adapter.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


def test_using_is_not_fooled_by_autocast_caches(adapter: LoraAdapter) -> None:
    policy = train_a_little(adapter)
    old = random_factors(policy, 11)
    with torch.autocast("cpu", torch.bfloat16):
        first = adapter.denoiser(**inputs()).sample.detach()
        with adapter.using(old):
            inside = adapter.denoiser(**inputs()).sample
        again = adapter.denoiser(**inputs()).sample.detach()
    with torch.autocast("cpu", torch.bfloat16), adapter.using(old):
        alone = adapter.denoiser(**inputs()).sample
    assert torch.equal(inside, alone) and torch.equal(first, again) and not torch.equal(inside, first)


def test_disabled_is_the_base_model_and_restores(adapter: LoraAdapter) -> None:
    base = output(tiny_sd3())
    train_a_little(adapter)
    with_policy = output(adapter.denoiser)
    with pytest.raises(KeyError), adapter.disabled():
        assert torch.equal(output(adapter.denoiser), base)
        with adapter.disabled():
            assert torch.equal(output(adapter.denoiser), base)
        assert torch.equal(output(adapter.denoiser), base)
        raise KeyError
    assert torch.equal(output(adapter.denoiser), with_policy)
    adapter.assert_trainable()
    frozen = adapter.parameters()[0].requires_grad_(False)
    with adapter.disabled():
        pass
    assert not frozen.requires_grad


def test_merged_is_the_same_policy_in_fewer_products_and_the_base_comes_back_bit_for_bit(adapter: LoraAdapter) -> None:
    train_a_little(adapter)
    base = {name: value.clone() for name, value in adapter.denoiser.state_dict().items()}
    with_policy = output(adapter.denoiser)
    other = random_factors(adapter.snapshot(), 11)
    with pytest.raises(KeyError), adapter.merged():
        torch.testing.assert_close(output(adapter.denoiser), with_policy, rtol=1e-4, atol=1e-5)
        assert not torch.is_grad_enabled()
        raise KeyError
    with adapter.using(other):
        with_other = output(adapter.denoiser)
        with adapter.for_sampling():
            merged = output(adapter.denoiser)
    torch.testing.assert_close(merged, with_other, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(with_other, with_policy, rtol=1e-4, atol=1e-5)
    assert torch.equal(output(adapter.denoiser), with_policy)
    assert all(torch.equal(value, base[name]) for name, value in adapter.denoiser.state_dict().items())
    adapter.assert_trainable()


def test_half_precision_weights_are_not_merged(adapter: LoraAdapter) -> None:
    train_a_little(adapter)
    half = adapter_on(tiny_sd3().to(torch.bfloat16))
    with half.for_sampling():
        assert not half._layers[half.names[0]].disable_adapters
    with pytest.raises(RuntimeError, match="needs float32"), half.merged():
        pass


def test_start_from_a_smaller_rank_keeps_the_change_and_trains_every_direction() -> None:
    adapter = attach(tiny_sd3(), rank=6, alpha=3.0, targets="attention+mlp", seed=7)
    made = random_factors(adapter_on(tiny_sd3()).snapshot(), 4)
    assert adapter.start_from(made) == 0.0
    now = adapter.snapshot()
    for name in made.factors:
        assert torch.allclose(now.delta(name), made.delta(name), atol=1e-7)
    for name in set(now.factors) - set(made.factors):
        assert not now.delta(name).any() and now.factors[name][0].any()
    adapter.denoiser(**inputs()).sample.square().mean().backward()
    for name, parameter in adapter.named_parameters():
        if name.endswith("lora_B") and "2.attn.add_q_proj" not in name:
            assert parameter.grad.any(dim=0).all(), name


def test_start_from_a_larger_rank_returns_the_error() -> None:
    adapter = adapter_on(tiny_sd3())
    wide = random_factors(attach(tiny_sd3(), rank=6, alpha=6.0, targets="attention", seed=1).snapshot(), 4)
    assert 0.05 < adapter.start_from(wide) < 1.0


def test_start_from_refuses_modules_outside_the_targets() -> None:
    adapter = adapter_on(tiny_sd3())
    wider = adapter_on(tiny_sd3(), "attention+mlp").snapshot()
    before = adapter.snapshot().checksum()
    with pytest.raises(UserError, match=r"10 modules outside the targets .*ff.net.0.proj.*widen the targets"):
        adapter.start_from(wider)
    assert adapter.snapshot().checksum() == before
