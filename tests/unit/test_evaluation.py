from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import trainer.cli
from tests.bench import Scripted, bright, iterate, tiny_bench, watch_denoiser
from tests.cramped import cramped
from trainer.evaluation import Evaluation, evaluate, evaluation_prompts, evaluation_sampling
from trainer.memory import MemoryShortage
from trainer.runs import RunDir
from trainer.samples import load_evaluation, save_evaluation
from trainer.seeds import derive_seed
from trainer.setup import Bench

HELD_OUT = ["a red star", "three green squares"]


def held_out(bench: Bench, **kw) -> Evaluation:
    return evaluate(bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, bench.config, **kw)


def difference(one: Evaluation, other: Evaluation) -> int:
    """The largest between two pixels, which have 256 levels."""
    return int((torch.stack(one.images).int() - torch.stack(other.images).int()).abs().max())


def test_two_evaluations_without_training_between_are_identical(tiny_sd3):
    bench = tiny_bench(tiny_sd3, monitors={"saturation": {}})
    first = held_out(bench)
    torch.manual_seed(99)  # the global state plays no part
    again = held_out(bench)
    assert all(map(torch.equal, first.images, again.images)) and first.seeds == again.seeds and first.means == again.means
    assert [image.shape for image in first.images] == [(64, 64, 3)] * 4 and first.images[0].dtype == torch.uint8
    assert len({bytes(image.numpy()) for image in first.images}) == 4
    other_run = held_out(tiny_bench(tiny_sd3))
    assert all(map(torch.equal, other_run.images, first.images))


def test_training_changes_the_pictures_and_not_the_seeds(tiny_sd3):
    bench = tiny_bench(tiny_sd3, optimizer={"lr": 0.1})
    before = held_out(bench)
    iterate(bench)
    after = held_out(bench)
    assert after.seeds == before.seeds and after.prompts == before.prompts
    assert not all(map(torch.equal, after.images, before.images))


def test_seeds_depend_on_run_prompt_and_member(tiny_sd3):
    seeds = held_out(tiny_bench(tiny_sd3)).seeds
    assert seeds == tuple(derive_seed(3, "evaluation", p, k) for p in range(2) for k in range(2))
    assert not set(seeds) & set(held_out(tiny_bench(tiny_sd3, seed=4)).seeds)
    assert not set(seeds) & {s for i in range(3) for s in iterate(tiny_bench(tiny_sd3), i).rollout.seeds}


def test_prompts_and_seeds_are_in_order_and_use_the_evaluations_own_settings(tiny_sd3):
    bench = tiny_bench(tiny_sd3, evaluation={"steps": 6, "guidance": 3.0, "seeds": 3}, rollout={"sampler": "heun"})
    assert [p.text for p in evaluation_prompts(bench.config)] == HELD_OUT
    with watch_denoiser(bench.policy) as calls:
        result = held_out(bench)
    assert len(calls) == 2 * 6 - 1 and {len(call.hidden) for call in calls} == {2 * 6}
    full = bench.policy.encode(HELD_OUT).rows([0, 0, 0, 1, 1, 1]).gather(torch.device("cpu"), torch.float32)
    assert torch.equal(calls[0].context[6:], full["context"])
    assert (result.seeds_per_prompt, len(result.seeds), [p.text for p in result.prompts]) == (3, 6, HELD_OUT)
    for row, seed in enumerate(result.seeds):
        assert torch.equal(calls[0].hidden[row], torch.randn(16, 8, 8, generator=torch.Generator().manual_seed(seed)))
    assert evaluation_sampling(bench.config).sampler == "heun"


def test_only_the_first_prompts_are_judged(tiny_sd3):
    bench = tiny_bench(tiny_sd3, evaluation={"prompts": 1})
    assert [p.text for p in bench.held_out] == HELD_OUT[:1] and len(held_out(bench).images) == 2


def test_means_are_over_what_could_be_scored(tiny_sd3):
    bench = tiny_bench(
        tiny_sd3, rewards={"brightness": {"weight": 2.0}, "saturation": {"weight": -1.0}}, monitors={"jpeg_size": {}}
    )
    bench.rewards["brightness"] = Scripted(lambda images, call: [0.5, math.nan, 1.5, 1.0])
    bench.rewards["jpeg_size"] = Scripted(lambda images, call: [math.nan] * 4)
    result = held_out(bench)
    assert result.means["eval/brightness/mean"] == pytest.approx(1.0)
    assert math.isnan(result.means["eval/jpeg_size/mean"])
    expected = 2.0 - result.means["eval/saturation/mean"]
    assert result.means["eval/total/mean"] == pytest.approx(expected)
    assert {name for name, _ in result.troubles} == {"brightness", "jpeg_size"}


def test_details_are_logged_beside_the_mean(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    reward = Scripted(bright)
    reward.details = lambda images, prompts, metadata: {"accuracy": torch.tensor([1.0, 0.0, 0.0, 0.0])}
    bench.rewards["brightness"] = reward
    assert held_out(bench).means["eval/brightness/accuracy"] == 0.25


def test_out_of_memory_halves_the_batch(tiny_sd3):
    """A validation picture must not kill the run (FluxTrainer#59)."""
    bench = tiny_bench(tiny_sd3, evaluation={"seeds": 3})
    whole = held_out(bench)
    with cramped(bench.policy, 2) as tried:
        result = held_out(bench)
    assert tried[:2] == [6, 3] and set(tried[2:]) == {1}
    assert difference(result, whole) <= 1 and result.seeds == whole.seeds


def test_out_of_memory_while_decoding_halves_too(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    whole = held_out(bench)
    with cramped(bench.policy._pipe.vae.decoder, 1) as tried:
        result = held_out(bench)
    assert difference(result, whole) <= 1
    assert tried == [4, 2, 1, 1, 1, 1]


def test_one_picture_that_does_not_fit_is_an_error(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    with cramped(bench.policy, 0) as tried, pytest.raises(MemoryShortage, match=r"64 x 64.*gradient_checkpointing"):
        held_out(bench)
    assert tried == [4, 2, 1]


def test_another_error_is_not_tried_again(tiny_sd3, monkeypatch):
    bench, calls = tiny_bench(tiny_sd3), []

    def broken(*args):
        calls.append(1)
        raise RuntimeError("no")

    monkeypatch.setattr(bench.policy, "sample", broken)
    with pytest.raises(RuntimeError, match="no"):
        held_out(bench)
    assert len(calls) == 1


def test_on_step_may_abort(tiny_sd3):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held_out(tiny_bench(tiny_sd3), on_step=stop)


# The pictures that were scored are the ones that are kept


def test_saved_pictures_are_the_scored_pixels_and_score_the_same_again(tiny_sd3, tmp_path, capsys):
    bench = tiny_bench(tiny_sd3, monitors={"jpeg_size": {}, "high_frequency": {}})
    result = held_out(bench)
    run = RunDir(tmp_path / "a run")
    save_evaluation(run, 5, result)
    folder = run.evaluation(5)
    index = json.loads((folder / "index.json").read_text())
    assert len(index["files"]) == 4
    for i, name in enumerate(index["files"]):
        with Image.open(folder / name) as picture:
            pixels = torch.from_numpy(np.array(picture))
            assert picture.text["prompt"] == HELD_OUT[i // 2] and picture.text["seed"] == str(result.seeds[i])
        assert torch.equal(pixels, result.images[i])
        for reward, values in index["scores"].items():
            again = bench.rewards[reward].score(pixels[None], [HELD_OUT[i // 2]], [{}])
            assert float(again[0]) == values[i] == float(result.scores[reward][i])
    assert all(map(torch.equal, load_evaluation(run, 5, result.prompts).images, result.images))
    # The command line agrees with the log.
    table = tmp_path / "scores.csv"
    assert trainer.cli.main(["score", str(folder), "--rewards", "brightness", "--csv", str(table)]) == 0
    rows = table.read_text().splitlines()[1:]
    assert [float(row.rsplit(",", 1)[1]) for row in rows] == index["scores"]["brightness"]
    assert "mean brightness" in capsys.readouterr().out
