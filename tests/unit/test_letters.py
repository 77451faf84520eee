"""The letters world: its words, its prompts and its model, and that the model learns to write by the OCR reward."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from trainer import cli
from trainer.config import load_config
from trainer.demo import EMBEDDED_MODELS, LETTERS
from trainer.demo.build import measure
from trainer.demo.letters import world
from trainer.demo.letters.recipe import Letters
from trainer.demo.parts import load_parts
from trainer.rewards.ocr import targets

MEGABYTE = 1_000_000
MODEL = EMBEDDED_MODELS[LETTERS]


def test_words_are_made_of_the_letters():
    assert all(len(word) == world.LENGTH and set(word) <= set(world.LETTERS) for word in world.WORDS)
    assert len(set(world.WORDS)) == len(world.WORDS)


def test_nothing_that_is_held_out_is_ever_learnt_from():
    rng = random.Random(0)
    drawn = [world.sample_word(rng) for _ in range(2000)]
    assert not any(map(world.held_out, [*drawn, *(world.corrupt(word, rng) for word in drawn)]))
    assert 30 <= len(Letters().held_out()) <= 50 and all(map(world.held_out, Letters().held_out()))


def test_a_misspelt_word_differs_in_one_letter():
    rng = random.Random(1)
    for word in world.WORDS:
        assert sum(a != b for a, b in zip(word, world.corrupt(word, rng), strict=True)) == 1


@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_the_prompt_files_are_what_the_script_writes(part):
    path = MODEL.prompts(part)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == world.prompts(part), "run python trainer/demo/make_prompts.py"
    assert b"\r" not in path.read_bytes()


def test_train_and_evaluate_share_no_word_and_every_prompt_quotes_its_own():
    words = {part: {targets(line["prompt"], {})[0] for line in world.prompts(part)} for part in ("train", "evaluate")}
    assert not words["train"] & words["evaluate"] and words["train"] | words["evaluate"] == set(world.WORDS)


def test_every_letter_has_its_place():
    """Also with every chance that the drawing takes: no letter touches the picture's edge."""
    rng = random.Random(2)
    for word in ("AAA", "GNR", "LLL", "TED"):
        for _ in range(20):
            picture = np.asarray(world.draw(word, rng)).astype(int)
            assert picture.shape == (world.HEIGHT, world.WIDTH, 3)
            edge = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
            assert (edge == world.PAPER).all(), word
            assert picture.min() < 100


def test_captions_fit_the_text_encoders():
    tokenizer = Letters().tokenizer(0)
    for wording in world.WORDINGS:
        ids = tokenizer(wording.format("NNN")).input_ids
        assert len(ids) <= tokenizer.model_max_length
        assert tokenizer.convert_ids_to_tokens(ids)[-5:-2] == ["n", "n", "n</w>"], "a token for each letter"


def test_facts_are_the_letters():
    assert Letters().facts("ABT") == [0, 1, len(world.LETTERS) - 1] and Letters().fact_sizes == [12, 12, 12]


def test_the_preset_trains_on_it():
    config = load_config({"preset": "letters"})
    assert config.policy.model == LETTERS and (config.rollout.width, config.rollout.height) == (world.WIDTH, world.HEIGHT)
    assert len(config.prompts.evaluate) == config.evaluation.prompts == len(Letters().held_out())


# The model


@pytest.fixture(scope="module")
def parts():
    return load_parts(MODEL.model)


def test_the_weights_are_small_safetensors():
    files = [f for f in MODEL.model.rglob("*") if f.is_file()]
    assert {f.suffix for f in files} == {".safetensors", ".json"}
    assert sum(f.stat().st_size for f in files if f.suffix == ".safetensors") <= 5 * MEGABYTE


def test_it_is_an_sd3_that_comfyui_would_recognise(parts):
    config = parts["transformer"].config
    assert type(parts["transformer"]).__name__ == "SD3Transformer2DModel" and config.in_channels == 16
    assert config.num_attention_heads == config.num_layers and config.attention_head_dim == 64


def needs_ocr():
    for package in ("rapidocr", "onnxruntime"):
        pytest.importorskip(package, reason=f"needs {package}: pip install rapidocr onnxruntime")


@pytest.mark.slow
def test_the_base_writes_legibly_and_often_wrong(parts):
    """So that there is something to win; docs/embedded-model.md has its figures."""
    needs_ocr()
    score, exact = measure(Letters(), parts, seed=2, samples=204, steps=4)
    assert 0.25 <= exact <= 0.65 and score >= 0.55


@pytest.mark.slow
def test_a_few_iterations_with_the_ocr_reward_teach_to_write(tmp_path, capsys):
    """On words that were never seen. The whole of it is measured by benchmarks/letters_seeds.py."""
    needs_ocr()
    shorter = ["--set", "iterations=12", "--set", "monitors={}", "--set", "evaluation.seeds=3"]
    assert cli.main(["train", "letters", "--output", str(tmp_path), *shorter]) == 0
    (run,) = tmp_path.iterdir()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["after"]["eval/ocr/exact"] - summary["before"]["eval/ocr/exact"] > 0.05
    assert summary["after"]["eval/ocr/mean"] > summary["before"]["eval/ocr/mean"]
