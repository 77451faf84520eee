from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from trainer.config import RunConfig, load_config, load_preset, preset_names
from trainer.config.model import SAMPLERS
from trainer.config.policy import FAMILIES
from trainer.demo import PROMPT_FILES
from trainer.prompts import Prompt, load_prompts

ROOT = Path(__file__).parents[2]
SMALL = {
    "iterations": 4,
    "policy": {"model": "demo"},
    "prompts": {"train": ["a", "b"], "evaluate": ["c"]},
    "rollout": {"prompts_per_iteration": 2},
    "rewards": {"jpeg_size": {}},
}


def small(**changes) -> dict:
    return {**json.loads(json.dumps(SMALL)), **changes}


def test_importing_it_is_light():
    code = (
        "import sys, trainer.config, trainer.prompts\n"
        "trainer.config.load_config({'preset': 'demo'})\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_the_smallest_configuration_gets_the_papers_stage_1_settings():
    config = load_config(small())
    assert (config.policy.lora.rank, config.policy.lora.alpha) == (32, 64.0)
    assert (config.rollout.group_size, config.rollout.steps, config.rollout.guidance) == (24, 40, 1.0)
    assert (config.surrogate.pairs, config.surrogate.share, config.surrogate.weighting) == (4, "group", "adaptive")
    assert config.surrogate.stratified is True
    objective = config.objective
    assert (objective.gradient_steps, objective.clip_eps, objective.kl_coef, objective.soft_clip_eta) == (1, None, 0.0, 3.0)
    assert (objective.advantage.combine, objective.advantage.scale) == ("normalize_then_sum", "group")
    assert config.optimizer.lr == 3e-4
    assert RunConfig.model_fields["iterations"].default == 150
    assert RunConfig.model_fields["rollout"].annotation.model_fields["prompts_per_iteration"].default == 48


@pytest.mark.parametrize(
    ("lora", "alpha"), [({"rank": 8}, 16.0), ({"rank": 8, "alpha": None}, 16.0), ({"rank": 8, "alpha": 4}, 4.0)]
)
def test_alpha_follows_the_rank_unless_it_is_given(lora, alpha):
    config = load_config(small(policy={"model": "demo", "lora": lora}))
    assert config.policy.lora.alpha == alpha
    assert load_config(config.to_yaml()).policy.lora.alpha == alpha


def test_integers_pass_for_numbers_and_yaml_exponents_are_numbers(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: demo\noptimizer:\n  lr: 1e-4\n  weight_decay: 1\nrollout: {guidance: 2}\n", encoding="utf-8")
    config = load_config(path, ["objective.soft_clip_eta=4"])
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.rollout.guidance) == (1e-4, 1.0, 2.0)
    assert type(config.rollout.guidance) is float and type(config.objective.soft_clip_eta) is float


def test_headings_with_nothing_under_them_are_empty_sections():
    bare = dict.fromkeys(("rollout", "surrogate", "objective", "optimizer", "monitors", "evaluation", "checkpoint"))
    prompts = {"train": ["a"] * 48, "evaluate": ["c"]}
    config = load_config(
        {**small(prompts=prompts), **bare, "policy": {"model": "demo", "lora": None}, "rewards": {"jpeg_size": None}}
    )
    assert config == load_config({key: value for key, value in small(prompts=prompts).items() if key != "rollout"})


def test_an_iteration_is_frozen_and_values_cannot_be_set():
    config = load_config(small())
    with pytest.raises(ValidationError, match="frozen"):
        config.optimizer.lr = 1.0


def test_prompts_come_inlined():
    config = load_config({"preset": "demo"})
    assert list(config.prompts.train) == load_prompts(PROMPT_FILES["train"], "prompts.train")
    assert list(config.prompts.evaluate) == load_prompts(PROMPT_FILES["evaluate"], "prompts.evaluate")
    text = config.to_yaml()
    assert str(PROMPT_FILES["train"]) not in text and config.prompts.train[0].text in text


@pytest.mark.parametrize(
    "overrides", [[], ["policy.lora.targets=[attn.to_q, attn.to_k]", "objective.gradient_steps=2", "objective.clip_eps=7e-3"]]
)
def test_yaml_round_trip(tmp_path, overrides):
    config = load_config({"preset": "demo", "name": "nuit d'été: 1e-4 🦊"}, overrides)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    for again in (load_config(config.to_yaml()), load_config(path), load_config(str(path)), load_config(config.to_dict())):
        assert again == config
        assert again.digest() == config.digest() and again.to_yaml() == config.to_yaml() and again.diff_from(config) == []


def test_the_round_trip_keeps_unusual_prompts():
    texts = ["no", "1e-4", "2026-11-30", "a: b # c", " two\nlines ", "a\x85b", "猫 🦊", "~", "- x", "{a}"]
    config = load_config(small(prompts={"train": texts, "evaluate": [{"text": "x", "metadata": {"k": texts, "n": 1.5}}]}))
    assert [prompt.text for prompt in load_config(config.to_yaml()).prompts.train] == texts
    assert load_config(config.to_yaml()) == config


def test_the_digest_ignores_the_name_and_spelling_but_nothing_else():
    config = load_config(small())
    assert len(config.digest()) == 12 and int(config.digest(), 16) >= 0
    reordered = dict(reversed(small(name="other", optimizer={"lr": 0.0003, "weight_decay": 0}).items()))
    assert load_config(reordered).digest() == config.digest()
    changed = {
        load_config(small(), [change]).digest() for change in ("seed=1", "optimizer.lr=1e-3", "rewards.jpeg_size.quality=90")
    }
    assert len(changed | {config.digest()}) == 4


def test_the_digest_is_that_of_the_canonical_json_in_every_process():
    config = load_config(small())
    data = {key: value for key, value in config.to_dict().items() if key != "name"}
    for later in ("vae_tiling", "attention", "compile"):
        del data["policy"][later]
    del data["evaluation"]["width"], data["evaluation"]["height"]
    del data["algorithm"], data["trajectory"], data["forward"], data["objective"]["advantage"]["clip"]
    del data["rollout"]["refill"], data["rollout"]["rest_flat"]
    del data["objective"]["advantage"]["keep"], data["objective"]["deferred"]
    del data["surrogate"]["timestep_weight"], data["objective"]["norm_guard"], data["objective"]["advantage"]["simplex"]
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    assert config.digest() == hashlib.sha256(canonical.encode()).hexdigest()[:12]
    code = f"from trainer.config import load_config; print(load_config({small()!r}).digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == config.digest(), run.stderr


def test_a_key_that_came_later_counts_only_where_it_changes_something():
    """A run from before is found by its digest, and queued again it is not trained twice."""
    config = load_config(small())
    assert load_config(small(), ["policy.vae_tiling=auto"]).digest() == config.digest()
    assert load_config(small(), ["policy.vae_tiling=on"]).digest() != config.digest()
    ocr = load_config(small(monitors={"ocr": {}}))
    assert ocr.digest() == "bd661a59c5b9"  # before any key was marked; a new key that is not changes it
    assert load_config(small(monitors={"ocr": {"lines": "one"}})).digest() != ocr.digest()
    assert load_config(small(monitors={"ocr": {}}), ["evaluation.width=64", "evaluation.height=64"]).digest() != ocr.digest()


def test_diff_from_names_the_changed_keys():
    config = load_config(small())
    changes = ["seed=5", "policy.lora.rank=8", "prompts.train=[x, y]", "rewards.scene={}", "monitors.brightness={}"]
    assert load_config(small(), changes).diff_from(config) == [
        *("seed", "policy.lora.rank", "policy.lora.alpha", "prompts.train", "rewards.scene.weight"),
        *("monitors.brightness", "monitors"),
    ]


def test_rewards_are_written_out_and_typed():
    monitors = {"brightness": None, "scene": {}}
    config = load_config(
        small(rewards={"scene": {"weight": 2}, "jpeg_size": {"weight": -0.5, "quality": 90}}, monitors=monitors)
    )
    assert config.rewards == {
        "scene": {"weight": 2.0},
        "jpeg_size": {"weight": -0.5, "prefer": "small", "quality": 90},
    }
    assert config.monitors == {"brightness": {}, "scene": {}}
    assert config.reward_weights() == {"scene": 2.0, "jpeg_size": -0.5}
    options = config.reward_options()
    assert list(options) == ["scene", "jpeg_size", "brightness"]
    assert isinstance(options["jpeg_size"], BaseModel) and options["jpeg_size"].quality == 90


def test_presets():
    stages = [f"sd3-stage{n}" for n in range(1, 6)]
    peers = ["flow_grpo", "mix_grpo", "dance_grpo", "diffusion_nft", "awm", "naive_elbo"]
    assert preset_names() == sorted(["demo", "letters", "sdxl-vpred", "flux-multireward", *stages, *FAMILIES, *peers])
    config = load_config({"preset": "demo"})
    assert config.policy.model == "demo" and config.policy.lora.rank == 16 and config.policy.lora.alpha == 32
    assert config.warnings() == []
    sd3 = load_config({"preset": "sd3", "prompts": {"train": ["a"] * 48, "evaluate": ["b"]}, "rewards": {"jpeg_size": {}}})
    stage_1 = load_config(small(prompts={"train": ["a"] * 48, "evaluate": ["b"]}, rollout={}, iterations=150, name="sd3"))
    differ = [key for key in sd3.diff_from(stage_1) if not key.startswith("monitors")]
    assert differ == ["policy.model", "policy.gradient_checkpointing"]
    load_preset("demo")["rollout"]["steps"] = 99
    assert load_preset("demo")["rollout"]["steps"] != 99


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_watches_for_reward_hacking(name):
    """A reward that is gained by ruining the pictures is seen only beside statistics of the pixels."""
    prompts = {"prompts": {"train": ["a"] * 48, "evaluate": ["b"]}, "rewards": {"brightness": {}}}
    config = load_config({"preset": name, **prompts}, check_files=False)
    assert {"saturation", "high_frequency", "jpeg_size"} <= set(config.monitors)


def test_a_file_completes_its_preset(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: demo\nsurrogate: {pairs: 8}\npolicy: {lora: {rank: 4}}\ncheckpoint:\n", encoding="utf-8")
    base, config = load_config({"preset": "demo"}), load_config(path)
    assert config.diff_from(base) == ["policy.lora.rank", "policy.lora.alpha", "surrogate.pairs"]


def test_naming_rewards_replaces_those_of_the_preset():
    config = load_config({"preset": "demo", "rewards": {"brightness": {}}, "monitors": {"scene": {}}})
    assert (list(config.rewards), list(config.monitors)) == (["brightness"], ["scene"])
    assert list(load_config({"preset": "demo"}, ["rewards.brightness={weight: 0.5}"]).rewards) == ["scene", "brightness"]


def test_the_source_is_left_as_it_was():
    source = small(policy={"model": "demo", "lora": {}})
    before = json.dumps(source)
    load_config(source, ["policy.lora.rank=4", "rewards.scene={}", "seed=3"])
    assert json.dumps(source) == before


def test_overrides():
    config = load_config(
        small(objective=None),
        [
            *(
                "optimizer.lr=1e-5",
                "optimizer.lr = 2e-5",
                "name=a=b",
                "surrogate.stratified=false",
                "objective.soft_clip_eta=null",
            ),
            *(
                "objective.advantage.scale=none",
                "rollout={prompts_per_iteration: 1, group_size: 3}",
                "prompts.evaluate=[no, 'x, y']",
            ),
        ],
    )
    assert config.optimizer.lr == 2e-5 and config.name == "a=b" and config.surrogate.stratified is False
    assert config.objective.soft_clip_eta is None and config.objective.advantage.scale == "none"
    assert (config.rollout.prompts_per_iteration, config.rollout.group_size) == (1, 3)
    assert [prompt.text for prompt in config.prompts.evaluate] == ["no", "x, y"]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders with all that paths can name: one with a space and non-ASCII letters, and the current one."""
    made = []
    for name in ("Maß und Größe 猫", "elsewhere"):
        folder = tmp_path / name
        (folder / "base").mkdir(parents=True)
        (folder / "org" / "name").mkdir(parents=True)
        (folder / "lora.safetensors").write_bytes(b"")
        (folder / "p.txt").write_text(f"from {name}\n", encoding="utf-8")
        made.append(folder)
    monkeypatch.chdir(made[1])
    return made


PATHS = {
    "policy": {"model": "./base", "lora": {"init": "lora.safetensors"}},
    "prompts": {"train": "p.txt", "evaluate": "../elsewhere/p.txt"},
    "rollout": {"prompts_per_iteration": 1},
}


def test_relative_paths_count_from_the_files_folder(folders):
    there, _ = folders
    (there / "run.yaml").write_bytes(b"\xef\xbb\xbf" + json.dumps({**small(), **PATHS}, ensure_ascii=False).encode())
    config = load_config(there / "run.yaml")
    assert config.policy.model == str(there / "base")
    assert config.policy.lora.init == str(there / "lora.safetensors")
    assert config.prompts.train == (Prompt(f"from {there.name}"),) and config.prompts.evaluate == (Prompt("from elsewhere"),)
    assert load_config(os.path.relpath(there / "run.yaml")) == config
    assert load_config(config.to_yaml()) == config


def test_relative_paths_of_rewards_weights(folders):
    there, _ = folders
    rewards = {"hpsv2": {"model": "./hps.pt"}, "clipscore": {"model": "google/siglip-base-patch16-224"}}
    monitors = {"aesthetic": {"model": "../a.pth", "clip_model": "clip-vit-large-patch14"}}
    text = json.dumps({**small(), "rewards": rewards, "monitors": monitors})
    (there / "run.yaml").write_text(text, encoding="utf-8")
    config = load_config(there / "run.yaml")
    assert config.rewards["hpsv2"]["model"] == str(there / "hps.pt")
    assert config.rewards["clipscore"]["model"] == "google/siglip-base-patch16-224", "a hub id is no path"
    assert config.monitors["aesthetic"]["model"] == str(there.parent / "a.pth")
    assert config.monitors["aesthetic"]["clip_model"] == "clip-vit-large-patch14", "nor is a name in the models folders"
    assert load_config(config.to_yaml()) == config


def test_relative_paths_in_mappings_and_overrides_count_from_the_current_folder(folders):
    there, here = folders
    config = load_config({**small(), **PATHS})
    assert config.policy.model == str(here / "base") and config.prompts.train == (Prompt("from elsewhere"),)
    (there / "run.yaml").write_text(json.dumps(small()), encoding="utf-8")
    overrides = [
        "policy.model=base",
        "policy.lora={init: lora.safetensors}",
        "prompts.train=p.txt",
        "rollout.prompts_per_iteration=1",
    ]
    config = load_config(there / "run.yaml", overrides)
    assert config.policy.model == str(here / "base") and config.policy.lora.init == str(here / "lora.safetensors")
    assert config.prompts.train == (Prompt("from elsewhere"),)


def test_a_folder_wins_over_a_hub_id_of_the_same_name(folders):
    assert load_config(small(policy={"model": "org/name"})).policy.model == str(folders[1] / "org" / "name")
    assert load_config(small(policy={"model": "org/other-3.5_x"})).policy.model == "org/other-3.5_x"


def test_an_old_run_can_be_looked_at_after_its_base_has_moved(folders):
    config = load_config({**small(), **PATHS})
    moved = config.to_yaml().replace(os.sep + "base", os.sep + "gone").replace("lora.safetensors", "gone.safetensors")
    again = load_config(moved, check_files=False)
    assert again.diff_from(config) == ["policy.model", "policy.lora.init"]
    assert again.policy.model == str(folders[1] / "gone")


def test_the_key_table_covers_every_key_with_range_and_description():
    rows = {row.key: row for row in RunConfig.key_table()}
    keys = {key for key in _leaves(load_config(small()).to_dict()) if not key.startswith(("rewards.", "monitors."))}
    assert keys | {"rewards", "monitors"} == set(rows)
    assert all(row.description and row.type and row.default for row in rows.values())
    assert all(row.range for row in rows.values() if row.type.startswith(("an integer", "a finite number")))
    assert rows["policy.lora.alpha"].default == "2 x rank"
    assert (rows["rollout.width"].range, rows["optimizer.lr"].range) == ("from 16 to 4096, a multiple of 16", "> 0, <= 1")
    assert (
        rows["policy.family"].type == f"one of {', '.join(FAMILIES)}"
        and rows["rollout.sampler"].type == f"one of {', '.join(SAMPLERS)}"
    )
    assert rows["policy.model"].default == "required"


def _leaves(data: dict, prefix: str = "") -> set[str]:
    keys = set()
    for key, value in data.items():
        keys |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key}
    return keys


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["objective.gradient_steps=4"], "objective.gradient_steps = 4 with neither clip_eps nor kl_coef"),
        (["surrogate.pairs=2"], "surrogate.pairs = 2: .*2 does not converge in the paper's ablation"),
        (["surrogate.weighting=eps"], "collapses in the paper's ablation"),
        (["objective.advantage.scale=none"], "soft_clip_eta = 3 with objective.advantage.scale = none"),
        (
            ["policy.model=org/sd3.5-Large-Turbo"],
            r"policy.model = org/sd3.5-Large-Turbo .*\('Turbo' in its name\).*DiffusionNFT#45",
        ),
        (["policy.model=black-forest-labs/FLUX.1-schnell"], "distilled"),
        (["prompts.evaluate=[a, z]"], "1 of 2 held-out prompts are also in prompts.train"),
        (["monitors.jpeg_size.quality=50"], "monitors.jpeg_size is a reward as well, with other options"),
    ],
)
def test_what_is_known_to_disappoint_is_warned_about(changes, said):
    assert load_config(small()).warnings() == []
    (warning,) = load_config(small(), changes).warnings()
    assert re.search(said, warning) and "\n" not in warning


@pytest.mark.parametrize(
    "changes",
    [["objective.gradient_steps=4", "objective.clip_eps=0.01"], ["objective.gradient_steps=4", "objective.kl_coef=0.3"]],
)
def test_several_steps_with_a_bound_are_fine(changes):
    assert load_config(small(), changes).warnings() == []


def test_the_soft_clip_is_warned_about_with_a_coarse_reward(monkeypatch):
    from trainer.rewards import registry

    monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, "geneval": registry.BUILT_IN["brightness"]})
    (warning,) = load_config(small(rewards={"geneval": {}})).warnings()
    assert "coarse reward geneval" in warning
    assert load_config(small(rewards={"geneval": {}}), ["objective.soft_clip_eta=null"]).warnings() == []
