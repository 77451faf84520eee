"""Bad configuration: one line that names the key, the value and what is allowed."""

from __future__ import annotations

import re

import pytest

from trainer.config import load_config
from trainer.errors import UserError


def small(**changes) -> dict:
    return {
        "iterations": 4,
        "policy": {"model": "demo"},
        "prompts": {"train": ["a", "b"], "evaluate": ["c"]},
        "rollout": {"prompts_per_iteration": 2, "group_size": 3},
        "rewards": {"jpeg_size": {}},
        **changes,
    }


def refusal(source: object, overrides: list[str] | tuple = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_config(source, overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def test_the_base_of_these_tests_is_fine():
    load_config(small())


LR = r"optimizer\.lr = {}; allowed: a finite number > 0, <= 1 \(learning rate\)"
GROUP = r"rollout\.group_size = {}; allowed: an integer from 2 to 1024 \(.*advantage of a group of 1 is always 0\)"
SIDES = "an integer, or a list of integers, each from 16 to 4096, a multiple of 16"
REFUSED = [
    # numbers that are not finite, wrong types, ranges
    ("optimizer.lr=.nan", LR.format("nan")),
    ("optimizer.lr=.inf", LR.format("inf")),
    ("optimizer.lr=-.inf", LR.format("-inf")),
    ("optimizer.lr=1e999", LR.format("inf")),
    ("optimizer.lr=0", LR.format("0")),
    ("optimizer.lr='1e-4'", LR.format("'1e-4'")),
    ("optimizer.lr=fast", LR.format("fast")),
    ("optimizer.lr=true", LR.format("true")),
    ("optimizer.lr=[1]", LR.format(r"\[1\]")),
    ("optimizer.lr=", LR.format("null")),
    ("rollout.group_size=1", GROUP.format("1")),
    ("rollout.group_size=8.0", GROUP.format("8.0")),
    ("rollout.group_size=true", GROUP.format("true")),
    ("rollout.group_size='8'", GROUP.format("'8'")),
    ("rollout.guidance=.nan", r"rollout\.guidance = nan; allowed: a finite number from 1 to 50"),
    ("rollout.width=70", rf"rollout\.width = 70; allowed: {SIDES} \(pixels\)"),
    ("rollout.width=[64, 70]", rf"rollout\.width = \[64, 70\]; allowed: {SIDES}"),
    ("rollout.width=[]", rf"rollout\.width = \[\]; allowed: {SIDES}"),
    ("rollout.width=null", rf"rollout\.width = null; allowed: {SIDES}"),
    ("evaluation.width=64.5", rf"evaluation\.width = 64\.5; allowed: null, {SIDES}"),
    (
        "rollout.width=[64, 96]",
        r"rollout\.width = \[64, 96\] with rollout\.height = \d+: both must be numbers, or lists of equal",
    ),
    ("evaluation.width=64", r"evaluation\.width = 64 with evaluation\.height = null: both must be given, or neither"),
    ("rollout.sampler=ddim", r"rollout\.sampler = ddim; allowed: one of euler, heun, 'dpmsolver\+\+'|dpmsolver\+\+, unipc"),
    ("surrogate.stratified=yes", r"surrogate\.stratified = yes; allowed: true or false"),
    ("surrogate.pairs=0", r"surrogate\.pairs = 0; allowed: an integer from 1 to 1000"),
    ("objective.clip_eps=-0.1", r"objective\.clip_eps = -0\.1; allowed: a finite number or null > 0, < 1"),
    ("objective.soft_clip_eta=.inf", r"objective\.soft_clip_eta = inf; allowed: a finite number or null"),
    ("optimizer.ema_decay=1.0", r"optimizer\.ema_decay = 1\.0; allowed: a finite number >= 0, < 1"),
    ("optimizer.name=lion", r"optimizer\.name = lion; allowed: one of adamw, adam, sgd"),
    ("seed=-1", r"seed = -1; allowed: an integer from 0"),
    ("seed=18446744073709551616", r"seed = 18446744073709551616; allowed: an integer from 0 to 18446744073709551615"),
    ("iterations=0", r"iterations = 0; allowed: an integer from 1"),
    ("name=3", r"name = 3; allowed: a string of at most 80 characters"),
    ("name=' '", r"name = ' ': allowed: a name of 1 to 80 printable characters"),
    ('name="a\\nb"', r"name = 'a\\nb': allowed: a name of 1 to 80 printable"),
    (f"name={'x' * 81}", r"name = x+\.\.\.; allowed: a string of at most 80"),
    ("policy.family=fluxx", r"policy\.family = fluxx; allowed: one of sd3, sd15, sdxl, flux"),
    ("policy.quantization=int3", r"policy\.quantization = int3; allowed: one of none, nf4, int8, fp8"),
    ("policy.lora.rank=0", r"policy\.lora\.rank = 0; allowed: an integer from 1 to 1024"),
    (
        "policy.lora.targets=attn",
        r"policy\.lora\.targets = attn: allowed: attention, attention\+mlp, .*conv, or a list",
    ),
    ("policy.lora.targets=[]", r"policy\.lora\.targets = \[\]: allowed"),
    ("policy.lora.targets=[a, a]", r"different module name endings"),
    ("policy.lora.targets=[a, 3]", r"policy\.lora\.targets = \['a', 3\]: allowed"),
    ("policy.lora.targets=['.*']", r"policy\.lora\.targets = \['\.\*'\]: allowed"),
    ("rollout=5", r"rollout = 5; allowed: a mapping with the keys group_size, prompts_per_iteration"),
    ("objective.advantage=5", r"objective\.advantage = 5; allowed: a mapping with the keys combine, scale"),
    # paths
    ("policy.model=./no such folder", r"policy\.model = '.*no such folder': folder not found; allowed: an existing diffusers"),
    ('policy.model="./two\\nlines"', r"folder not found"),
    ('prompts.train="two\\nlines.txt"', r"prompt file not found: .*two lines\.txt"),
    ("policy.model=~/none", r"policy\.model = '.*none': folder not found"),
    (r"policy.model=C:\none", r"folder not found"),
    (r"policy.model=models\sd3", r"folder not found"),
    (
        "policy.model=sd3",
        r"policy\.model = sd3: neither a folder nor a hub id; allowed: an existing diffusers folder, a \.safetensors file",
    ),
    ("policy.model=a/b/c", r"neither a folder nor a hub id"),
    ("policy.model=''", r"policy\.model = '': neither a folder nor a hub id"),
    (
        "policy.model=",
        r"policy\.model = null; allowed: demo, demo-letters, the path of a diffusers folder or of a \.safetensors file, or",
    ),
    ("policy.model=./no.safetensors", r"policy\.model = '.*no\.safetensors': file not found; allowed: an existing diffusers"),
    ("policy.parts=./no", r"policy\.parts = '.*no': folder not found; allowed: an existing diffusers folder, or a hub id"),
    ("policy.parts=org/name", r"policy\.parts completes a checkpoint file, and policy\.model = demo is none"),
    ("policy.tokenizers=./no", r"policy\.tokenizers = '.*no': folder not found"),
    ("policy.files={unet: a.safetensors}", r"policy\.files = .*'unet' is no part; allowed: vae, text_encoder"),
    ("policy.files={vae: ./no.safetensors}", r"policy\.files = .*no such \.safetensors file"),
    ("policy.family=sdxl2", r"policy\.family = sdxl2; allowed: one of sd3, sd15, sdxl, flux"),
    ("policy.prediction=v_prediction", r"policy\.prediction is for the UNet families \(sd15, sdxl\); family sd3 is a flow"),
    ("policy.zero_terminal_snr=true", r"policy\.zero_terminal_snr is for the UNet families"),
    ("policy.lora.targets=attention+mlp+conv", r"family sd3 has no convolutions to train; allowed: attention, attention\+mlp"),
    ("rollout.shift=0", r"rollout\.shift = 0; allowed: a finite number or null > 0, <= 100"),
    ("rollout.negative_prompt=ugly", r"rollout\.negative_prompt can never act: .*guidance are 1"),
    ("surrogate.guidance=same", r"surrogate\.guidance = same can never act with rollout\.guidance = 1"),
    ("policy.lora.init=none.safetensors", r"policy\.lora\.init = '.*none\.safetensors': file or folder not found"),
    ("policy.lora.init=''", r"policy\.lora\.init = '': file or folder not found"),
    # prompts
    ("prompts.train=none.txt", r"prompts\.train: prompt file not found: .*none\.txt"),
    ("prompts.evaluate=[]", r"prompts\.evaluate: the list is empty"),
    ("prompts.evaluate=[a, 3]", r"prompts\.evaluate\[1\] = 3; allowed"),
    ("prompts.evaluate=3", r"prompts\.evaluate = 3; allowed: a list of prompts"),
    ("prompts.train=''", r"prompts\.train: '.*' is not a prompt source"),
    # rewards
    ("rewards={}", r"rewards is empty; at least one reward is needed \(known: scene, jpeg_size, "),
    ("rewards=[scene]", r"rewards = \['scene'\]; allowed: a mapping of reward names"),
    ("rewards.sceen={}", r"rewards\.sceen: unknown reward 'sceen' \(did you mean 'scene'\? known: scene, "),
    ("monitors.qqq={}", r"monitors\.qqq: unknown reward 'qqq' \(known: scene, "),
    ("rewards.scene=1", r"rewards\.scene = 1; allowed: a mapping of options, or nothing"),
    ("rewards.jpeg_size.weight=0", r"rewards\.jpeg_size\.weight = 0 trains on nothing; move the reward to monitors"),
    (
        "rewards.jpeg_size.weight=.nan",
        r"rewards\.jpeg_size\.weight = nan; allowed: a finite number from -1000 to 1000 except 0",
    ),
    ("rewards.jpeg_size.weight='1'", r"rewards\.jpeg_size\.weight = '1'; allowed"),
    ("rewards.jpeg_size.weight=true", r"rewards\.jpeg_size\.weight = true; allowed"),
    ("rewards.jpeg_size.wieght=1", r"unknown key 'rewards\.jpeg_size\.wieght' \(did you mean 'rewards\.jpeg_size\.weight'\?\)"),
    (
        "rewards.jpeg_size.qualty=9",
        r"unknown key 'rewards\.jpeg_size\.qualty' \(did you mean 'rewards\.jpeg_size\.quality'\?\)",
    ),
    ("rewards.jpeg_size.quality='95'", r"rewards\.jpeg_size\.quality = '95'; allowed: an integer from 1 to 100"),
    ("rewards.jpeg_size.quality=.nan", r"rewards\.jpeg_size\.quality = nan; allowed: a finite number"),
    ("monitors.brightness.weight=1", r"monitors\.brightness\.weight: a monitor has no weight.*rewards\.brightness"),
    # combinations that cannot act
    (
        "objective.clip_eps=0.01",
        r"objective\.clip_eps = 0\.01 can never act with objective\.gradient_steps = 1: the ratio is exactly 1",
    ),
    ("objective.kl_coef=0.3", r"objective\.kl_coef = 0\.3 can never act with objective\.gradient_steps = 1: .*gradient 0"),
    (
        "objective.gradient_steps=7",
        r"gradient_steps = 7, but an iteration has only 6 outputs \(2 prompts x 3\).*allowed: 1 to 6",
    ),
    ("rollout.prompts_per_iteration=3", r"prompts_per_iteration = 3, but prompts\.train has only 2.*allowed: 1 to 2"),
    ("objective.advantage.keep=0", r"objective\.advantage\.keep = 0; allowed: a finite number > 0, <= 1"),
    ("rollout.refill=2", r"rollout\.refill = 2 can never act: an iteration takes all 2 of prompts\.train"),
    ("rollout.rest_flat=true", r"rollout\.rest_flat = true can never act: .*lower rollout\.prompts_per_iteration"),
    ("optimizer.warmup=5", r"optimizer\.warmup = 5 is more than iterations = 4.*allowed: 0 to 4"),
    # keys
    ("rollout.group_sise=8", r"unknown key 'rollout\.group_sise' \(did you mean 'rollout\.group_size'\?\)"),
    ("group_size=8", r"unknown key 'group_size' \(did you mean 'rollout\.group_size'\?\)"),
    ("rollout.lr=1", r"unknown key 'rollout\.lr' \(did you mean 'optimizer\.lr'\?\)"),
    ("rolout.steps=1", r"unknown key 'rolout\.steps' \(did you mean 'rollout\.steps'\?\)"),
    ("policy.lora.rank.x=3", r"unknown key 'policy\.lora\.rank\.x' \(did you mean 'policy\.lora\.rank'\?\)"),
    ("qqq=3", r"unknown key 'qqq' \(allowed: name, seed, "),
]


@pytest.mark.parametrize(("override", "said"), REFUSED, ids=[case[0][:40] for case in REFUSED])
def test_an_override_that_is_refused(override, said):
    text = refusal(small(), [override])
    assert re.search(said, text), text
    assert text.startswith(f"override {override!r}: ")
    assert "more error" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective.gradient_steps": 2}, "only a single gradient step allows"),
        ({"objective.advantage.keep": 0.5}, "chooses the outputs by their rewards"),
        ({"rollout.refill": 1, "rollout.prompts_per_iteration": 1}, "rollout.refill waits for them"),
        ({"objective.advantage.scale": "batch"}, "needs all of them at once"),
        ({"policy.offload": "model"}, "policy.offload = model is there to prevent"),
        ({"algorithm": "flow_grpo"}, "can never act with algorithm = flow_grpo"),
    ],
    ids=str,
)
def test_gradients_before_rewards_are_refused_where_they_depend_on_them(changes, said):
    overrides = ["objective.deferred=8", *(f"{key}={value}" for key, value in changes.items())]
    text = refusal(small(), overrides)
    assert "objective.deferred = 8" in text and said in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("x", "override 'x'; allowed: key=value, for example optimizer.lr=1e-4"),
        ("=3", "override '=3'; allowed: key=value"),
        ("optimizer.lr=[", "override 'optimizer.lr=[': "),
        ("rewards.jpeg_size.quality.x=3", "unknown key"),
        ("monitors..x=3", "unknown key 'monitors..x'"),
    ],
)
def test_an_override_that_cannot_be_read(override, said):
    source = small(rewards={"jpeg_size": {"quality": 90}})
    if override.startswith("rewards"):
        said = "quality = 90 is not a mapping, so nothing can be set inside it"
    assert said in refusal(source, [override])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rolout": {}}, r"^unknown key 'rolout' \(did you mean 'rollout'\?\)$"),
        ({"rollout": {"group_sise": 8}}, r"^unknown key 'rollout\.group_sise' \(did you mean 'rollout\.group_size'\?\)"),
        ({"objective": {"advantage": {"scal": "none"}}}, r"did you mean 'objective\.advantage\.scale'\?"),
        ({1: 2}, r"^unknown key '1' \(allowed: name, "),
        ({"policy": {}}, r"^policy\.model is missing; it must be demo, demo-letters, the path of a diffusers folder"),
        ({"policy": None}, r"^policy\.model is missing"),
        ({"prompts": {"train": ["a", "b"]}}, r"^prompts\.evaluate is missing; it must be a list of prompts"),
        ({"rewards": None}, r"^rewards is empty"),
        ({"policy": [1]}, r"^policy = \[1\]; allowed: a mapping with the keys family, model, parts, files"),
        ({"policy": {"model": "demo", "lora": {"rank": "x"}}}, r"^policy\.lora\.rank = x; allowed: an integer [^(]*\([^)]*\)$"),
        ({"optimizer": {"lr": 10**400}}, r"^optimizer\.lr = .*; allowed"),
        ({"optimizer": {"lr": 10**5000}}, r"^optimizer\.lr = a huge number; allowed"),
        ({"preset": "dmo"}, r"^unknown preset dmo \(did you mean 'demo'\? allowed: awm, chroma, dance_grpo, demo"),
        ({"preset": ["demo"]}, r"^preset = \['demo'\]; allowed: one of awm, chroma, dance_grpo, demo"),
    ],
)
def test_a_mapping_that_is_refused(changes, said):
    text = refusal(small(**{key: value for key, value in changes.items() if key != 1}) | ({1: 2} if 1 in changes else {}))
    assert re.search(said, text), text


def test_required_sections_are_asked_for():
    assert re.match(r"policy is missing; it must be a mapping with the keys family, .* \(and 2 more errors\)", refusal({}))
    prompts = {"train": ["a"] * 48, "evaluate": ["b"]}
    assert re.match(r"rewards is empty; at least one reward is needed", refusal({"preset": "sd3", "prompts": prompts}))


def test_the_first_problem_is_told_and_the_others_are_counted():
    text = refusal(small(optimizer={"lr": float("nan"), "lrr": 1}, rewards={"x": {}, "jpeg_size": {"a": 1, "quality": 0}}))
    assert text == "unknown key 'optimizer.lrr' (did you mean 'optimizer.lr'?) (and 4 more errors)"
    both = refusal(small(objective={"clip_eps": 0.01, "kl_coef": 0.1}))
    assert both.startswith("objective.clip_eps = 0.01") and both.endswith("(and 1 more error)")


def test_pickled_files_are_refused(tmp_path):
    for name in ("model.ckpt", "lora.pt", "model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    files = {"model": str(tmp_path / "model.safetensors"), "files": {"vae": str(tmp_path / "model.safetensors")}}
    assert load_config(small(policy=files)).policy.files["vae"].endswith("model.safetensors")
    text = refusal(small(policy={"model": str(tmp_path / "model.ckpt")}))
    assert "this is a file; allowed: a diffusers folder" in text
    text = refusal(small(policy={"model": "demo", "lora": {"init": str(tmp_path / "lora.pt")}}))
    assert "lora.pt': not a .safetensors file" in text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a: 1\nseed: 1\nseed: 2\n", r"run ü\.yaml, line 3: the key 'seed' appears twice, first on line 2$"),
        (b"", r"run ü\.yaml: the configuration is empty; start with 'preset: demo'"),
        (b"# nothing\n", "is empty"),
        (b"- a\n", r"run ü\.yaml: the configuration is \['a'\]; it must be a mapping"),
        (b"name: Gr\xf6\xdfe\n", r"run ü\.yaml, line 1: not UTF-8 text"),
        (b"preset: demo\nrollout: [\n", r"run ü\.yaml, line "),
        (b"preset: demoo\n", r"run ü\.yaml: unknown preset demoo \(did you mean 'demo'"),
        (b"preset: demo\nseed: 1e3\n", r"run ü\.yaml: seed = 1000\.0; allowed: an integer"),
        (b"preset: demo\noptimizer: {lr: .nan}\n", r"run ü\.yaml: optimizer\.lr = nan; allowed"),
        (b"preset: demo\nprompts: {train: none.txt}\n", r"run ü\.yaml: prompts\.train: prompt file not found: .*none\.txt"),
        (b"preset: demo\npolicy: {model: ./none}\n", r"run ü\.yaml: policy\.model = '.*none': folder not found"),
    ],
)
def test_a_file_that_is_refused_is_named(tmp_path, data, said):
    path = tmp_path / "run ü.yaml"
    path.write_bytes(data)
    text = refusal(path)
    assert re.search(said, text), text


def test_an_empty_prompt_file_is_refused(tmp_path):
    (tmp_path / "p.txt").write_text("# nothing\n\n", encoding="utf-8")
    text = refusal(small(prompts={"train": str(tmp_path / "p.txt"), "evaluate": ["c"]}))
    assert re.fullmatch(r"prompts\.train: .*p\.txt holds no prompt; put at least one in it", text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert re.search(r"configuration file not found: .*none\.yaml", refusal(str(tmp_path / "none.yaml")))
    assert re.search(r"is a folder; the configuration must be a YAML file", refusal(tmp_path))


def test_settings_of_another_kind_of_family():
    unet = small(policy={"model": "demo", "family": "sdxl", "prediction": "v_prediction", "zero_terminal_snr": True})
    config = load_config(unet, ["policy.lora.targets=attention+mlp+conv"])
    assert config.policy.prediction == "v_prediction" and config.policy.lora.targets == "attention+mlp+conv"
    assert "rollout.shift: family sdxl has a noise schedule and no shift" in refusal(unet, ["rollout.shift=3"])
    assert load_config(small(), ["rollout.shift=3.0"]).rollout.shift == 3.0


def test_guidance_where_it_acts():
    guided = small(rollout={"prompts_per_iteration": 2, "group_size": 3, "guidance": 4.0, "negative_prompt": "ugly"})
    assert load_config(guided, ["surrogate.guidance=same"]).surrogate.guidance == "same"
    only_evaluated = load_config(small(), ["evaluation.guidance=4", "rollout.negative_prompt=ugly"])
    assert only_evaluated.rollout.negative_prompt == "ugly"
