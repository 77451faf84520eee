"""Pictures of several sizes in one run: one size a prompt group, and no batch that mixes them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

import trainer.cli
from tests.bench import PROMPTS, Scripted, bright, factors, iterate, same, tiny_bench, tiny_config, watch_denoiser, watch_steps
from tests.cramped import cramped
from tests.small_run import assert_same_outcome, go, new_run, small_config, stopped_and_resumed
from tests.tiny_families import make_folder
from trainer.errors import UserError
from trainer.estimate import SurrogateEstimate, blocks
from trainer.evaluation import evaluate, evaluation_sizes
from trainer.loop import sampling_of
from trainer.objective import draw_pairs
from trainer.pictures import GAP, LABEL, MARGIN, TILE, grid
from trainer.prompts import Prompt
from trainer.rollout import pick_prompts, runs_of_equal
from trainer.sizes import drawn_size, named_size, paired, parse_size

SIZES = ((64, 64), (96, 32), (32, 64))
BUCKETS = {"width": [w for w, _ in SIZES], "height": [h for _, h in SIZES]}
# Each prompt with a size of its own, so that a test knows what it gets.
NAMED = [{"text": text, "metadata": {"bucket": f"{w}x{h}"}} for text, (w, h) in zip(PROMPTS, SIZES, strict=True)]
MIXED = {
    "prompts": {"train": NAMED, "evaluate": ["a red star", "three green squares"]},
    "rollout": {**BUCKETS, "prompts_per_iteration": 3},
}


def shapes(calls) -> list[tuple[int, int]]:
    """(width, height) in pixels of what the network was shown."""
    return [(8 * call.hidden.shape[-1], 8 * call.hidden.shape[-2]) for call in calls]


# What a size is, and who gets which


def test_a_size_is_written_in_pixels():
    assert parse_size("832x1216") == parse_size(" 832 X 1216") == parse_size("832×1216") == (832, 1216)
    for wrong in ("832", "832x", "8 32x1216", "832x1216x3", 832, None, "-8x8", "123456x8"):
        with pytest.raises(ValueError, match="no size; allowed: width x height in pixels, such as 832x1216"):
            parse_size(wrong)
    assert paired(64, 32) == ((64, 32),) and paired([64, 32], (32, 48)) == ((64, 32), (32, 48))
    for width, height in ((64, [64]), ([64], 64), ([64, 64], [64])):
        with pytest.raises(ValueError, match="lists of equal length"):
            paired(width, height)


def test_a_group_draws_its_size_from_seed_iteration_and_prompt_alone():
    prompt = Prompt("a")
    drawn = [drawn_size(SIZES, prompt, index, seed, i) for seed in range(3) for i in range(30) for index in range(10)]
    assert drawn == [drawn_size(SIZES, prompt, index, seed, i) for seed in range(3) for i in range(30) for index in range(10)]
    counts = Counter(drawn)
    assert set(counts) == set(SIZES) and min(counts.values()) > 0.25 * len(drawn)
    for part in (drawn[:300], [drawn_size(SIZES, prompt, 4, 0, i) for i in range(40)], drawn[:10]):
        assert len(set(part)) > 1  # each of the three parts of the seed counts
    assert drawn[:300] != drawn[300:600]


def test_a_prompt_may_name_its_size():
    assert named_size(Prompt("a", {"bucket": "96x32"})) == (96, 32) and named_size(Prompt("a", {"size": "large"})) is None
    assert {drawn_size(SIZES, Prompt("a", {"bucket": "96x32"}), 0, 0, i) for i in range(20)} == {(96, 32)}


def test_picks_of_one_size_stand_together_and_are_the_same_prompts():
    prompts = [Prompt(str(i)) for i in range(30)]
    for iteration in range(20):
        plain = pick_prompts(prompts, 7, 1, iteration, [(64, 64)])
        picks = pick_prompts(prompts, 7, 1, iteration, SIZES)
        assert sorted(p.index for p in picks) == sorted(p.index for p in plain)
        assert [p.size for p in picks] == sorted(p.size for p in picks)
        for one, next_one in pairwise(picks):  # the epoch's order within a size
            order = [p.index for p in plain]
            assert one.size != next_one.size or order.index(one.index) < order.index(next_one.index)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (
            [{"text": "x", "metadata": {"bucket": "64x32"}}],
            "bucket: 64x32 is no size of the rollout; allowed here: 64x64",
        ),
        ([{"text": "x", "metadata": {"bucket": "wide"}}], "bucket: 'wide' is no size; allowed: width x height in pixels"),
    ],
)
@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_a_prompt_that_names_another_size_is_refused(tiny_sd3, part, prompts, said):
    with pytest.raises(UserError, match=rf"prompts\.{part}\[0\] \(x\): {said}"):
        tiny_config(tiny_sd3, prompts={"train": ["a", "b"], "evaluate": ["c"], part: [*prompts, "d"]}, rollout=BUCKETS)


def test_each_size_is_checked_against_the_base_with_the_nearest_that_fits(tiny_sd3):
    too_large = {"width": [64, 4096], "height": [64, 64]}
    for section in ("rollout", "evaluation"):
        said = rf"{section}\.width x {section}\.height: 4096 x 64 does not fit .*; the nearest size is \d+ x 64"
        with pytest.raises(UserError, match=said):
            tiny_bench(tiny_sd3, **{section: too_large})


# An iteration


def test_a_group_has_one_size_and_no_batch_mixes_two(tiny_sd3):
    bench = tiny_bench(tiny_sd3, **MIXED, surrogate={"batch_size": 7})
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    rollout = result.rollout
    for group in range(3):
        members = (rollout.group_ids == group).nonzero().flatten().tolist()
        [size] = {(image.shape[1], image.shape[0]) for image in (rollout.images[i] for i in members)}
        [named] = {rollout.prompts[i].metadata["bucket"] for i in members}
        assert parse_size(named) == size
        assert {tuple(rollout.latents[i].shape[-2:]) for i in members} == {(size[1] // 8, size[0] // 8)}
    assert rollout.size_ids.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    sampled = [shape for call, shape in zip(calls, shapes(calls), strict=True) if not call.with_gradient]
    assert [sampled[run.start] for run in runs_of_equal(sampled)] == sorted(SIZES)  # one after the other
    trained = [call for call in calls if call.with_gradient]
    assert sum(len(call.hidden) for call in trained) == 12 * 3 and {len(call.hidden) for call in trained} == {6}
    assert result.metrics["nfe/behaviour"] == 4 and result.metrics["nfe/policy"] == 3


def test_rows_are_cut_where_the_size_changes():
    outputs, size_ids = torch.tensor([0, 1, 4, 5, 6, 2]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    found = list(blocks(outputs, 2, 4, size_ids))
    assert [block.local.tolist() for block in found] == [[0, 1], [2, 3], [4], [5]]
    for batch in (batch for block in found for batch in block.batches):
        assert len(size_ids[batch.output].unique()) == 1
    assert [block.local.tolist() for block in blocks(outputs, 2, 4, torch.zeros(7, dtype=torch.long))] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_the_split_changes_neither_pictures_nor_gradient(tiny_sd3, rows):
    whole, split = tiny_bench(tiny_sd3, **MIXED), tiny_bench(tiny_sd3, **MIXED, surrogate={"batch_size": rows})
    expected, found = watch_steps(whole), watch_steps(split)
    one, other = iterate(whole), iterate(split)
    torch.testing.assert_close(one.rollout.latents, other.rollout.latents, rtol=0, atol=1e-5)
    for name, gradient in expected[0].items():
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-3, atol=1e-6)


def test_several_gradient_steps_show_theta_old_the_row_batches_of_training(tiny_sd3):
    """A minibatch holds several sizes; before the first update the ratio is 1 but for rounding."""
    bench = tiny_bench(tiny_sd3, **MIXED, objective={"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.1})
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    trained = [shape for call, shape in zip(calls, shapes(calls), strict=True) if call.with_gradient]
    assert len(set(trained)) == 3 and len(trained) <= 6  # in each of the two minibatches those of one size go together
    assert result.metrics["ratio/noise"] == 0 and result.metrics["steps/taken"] == 2


def test_the_levels_are_those_of_the_groups_own_size(tmp_path):
    """FLUX.1's shift grows with the size, so its sampler visits other levels at each."""
    sizes = [(64, 64), (256, 128)]
    buckets = {"width": [64, 256], "height": [64, 128]}
    named = [{"text": text, "metadata": {"bucket": f"{w}x{h}"}} for text, (w, h) in zip(PROMPTS, sizes, strict=False)]
    bench = tiny_bench(
        make_folder("flux", tmp_path / "model"),
        policy={"family": "flux"},
        prompts={"train": named},
        rollout={**buckets, "group_size": 2, "steps": 3},
    )
    grids = {size: bench.policy.noise_levels(sampling_of(bench.config).at(size))[0] for size in sizes}
    assert not torch.isin(grids[sizes[0]][1:], grids[sizes[1]]).any()
    seen = []
    rows = SurrogateEstimate.rows

    def watched(self, batch):
        seen.append((self.rollout.images[int(batch.output[0])].shape, self.draw.t[batch.output, batch.pair]))
        return rows(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SurrogateEstimate, "rows", watched)
        iterate(bench)
    assert {shape[:2] for shape, _ in seen} == {(64, 64), (128, 256)}
    for (height, width, _), t in seen:
        assert torch.isin(t, grids[width, height]).all()


@pytest.mark.parametrize("share", ["group", "batch", "none"])
def test_a_grid_a_group(share):
    grids = torch.stack([torch.linspace(1.0, 0.1, 8), torch.linspace(0.9, 0.05, 8)])
    draw = draw_pairs(grids, 4, share, 0, 0, ["a", "b"], 3)
    plain = [draw_pairs(grid, 4, share, 0, 0, ["a", "b"], 3) for grid in grids]
    assert torch.equal(draw.t, torch.cat([plain[0].t[:3], plain[1].t[3:]])) and draw.owners == plain[0].owners
    with pytest.raises(ValueError, match="sigmas has 2 rows for 1 groups"):
        draw_pairs(grids, 4, share, 0, 0, ["a"], 3)


def test_a_list_of_one_size_is_that_size(tiny_sd3):
    plain = tiny_bench(tiny_sd3)
    listed = tiny_bench(tiny_sd3, rollout={"width": [64], "height": [64]})
    for bench in (plain, listed):
        iterate(bench, 0), iterate(bench, 1)
    assert same(factors(plain), factors(listed))


@pytest.mark.slow
def test_stopping_and_resuming_draws_the_same_sizes(tiny_sd3, tmp_path):
    data = small_config(tiny_sd3, rollout=BUCKETS, iterations=4, evaluation={"width": [64, 96], "height": [64, 32]})
    whole = new_run(tmp_path / "a", data)
    go(whole)
    assert_same_outcome(stopped_and_resumed(tmp_path / "b", data, 2), whole)


# Evaluations


def _evaluated(bench, **kw):
    return evaluate(bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, bench.config, **kw)


def test_the_sizes_of_an_evaluation(tiny_sd3):
    prompts = [Prompt("a"), Prompt("b", {"bucket": "32x64"}), Prompt("c")]
    assert evaluation_sizes(tiny_config(tiny_sd3, rollout=BUCKETS), prompts) == [(64, 64), (32, 64), (64, 64)]
    fixed = tiny_config(tiny_sd3, rollout=BUCKETS, evaluation={"width": 48, "height": 32})
    assert evaluation_sizes(fixed, prompts) == [(48, 32)] * 3
    turns = tiny_config(tiny_sd3, evaluation={"width": [48, 64], "height": [32, 64]})
    assert evaluation_sizes(turns, prompts) == [(48, 32), (64, 64), (48, 32)]


def test_pictures_and_scores_keep_the_prompts_order(tiny_sd3):
    held_out = ["a red star", "three green squares", "a blue circle"]
    changes = {"prompts": {"evaluate": held_out}, "evaluation": {"prompts": 3, "width": [96, 32, 96], "height": [32, 64, 32]}}
    bench = tiny_bench(tiny_sd3, bright, **changes)
    result = _evaluated(bench)
    assert [tuple(image.shape) for image in result.images] == [(32, 96, 3)] * 2 + [(64, 32, 3)] * 2 + [(32, 96, 3)] * 2
    assert result.scores["brightness"].tolist() == [float(bright(image[None])) for image in result.images]
    for number, image in enumerate(result.images):  # each from its own seed and prompt, whatever was made beside it
        alone = bench.policy.sample(
            bench.held_out_conditioning.rows([number // 2]),
            [result.seeds[number]],
            sampling_of(bench.config).at((image.shape[1], image.shape[0])),
        )
        assert int((bench.policy.decode(alone)[0].int() - image.int()).abs().max()) <= 1


def test_a_smaller_batch_is_tried_with_several_sizes_too(tiny_sd3):
    bench = tiny_bench(tiny_sd3, evaluation={"width": [96, 64], "height": [32, 64]})
    whole = _evaluated(bench)
    with cramped(bench.policy, 1) as tried:
        for one, other in zip(_evaluated(bench).images, whole.images, strict=True):
            assert int((one.int() - other.int()).abs().max()) <= 1
    assert tried.count(2) == 2 and set(tried) == {1, 2}  # once a size


def test_a_grid_of_several_sizes_has_each_picture_whole_in_the_middle_of_its_place():
    red, blue = Image.new("RGB", (96, 32), (255, 0, 0)), Image.new("RGB", (32, 64), (0, 0, 255))
    sheet = torch.from_numpy(np.array(grid([[red], [blue]], ["wide", "high"])))
    assert sheet.shape[:2] == (2 * MARGIN + 2 * (LABEL + TILE + GAP), 2 * MARGIN + TILE + GAP)
    for row, (color, (wide, high)) in enumerate(((0, (TILE, 43)), (2, (TILE // 2, TILE)))):
        top = MARGIN + LABEL + row * (LABEL + TILE + GAP)
        place = sheet[top : top + TILE, MARGIN : MARGIN + TILE]
        painted = (place[..., color] == 255) & (place.sum(-1) == 255)
        rows, columns = painted.any(1).nonzero().flatten(), painted.any(0).nonzero().flatten()
        assert (len(columns), len(rows)) == (wide, high) and painted.sum() == wide * high
        assert abs(int(columns[0]) - (TILE - 1 - int(columns[-1]))) <= 1 and abs(int(rows[0]) - (TILE - 1 - int(rows[-1]))) <= 1


@pytest.mark.slow
def test_a_run_with_sizes_leaves_pictures_grids_and_a_lora(tiny_sd3, tmp_path, capsys):
    data = small_config(tiny_sd3, rollout=BUCKETS, iterations=1, evaluation={"width": [64, 96], "height": [64, 32]})
    run = new_run(tmp_path, data)
    go(run)
    folder = run.evaluation(1)
    files = json.loads((folder / "index.json").read_text())["files"]
    assert [Image.open(folder / name).size for name in files] == [(64, 64)] * 2 + [(96, 32)] * 2
    assert (folder / "grid.png").is_file() and (run.path / "before-after.png").is_file()
    # `sample`: the held-out prompts at their sizes, and any size that is asked for
    for extra, sizes in (([], [(64, 64)] * 2 + [(96, 32)] * 2), (["--size", "32x48"], [(32, 48)] * 4)):
        output = tmp_path / f"pictures{len(extra)}"
        arguments = ["sample", str(run.path), "--images", "2", "--output", str(output), "--device", "cpu", *extra]
        assert trainer.cli.main(arguments) == 0
        assert [Image.open(path).size for path in sorted(output.glob("p*.png"))] == sizes
    capsys.readouterr()
    for size, said in (("32", "--size: '32' is no size; allowed: width x height"), ("33x64", "--size: 33 x 64 does not fit")):
        output = tmp_path / "nothing"
        assert trainer.cli.main(["sample", str(run.path), "--size", size, "--output", str(output), "--device", "cpu"]) == 2
        assert said in capsys.readouterr().err and not output.exists()


def test_scores_belong_to_their_pictures(tiny_sd3):
    """Rewards are handed batches of one size, in the rollout's order."""
    bench, handed = tiny_bench(tiny_sd3, **MIXED), []

    def watched(images, call):
        handed.append(tuple(images.shape))
        return bright(images)

    bench.rewards["brightness"] = Scripted(watched)
    result = iterate(bench)
    assert handed == [(4, 64, 32, 3), (4, 64, 64, 3), (4, 32, 96, 3)]
    assert result.scores.scores["brightness"].tolist() == [float(bright(image[None])) for image in result.rollout.images]
