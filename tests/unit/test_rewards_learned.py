"""Where a learned reward runs, in which batches, what it keeps, and what it says of files that are not its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.clip_models import TINY, open_clip_state, vocabulary
from trainer.errors import UserError
from trainer.rewards import create, learned, residency
from trainer.rewards.clip_pixels import letterbox
from trainer.rewards.hpsv2_towers import load_towers
from trainer.rewards.scoring import score_rewards

pytest.importorskip("ftfy")

ROOT = Path(__file__).resolve().parents[2]
FILE = "HPS_v2.1_compressed.pt"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    vocabulary(folder / "sd1_tokenizer")
    torch.save({"state_dict": open_clip_state(), "epoch": 1}, folder / FILE)
    return folder


@pytest.fixture
def make(models, monkeypatch):
    """make(**options): an hpsv2 reward on a tiny CLIP."""
    monkeypatch.setenv("VGRPO_MODELS", str(models))
    monkeypatch.setattr("trainer.rewards.hpsv2_towers.load_towers", lambda file, path: load_towers(file, path, TINY))
    return lambda **options: create("hpsv2", options)


def pictures(count: int, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.randint(0, 256, (count, height, width, 3), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)


PROMPTS = ["a cat", "two dogs", "a cat", "a very long road", "two dogs"]


def test_scores_of_a_batch_are_those_of_single_pictures(make):
    batch = pictures(5)
    before = batch.clone()
    scores = make(batch_size=2).score(batch, PROMPTS, [{}] * 5)
    single = torch.cat([make().score(batch[n : n + 1], PROMPTS[n : n + 1], [{}]) for n in range(5)])
    assert scores.dtype == torch.float64 and scores.shape == (5,)
    assert torch.allclose(scores, single, atol=1e-6, rtol=0) and scores.std() > 1e-3
    assert torch.equal(batch, before), "pictures are never changed"


def test_each_prompt_is_read_once_and_by_itself(make, monkeypatch):
    reward = make()
    reward.load("cpu")
    read, towers = [], reward.module()
    original = towers.read
    monkeypatch.setattr(towers, "read", lambda prompt: read.append(prompt) or original(prompt))
    first = reward.score(pictures(5), PROMPTS, [{}] * 5)
    again = reward.score(pictures(5), PROMPTS, [{}] * 5)
    assert read == ["a cat", "two dogs", "a very long road"] and torch.equal(first, again)
    other = make()
    other.score(pictures(1), ["something else"], [{}])
    assert torch.equal(other.score(pictures(5), PROMPTS, [{}] * 5), first), "to the last bit, whatever was read before"


def test_what_is_kept_is_bounded(make, monkeypatch):
    monkeypatch.setattr(learned, "_PROMPTS_KEPT", 2)
    reward = make()
    scores = reward.score(pictures(5), PROMPTS, [{}] * 5)
    assert len(reward._prompts) == 2 and scores.isfinite().all()


def test_the_network_is_built_once_and_only_when_needed(make, monkeypatch):
    reward = make()
    assert reward.bytes() == 0
    reward.load("cpu")
    network = reward.module()
    reward.load("cpu")
    assert reward.module() is network and reward.bytes() > 100_000
    assert not any(p.requires_grad for p in network.parameters()) and not network.training


@pytest.mark.parametrize(
    ("options", "device", "asked", "expected"),
    [
        ({}, "cpu", None, torch.float32),
        ({}, "cpu", torch.bfloat16, torch.bfloat16),
        ({"dtype": "bfloat16"}, "cpu", None, torch.bfloat16),
        ({"dtype": "float32"}, "cpu", torch.bfloat16, torch.float32),
        ({"device": "cpu"}, "cuda:0", None, torch.float32),
    ],
)
def test_device_and_precision(make, options, device, asked, expected):
    """A reward's own options win over what the run asks for."""
    reward = make(**options)
    reward.load(device, asked)
    weights = next(reward.module().parameters())
    assert weights.dtype == expected and weights.device.type == "cpu"
    scores = reward.score(pictures(3), PROMPTS[:3], [{}] * 3)
    exact = make().score(pictures(3), PROMPTS[:3], [{}] * 3)
    assert scores.dtype == torch.float64 and (scores - exact).abs().max() < (1e-9 if expected == torch.float32 else 0.05)


def test_half_precision_is_for_cuda_where_the_authors_use_it(make):
    reward = make()
    reward._return = lambda: None  # there is no such device here
    reward.load("cuda:0")
    assert reward._dtype == torch.float16
    reward.half_on_cuda = False
    reward.load("cuda:0")
    assert reward._dtype == torch.float32


def test_an_absent_device_is_said_in_one_line(make):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(UserError, match="device: cuda is not available"):
        make(device="cuda:0").load("cpu")


def test_out_of_memory_halves_the_batch(make, monkeypatch):
    reward = make(batch_size=4)
    reward.load("cpu")
    towers, sizes = reward.module(), []
    original = towers.see

    def see(pixels):
        sizes.append(len(pixels))
        if len(pixels) > 1:
            raise torch.OutOfMemoryError("no room")
        return original(pixels)

    monkeypatch.setattr(towers, "see", see)
    scores = reward.score(pictures(3), PROMPTS[:3], [{}] * 3)
    assert sizes == [3, 1, 1, 1] and torch.allclose(scores, make().score(pictures(3), PROMPTS[:3], [{}] * 3), atol=1e-6)
    assert reward.news() == ["out of memory in scoring: batch 3 -> 1 for the rest of the run"] and not reward.news()
    reward.score(pictures(3), PROMPTS[:3], [{}] * 3)  # it remembers
    assert sizes == [3, 1, 1, 1, 1, 1, 1] and not reward.news()
    monkeypatch.setattr(towers, "see", lambda pixels: (_ for _ in ()).throw(RuntimeError("MPS backend out of memory")))
    table = score_rewards({"it": reward}, pictures(3), PROMPTS[:3], [{}] * 3)
    assert "a batch of 1 does not fit either; set its device to cpu" in table.reasons["it"]


def test_a_smaller_batch_is_told_once(make, monkeypatch):
    reward = make(batch_size=4)
    reward.load("cpu")
    towers = reward.module()
    original = towers.see

    def see(pixels):
        if len(pixels) > 1:
            raise torch.OutOfMemoryError("no room")
        return original(pixels)

    monkeypatch.setattr(towers, "see", see)
    table = score_rewards({"it": reward}, pictures(2), PROMPTS[:2], [{}] * 2)
    assert table.warnings == [("it", "out of memory in scoring: batch 2 -> 1 for the rest of the run")]
    assert not score_rewards({"it": reward}, pictures(2), PROMPTS[:2], [{}] * 2).warnings


@pytest.mark.parametrize(
    ("offload", "short", "parked"),
    [("auto", True, True), ("auto", False, False), ("always", False, True), ("never", True, False)],
)
def test_between_rounds_of_scoring(make, monkeypatch, offload, short, parked):
    reward = make(offload=offload)
    reward.load("cpu")
    moves = []
    reward._device = torch.device("cuda:0")  # pretended: no test machine has one
    monkeypatch.setattr(learned, "short_of_memory", lambda device: short)
    monkeypatch.setattr(reward._module, "to", lambda *a, **k: moves.append(a) or reward._module)
    assert residency.rest([create("brightness"), reward]) == (["hpsv2"] if parked else [])
    assert moves == ([("cpu",)] if parked else [])
    reward.module()
    assert moves[-1] == (torch.device("cuda:0"),), "it comes back by itself"


@pytest.mark.parametrize(("offload", "parked"), [("auto", True), ("always", True), ("never", False)])
def test_parked_whether_memory_is_short_or_not(make, monkeypatch, offload, parked):
    reward = make(offload=offload)
    reward.load("cpu")
    reward._device = torch.device("cuda:0")
    monkeypatch.setattr(learned, "short_of_memory", lambda device: False)
    monkeypatch.setattr(reward._module, "to", lambda *a, **k: reward._module)
    assert residency.park([create("brightness"), reward]) == (["hpsv2"] if parked else [])


def test_on_the_cpu_nothing_is_parked(make):
    reward = make(offload="always")
    assert residency.park([reward]) == [], "nor before it is loaded"
    reward.load("cpu")
    assert residency.rest([reward]) == residency.park([reward]) == []
    assert not residency.short_of_memory(torch.device("cpu"))


class Evil:
    def __reduce__(self):
        return print, ("this must never run",)


def state_without(*names: str):
    return {key: value for key, value in open_clip_state().items() if key not in names}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"<!DOCTYPE html>", ["can't be read as weights", "has 15 bytes where the published file has 1972490005", "fetch it"]),
        (pickle.dumps(Evil()), ["can't be read as weights", "files that would run code are refused"]),
        ([1, 2], ["holds a list, not a dictionary of tensors"]),
        ({"state_dict": {}}, ["is another model: it lacks", "more"]),
        (state_without("visual.proj"), ["it lacks visual_projection.weight"]),
        ({**open_clip_state(), "score_head.weight": torch.zeros(1)}, ["it has score_head.weight that do not belong to it"]),
        (
            {**open_clip_state(), "visual.proj": torch.zeros(48, 31)},
            ["weights of another shape: visual_projection.weight is [31, 48], expected [32, 48]", "another model"],
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_said_in_one_line(make, tmp_path, models, content, parts):
    path = tmp_path / FILE
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    vocabulary(tmp_path / "sd1_tokenizer")
    reward = make(model=str(path))
    with pytest.raises(UserError) as caught:
        reward.load("cpu")
    text = str(caught.value)
    assert text.startswith("HPS v2.1: ") and str(path) in text and len(text.splitlines()) == 1
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s}, lambda s: {f"module.{k}": v for k, v in s.items()}])
def test_the_ways_in_which_weights_are_saved(make, tmp_path, wrap):
    expected = make().score(pictures(2), PROMPTS[:2], [{}] * 2)
    torch.save(wrap(open_clip_state()), tmp_path / "mine.pt")
    assert torch.equal(make(model=str(tmp_path / "mine.pt")).score(pictures(2), PROMPTS[:2], [{}] * 2), expected)


def test_safetensors(make, tmp_path):
    from safetensors.torch import save_file

    save_file(open_clip_state(), tmp_path / "mine.safetensors")
    expected = make().score(pictures(2), PROMPTS[:2], [{}] * 2)
    assert torch.equal(make(model=str(tmp_path / "mine.safetensors")).score(pictures(2), PROMPTS[:2], [{}] * 2), expected)


def test_missing_files_are_known_before_anything_is_loaded(make, monkeypatch, tmp_path):
    assert make().missing() is None
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    monkeypatch.setattr("trainer.rewards.clip_text._PACKAGES", ())
    assert "HPS v2.1: HPS_v2.1_compressed.pt is missing" in make().missing()
    assert "HPS v2.0: HPS_v2_compressed.pt is missing" in make(version="v2.0").missing()
    torch.save(open_clip_state(), tmp_path / FILE)
    monkeypatch.setattr("trainer.rewards.weights._cached", lambda *_: None)
    assert "CLIP's vocabulary" in make().missing() and "comfy/sd1_tokenizer" in make().missing()
    with pytest.raises(UserError, match="CLIP's vocabulary"):
        make().load("cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "cpu:1"])
def test_a_word_that_is_no_device_is_refused_at_once(device):
    with pytest.raises(UserError, match=r"option 'device' is .*allowed: auto, cuda, xpu, mps, cpu, or cuda:N"):
        create("hpsv2", {"device": device})


def test_a_path_is_kept_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert create("hpsv2", {"model": "./hps.pt"}).options.model == str(tmp_path / "hps.pt")
    assert create("hpsv2", {"model": "xswu/HPSv2"}).options.model == "xswu/HPSv2"


@pytest.mark.parametrize(("height", "width"), [(224, 112), (112, 224), (1, 400), (5000, 2), (224, 224), (7, 3)])
def test_any_shape_becomes_a_square(height, width):
    made = letterbox(pictures(1, height, width), 224)
    assert made.shape == (1, 3, 224, 224) and made.isfinite().all()


def test_importing_the_rewards_loads_no_library():
    names = ("hpsv2", "pickscore", "clipscore", "aesthetic", "imagereward")
    script = (
        "import sys; from trainer.rewards import create\n"
        f"made = [create(name) for name in {names}]\n"
        "lines = [reward.missing() for reward in made]\n"
        "heavy = {'torch', 'transformers', 'numpy', 'PIL', 'tokenizers', 'ftfy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
