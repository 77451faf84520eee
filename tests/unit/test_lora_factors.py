from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from trainer.errors import UserError
from trainer.lora import LoraFactors


def make(rank: int = 4, alpha: float = 8.0, seed: int = 0) -> LoraFactors:
    g = torch.Generator().manual_seed(seed)
    shapes = {"blocks.0.to_q": (12, 10), "blocks.1.to_q": (7, 9)}
    return LoraFactors(
        {n: (torch.randn(rank, i, generator=g), torch.randn(o, rank, generator=g)) for n, (i, o) in shapes.items()}, rank, alpha
    )


def test_delta_is_alpha_over_rank_times_the_product() -> None:
    lora = make(rank=4, alpha=8.0)
    a, b = lora.factors["blocks.0.to_q"]
    assert torch.equal(lora.delta("blocks.0.to_q"), 2.0 * (b @ a))


@pytest.mark.parametrize(
    ("rank", "alpha", "words"),
    [(3, 8.0, "rank 3"), (0, 8.0, "at least 1"), (4, 0.0, "positive"), (4, float("nan"), "positive")],
)
def test_inconsistent_factors_are_refused(rank: int, alpha: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LoraFactors(make().factors, rank, alpha)


def test_clone_shares_nothing_and_to_shares_what_fits() -> None:
    lora = make()
    copy, same = lora.clone(), lora.to(torch.float32)
    lora.factors["blocks.0.to_q"][0].zero_()
    assert copy.factors["blocks.0.to_q"][0].any()
    assert not same.factors["blocks.0.to_q"][0].any()
    assert lora.to(torch.bfloat16).factors["blocks.1.to_q"][1].dtype == torch.bfloat16


def test_checkpoint_round_trip_is_bitwise() -> None:
    lora = make(alpha=1 / 3)
    back = LoraFactors.from_tensors(load(save(lora.tensors())))
    assert back.checksum() == lora.checksum()
    assert (back.rank, back.alpha) == (4, 1 / 3)


@pytest.mark.parametrize("lost", ["alpha", "blocks.1.to_q.lora_B", "blocks.1.to_q.lora_A"])
def test_an_incomplete_checkpoint_is_refused(lost: str) -> None:
    tensors = make().tensors()
    del tensors[lost]
    with pytest.raises(UserError, match="not a complete LoRA checkpoint"):
        LoraFactors.from_tensors(tensors)


def test_checksum_sees_values_names_and_alpha_but_not_order() -> None:
    lora = make()
    turned = LoraFactors(dict(reversed(lora.factors.items())), lora.rank, lora.alpha)
    assert turned.checksum() == lora.checksum()
    changed = lora.clone()
    changed.factors["blocks.1.to_q"][1][3, 2] += 1e-6
    renamed = LoraFactors({name + "x": pair for name, pair in lora.factors.items()}, lora.rank, lora.alpha)
    others = [changed, renamed, LoraFactors(lora.factors, lora.rank, 4.0), lora.to(torch.float64)]
    assert len({lora.checksum(), *(other.checksum() for other in others)}) == 5


@pytest.mark.parametrize("alpha", [4.0, 16.0, 3.0])
def test_with_alpha_keeps_the_change(alpha: float) -> None:
    lora = make(alpha=8.0)
    other = lora.with_alpha(alpha)
    assert other.alpha == alpha
    for name in lora.factors:
        difference = (other.delta(name) - lora.delta(name)).abs().max()
        assert difference <= (1e-6 if alpha == 3.0 else 0.0) * lora.delta(name).abs().max()


def test_resize_up_is_exact() -> None:
    lora = make(rank=4, alpha=8.0)
    wide, error = lora.resize(6)
    assert (wide.rank, wide.alpha, error) == (6, 12.0, 0.0)
    for name in lora.factors:
        assert torch.equal(wide.factors[name][0][:4], lora.factors[name][0])
        assert torch.allclose(wide.delta(name), lora.delta(name), rtol=1e-6, atol=1e-7)


def test_resize_down_is_the_best_approximation_and_says_how_good() -> None:
    lora = make(rank=4)
    small, error = lora.resize(2)
    assert (small.rank, small.scale) == (2, lora.scale)
    lost = total = 0.0
    for name in lora.factors:
        u, s, vh = torch.linalg.svd(lora.delta(name))
        assert torch.allclose(small.delta(name), (u[:, :2] * s[:2]) @ vh[:2], atol=1e-4)
        lost += float(s[2:].square().sum())
        total += float(s.square().sum())
    assert error == pytest.approx((lost / total) ** 0.5, rel=1e-4)
    assert 0.05 < error < 1


def test_resize_down_of_a_padded_lora_loses_nothing() -> None:
    lora = make(rank=2)
    back, error = lora.resize(5)[0].resize(2)
    assert error < 1e-12
    for name in lora.factors:
        assert torch.allclose(back.delta(name), lora.delta(name), atol=1e-5)


def test_resize_of_an_untrained_lora_is_defined() -> None:
    lora = LoraFactors({n: (a, torch.zeros_like(b)) for n, (a, b) in make().factors.items()}, 4, 8.0)
    small, error = lora.resize(1)
    assert error == 0.0 and not small.delta("blocks.0.to_q").any()
