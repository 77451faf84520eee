from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trainer.policies import conditioning_cache
from trainer.policies.base import Conditioning
from trainer.policies.conditioning_cache import ConditioningCache, default_folder, fingerprint


class Encoder:
    """Encodes a prompt as its length, and remembers what it was asked."""

    def __init__(self):
        self.asked: list[list[str]] = []

    def __call__(self, prompts):
        self.asked.append(list(prompts))
        return [{"context": torch.full((2, 3), float(len(p))), "pooled": torch.tensor([float(len(p))])} for p in prompts]


class Words:
    """A tokenizer as far as the fingerprint looks."""

    model_max_length = 8

    def __init__(self, **vocabulary):
        self.vocabulary = vocabulary

    def get_vocab(self):
        return self.vocabulary


def test_only_what_is_missing_is_encoded_once_and_order_is_kept(tmp_path):
    encode = Encoder()
    rows = ConditioningCache(tmp_path, "e").fetch(["bb", "a", "bb", ""], encode)
    assert encode.asked == [["bb", "a", ""]]
    assert [float(row["pooled"]) for row in rows] == [2, 1, 2, 0]
    rows = ConditioningCache(tmp_path, "e").fetch(["ccc", "a"], encode)
    assert encode.asked[1:] == [["ccc"]]
    assert [float(row["pooled"]) for row in rows] == [3, 1]
    ConditioningCache(tmp_path, "e").fetch(["a", "bb", "ccc", ""], encode)
    assert len(encode.asked) == 2


def test_values_and_dtypes_survive(tmp_path):
    tensors = {"context": torch.randn(4, 6).T.to(torch.bfloat16), "pooled": torch.randn(3)}
    ConditioningCache(tmp_path, "e").fetch(["ä ☃ / .."], lambda _: [tensors])
    (found,) = ConditioningCache(tmp_path, "e").fetch(["ä ☃ / .."], Encoder())
    assert all(torch.equal(found[k], tensors[k]) and found[k].dtype == tensors[k].dtype for k in tensors)


def test_another_encoder_has_files_of_its_own(tmp_path):
    encode = Encoder()
    ConditioningCache(tmp_path, "one").fetch(["a"], encode)
    ConditioningCache(tmp_path, "two").fetch(["a"], encode)
    assert encode.asked == [["a"], ["a"]]


@pytest.mark.parametrize("damage", [b"", b"garbage that is no safetensors file at all", None])
def test_a_damaged_file_is_encoded_again_and_replaced(tmp_path, damage):
    encode = Encoder()
    ConditioningCache(tmp_path, "e").fetch(["a"], encode)
    (file,) = tmp_path.rglob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] if damage is None else damage)
    (row,) = ConditioningCache(tmp_path, "e").fetch(["a"], encode)
    assert encode.asked == [["a"], ["a"]] and float(row["pooled"]) == 1
    assert file.read_bytes() == whole
    assert [f.suffix for f in tmp_path.rglob("*") if f.is_file()] == [".safetensors"]  # nothing half-written beside it


def test_a_folder_that_cannot_be_written_is_not_used(tmp_path):
    (tmp_path / "file").write_text("in the way")
    encode = Encoder()
    (row,) = ConditioningCache(tmp_path / "file", "e").fetch(["a"], encode)
    assert float(row["pooled"]) == 1


def test_what_was_used_longest_ago_goes_first(tmp_path, monkeypatch):
    cache = ConditioningCache(tmp_path, "e")
    cache.fetch(["a", "bb", "ccc"], Encoder())
    for prompt, when in (("a", 300), ("bb", 100), ("ccc", 200)):
        os.utime(cache._file(prompt), (when, when))
    size = cache._file("a").stat().st_size
    monkeypatch.setattr(conditioning_cache, "MAX_BYTES", 3 * size + 10)
    cache.fetch(["dddd"], Encoder())
    left = {p for p in ("a", "bb", "ccc", "dddd") if cache._file(p).exists()}
    assert left == {"a", "ccc", "dddd"}


def test_the_default_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "conditioning"
    monkeypatch.delenv("VGRPO_CACHE")
    assert default_folder() == Path.home() / ".cache" / "vgrpo" / "conditioning"


def test_the_fingerprint_sees_weights_words_and_tokenizers():
    torch.manual_seed(0)
    module, words = torch.nn.Linear(100, 100), Words(red=1, blue=2)
    base = fingerprint([module], [words], "sd3", "float32")
    assert base == fingerprint([module], [Words(blue=2, red=1)], "sd3", "float32")
    assert base != fingerprint([module], [words], "sd3", "bfloat16")
    assert base != fingerprint([module], [words], "sd3float32")
    assert base != fingerprint([module], [Words(red=2, blue=1)], "sd3", "float32")
    assert base != fingerprint([module, module], [words], "sd3", "float32")
    longer = Words(red=1, blue=2)
    longer.model_max_length = 9
    assert base != fingerprint([module], [longer], "sd3", "float32")
    with torch.no_grad():
        module.weight.mul_(1 + 1e-6)
    assert base != fingerprint([module], [words], "sd3", "float32")


def test_the_fingerprint_sees_shapes():
    one, other = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        other.weight.copy_(one.weight.view(4, 8))
    assert fingerprint([one], []) != fingerprint([other], [])


def test_conditioning_rows_repeat_and_reorder():
    full = Conditioning({"context": torch.arange(6.0).view(3, 2)}, torch.arange(3), {"context": torch.tensor([[9.0, 9.0]])})
    part = full.rows([2, 0, 2]).rows(torch.tensor([1, 2]))
    assert len(part) == 2
    assert part.gather(torch.device("cpu"), torch.float64)["context"].tolist() == [[0, 1], [4, 5]]
    assert part.gather_unconditional(torch.device("cpu"), torch.float32)["context"].tolist() == [[9, 9], [9, 9]]
