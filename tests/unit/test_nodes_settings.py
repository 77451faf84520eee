"""The V-GRPO Settings node, and the configuration that four nodes make together."""

from __future__ import annotations

import pytest

from tests.comfy_api import NodeError, pack
from trainer.config import RunConfig, load_config, load_preset, preset_names

knobs = pack("nodes.knobs")
assemble = pack("nodes.assemble").assemble
prompt_text = pack("nodes.prompt_text")
bases = pack("nodes.bases")
reward_options = pack("nodes.reward_options")
choices = pack("nodes.choices")
UserError = pack("trainer.errors").UserError

DEMO = {"rank": 16, "alpha": 0.0, "targets": "attention+mlp", "init": None, "dtype": "auto", "gradient_checkpointing": False}
# For each knob a value that no preset and no default has.
OTHER = {
    "iterations": 7, "seed": 123, "group_size": 6, "prompts_per_iteration": 5, "sampler": "heun", "steps": 9, "width": 96,
    "height": 112, "guidance": 1.5, "rollout_batch_size": 3, "pairs": 5, "share": "batch", "weighting": "x",
    "update_batch_size": 7, "gradient_steps": 2, "clip_eps": 0.006, "kl_coef": 0.1, "soft_clip_eta": 2.0, "lr": 2e-4,
    "ema_decay": 0.5, "warmup": 2, "schedule": "linear", "evaluate_every": 3, "evaluate_prompts": 11,
    "checkpoint_every": 4, "checkpoint_keep": 2, "algorithm": "vgrpo",
}  # fmt: skip


def value_at(data, key):
    for name in key.split("."):
        data = data[name]
    return data


def refusal(read, *arguments):
    with pytest.raises(UserError) as caught:
        read(*arguments)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def refused(preset="none", more="", **values):
    text = refusal(knobs.choose_settings, preset, values, more)
    assert text.startswith("V-GRPO Settings: ")
    return text


def rewards(*names):
    made = None
    for name in names:
        made = reward_options.add_reward(name, 1.0, False, {}, made)
    return made


def together(preset="demo", values=None, more="", policy=None, prompts=None, chosen=None, name="a run", sizes=""):
    return assemble(
        policy or bases.choose_policy("demo", **DEMO),
        prompts or prompt_text.from_demo(),
        chosen or rewards("scene"),
        knobs.choose_settings(preset, values or {}, more, sizes),
        name,
    )


# Knobs


@pytest.mark.parametrize("preset", ["none", *preset_names()])
def test_untouched_knobs_change_nothing(preset):
    untouched = {knob.id: knob.default for knob in knobs.KNOBS}
    settings = knobs.choose_settings(preset, untouched, "")
    assert settings == choices.Settings(None if preset == "none" else preset, {})
    assert settings == knobs.choose_settings(preset, {}, "\n# nothing\n")
    assert "unchanged" in knobs.differences(settings)


def test_every_knob_sets_its_key():
    assert set(OTHER) == {knob.id for knob in knobs.KNOBS}
    settings = knobs.choose_settings("sd3", OTHER, "")
    for knob in knobs.KNOBS:
        assert value_at(settings.changes, knob.key) == OTHER[knob.id], knob.id
    lines = knobs.differences(settings).splitlines()
    assert lines[0] == f"preset sd3, {len(OTHER) - 1} changes"  # the algorithm is the same: no peer takes all the others
    assert "optimizer.lr: 0.0003 -> 0.0002" in lines and "objective.clip_eps: null -> 0.006" in lines


def test_the_value_that_means_the_preset_is_never_a_value_of_the_key():
    for knob in knobs.KNOBS:
        if not knob.choices:
            data = {"policy": {"model": "demo"}, "prompts": {"train": ["a"] * 99, "evaluate": ["b"]}, "rewards": {"scene": {}}}
            *sections, last = knob.key.split(".")
            inner = data
            for name in sections:
                inner = inner.setdefault(name, {})
            inner[last] = knob.default
            with pytest.raises(Exception, match=knob.key.replace(".", r"\.")):
                load_config(data)
        else:
            assert knob.default == knob.choices[0] == "preset"


def test_a_peer_is_chosen_as_any_other_knob_and_refused_where_a_knob_can_t_act():
    config = together("demo", {"algorithm": "flow_grpo"}, "trajectory: {noise: 0.5}")
    assert config.algorithm == "flow_grpo" and config.trajectory.noise == 0.5
    assert "objective.clip_eps = 0.02 can never act with algorithm = diffusion_nft" in refused(
        "demo", algorithm="diffusion_nft"
    )
    assert together("demo", {"algorithm": "diffusion_nft", "clip_eps": 0.0}).objective.clip_eps is None


def test_zero_turns_off_what_the_configuration_calls_null():
    settings = knobs.choose_settings("sd3", {"soft_clip_eta": 0.0, "clip_eps": 0.0, "kl_coef": 0.0, "ema_decay": 0}, "")
    assert settings.changes["objective"] == {"soft_clip_eta": None, "clip_eps": None, "kl_coef": 0.0}
    assert together("sd3", {"soft_clip_eta": 0.0}).objective.soft_clip_eta is None


def test_what_a_pages_rounding_leaves_is_the_typed_number():
    assert knobs.choose_settings("none", {"lr": 0.00029999999999999997}, "").changes == {"optimizer": {"lr": 3e-4}}


def test_tooltips_are_the_keys_own_words():
    rows = {row.key: row for row in RunConfig.key_table()}
    for knob in knobs.KNOBS:
        words = rows[knob.key].description.replace("null = off", "0 = off")
        assert knob.tooltip.lower().startswith(words.lower()), knob.id
        assert "as the preset says" in knob.tooltip and "null" not in knob.tooltip


# Further keys


@pytest.mark.parametrize(
    ("more", "changes"),
    [
        ("optimizer: {weight_decay: 1e-2}", {"optimizer": {"weight_decay": 0.01}}),
        ("optimizer.weight_decay: 0.01", {"optimizer": {"weight_decay": 0.01}}),
        ("objective:\n  advantage: {scale: batch}\nobjective.advantage.combine: sum_then_normalize",
         {"objective": {"advantage": {"scale": "batch", "combine": "sum_then_normalize"}}}),
        ("optimizer: {max_grad_norm: null}", {"optimizer": {"max_grad_norm": None}}),
        ("optimizer:\nseed: 3", {"seed": 3}),
        ("policy: {vae_dtype: float32}", {"policy": {"vae_dtype": "float32"}}),
        ("", {}),
        ("# a note", {}),
    ],
)  # fmt: skip
def test_more(more, changes):
    assert knobs.choose_settings("demo", {}, more).changes == changes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("optimizer: {", "more"),
        ("just words", "more is 'just words'; allowed: keys with values"),
        ("[1, 2]", "allowed: keys with values"),
        ("optimizr: {lr: 1}", "did you mean 'optimizer'"),
        ("optimizer: {weight_deca: 1}", "did you mean 'optimizer.weight_decay'"),
        ("optimizer: {weight_decay: 2}", "optimizer.weight_decay = 2; allowed"),
        ("optimizer: 3", "optimizer = 3"),
        ("rewards: {scene: {}}", "rewards.scene belongs to the reward nodes"),
        ("monitors.scene: {}", "monitors.scene belongs to the reward nodes"),
        ("prompts: {train: demo}", "belongs to the Prompt Set node"),
        ("policy: {lora: {rank: 4}}", "policy.lora.rank belongs to the Policy node"),
        ("policy: 3", "belongs to the Policy node"),
        ("policy.quantization: nf4", "policy.quantization belongs to the Policy node"),
        ("policy.vae_dtype: int3", "policy.vae_dtype = int3; allowed: one of auto, float32"),
        ("preset: sd3", "preset belongs to the input preset"),
        ("name: x", "belongs to the node V-GRPO Train LoRA"),
        ("optimizer.lr: 1\noptimizer: {lr: 1}", "both set optimizer.lr"),
        ("optimizer: 1\noptimizer.lr: 1", "both set optimizer.lr"),
        ("seed: 1\nseed: 2", "appears twice"),
        ("a: &x [1]\nb: *x", "anchors and aliases"),
    ],
)
def test_more_refused(more, said):
    assert said in refused(more=more)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"group_size": 1}, "rollout.group_size = 1; allowed: an integer from 2"),
        ({"width": 100}, "rollout.width = 100; allowed"),
        ({"kl_coef": -0.5}, "objective.kl_coef = -0.5; allowed"),
        ({"sampler": "ddim"}, "sampler = 'ddim'; allowed: preset, euler"),
        ({"clip_eps": 0.01}, "objective.clip_eps = 0.01 can never act"),
        ({"warmup": 200}, "optimizer.warmup = 200 is more than iterations = 150"),
        ({"lr": 0.5, "more": "optimizer.lr: 1e-3"}, "the input lr and 'more' both set optimizer.lr"),
        ({"preset": "xl"}, "preset = 'xl'; allowed: none, awm, chroma"),
    ],
)
def test_knobs_refused(values, said):
    assert said in refused(**values)


def test_many_prompts_an_iteration_are_not_the_settings_fault():
    settings = knobs.choose_settings("demo", {"prompts_per_iteration": 5000}, "")
    assert "rollout.prompts_per_iteration: 12 -> 5000" in knobs.differences(settings)


def test_what_may_disappoint_is_said():
    text = knobs.differences(knobs.choose_settings("sd3", {"pairs": 2}, ""))
    assert "note: surrogate.pairs = 2: 4 is the paper's sweet spot" in text


# Together


def test_the_demo_graph_is_the_demo_preset():
    preset = load_preset("demo")
    mine = together(name=preset["name"])
    watched = {name: {} for name in preset["monitors"]}
    expected = load_config({"preset": "demo"})
    assert mine.diff_from(load_config({"preset": "demo", "monitors": {}})) == []
    assert set(expected.monitors) == set(watched) and mine.monitors == {}


def test_nodes_go_before_the_preset_and_the_preset_before_defaults():
    policy = bases.choose_policy("demo", **{**DEMO, "rank": 4, "alpha": 3.0, "targets": "attention"})
    config = together("sd3", {"steps": 9}, "checkpoint.keep: 7", policy)
    assert (config.policy.model, config.policy.lora.rank, config.policy.lora.alpha) == ("demo", 4, 3.0)
    assert config.policy.gradient_checkpointing is False  # the node says so, the preset says True
    assert (config.rollout.steps, config.rollout.group_size, config.checkpoint.keep) == (9, 24, 7)
    assert config.name == "a run" and list(config.rewards) == ["scene"]
    assert config.prompts.train[0].metadata["objects"]


def test_the_configuration_is_complete_in_itself():
    from trainer.config import load_config as again

    config = together(chosen=reward_options.add_reward("jpeg_size", 0.0, True, {}, rewards("scene")))
    assert again(config.to_yaml()).digest() == config.digest()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": prompt_text.from_text("a\nb", "c", 0), "chosen": rewards("brightness")},
         "V-GRPO Settings: rollout.prompts_per_iteration = 12, but prompts.train has only 2"),
        ({"prompts": prompt_text.from_text("\n".join("abcdefghijklmn"), "z", 0)},
         "Reward: Scene: it can score none of the 14 training prompts: the prompt's metadata has no list 'objects'"),
        ({"name": " "}, "V-GRPO Train LoRA: name"),
        ({"policy": choices.PolicyChoice({"family": "sd3", "model": "./gone"})}, "Policy: policy.model = "),
        ({"policy": bases.choose_policy("demo", **{**DEMO, "init": "/gone.safetensors"})}, "Policy: policy.lora.init = "),
        ({"chosen": choices.RewardChoice({"scene": {"weight": 0}})}, "Reward: Scene: rewards.scene.weight = 0"),
        ({"chosen": choices.RewardChoice({"sceen": {}})}, "rewards: rewards.sceen: unknown reward"),
        ({"chosen": choices.RewardChoice({}, {"scene": {}})}, "rewards: Reward: Scene only watched"),
        ({"chosen": choices.RewardChoice({}, {})}, "rewards: none given"),
    ],
)  # fmt: skip
def test_errors_name_the_node_and_the_key(given, said):
    with pytest.raises(UserError) as caught:
        together(**given)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(said)


# In ComfyUI


def test_the_node_tells_what_differs(comfy_nodes):
    made = comfy_nodes.run("VGRPOSettings", preset="demo", lr=2e-3, more="optimizer: {weight_decay: 1e-2}")
    assert made.outputs[0]["changes"] == {"optimizer": {"weight_decay": 0.01, "lr": 0.002}}
    assert made.outputs[1].splitlines()[0] == "preset demo, 2 changes"
    assert made.ui == {"text": [made.outputs[1]]}


def test_only_the_preset_is_required_and_rare_knobs_are_collapsed(comfy_nodes):
    inputs = comfy_nodes.info("VGRPOSettings")["input"]
    assert list(inputs["required"]) == ["preset"]
    shown = [name for name, (_, options) in inputs["optional"].items() if not options.get("advanced")]
    assert shown == ["iterations", "seed", "group_size", "prompts_per_iteration", "lr", "hardware"]


def test_bad_yaml_is_refused_before_anything_runs(comfy_nodes):
    assert comfy_nodes.call("VGRPOSettings", "validate_inputs", more="optimizer: {lr: 1}") is True
    assert comfy_nodes.call("VGRPOSettings", "validate_inputs") is True
    assert "Prompt Set" in comfy_nodes.call("VGRPOSettings", "validate_inputs", more="prompts: {}")
    with pytest.raises(NodeError, match=r"rollout\.group_size = 1; allowed"):
        comfy_nodes.run("VGRPOSettings", preset="demo", group_size=1)


def test_several_sizes_replace_width_and_height():
    settings = knobs.choose_settings("none", {}, "", "832x1216, 1024x1024;1216x832")
    assert settings.changes["rollout"] == {"width": [832, 1024, 1216], "height": [1216, 1024, 832]}
    assert "rollout.width: 512 -> [832, 1024, 1216]" in knobs.differences(settings)
    assert together(sizes="64x96\n96x64").rollout.sizes == ((64, 96), (96, 64))


@pytest.mark.parametrize(
    ("sizes", "values", "said"),
    [
        ("832", {}, "sizes: '832' is no size; allowed: width x height in pixels, such as 832x1216"),
        ("64x70", {}, "rollout.height = [70]; allowed: an integer, or a list"),
        ("64x64", {"width": 96}, "the input sizes and another one both set rollout.width; keep one"),
    ],
)
def test_sizes_that_are_none(sizes, values, said):
    assert said in refusal(knobs.choose_settings, "none", values, "", sizes)


# Hardware


def test_hardware_travels_with_the_settings_and_is_told():
    settings = knobs.choose_settings("sdxl", {"hardware": "12gb"}, "")
    assert settings.changes == {"hardware": "12gb"}
    assert "hardware: 12gb, settled when the training starts" in knobs.differences(settings)
    assert knobs.choose_settings("sdxl", {"hardware": "none"}, "").changes == {}


def test_hardware_that_is_no_class_or_stands_twice_is_refused():
    assert "hardware = '13gb'; allowed: none, auto, 8gb" in refused(hardware="13gb")
    assert "both set hardware" in refused(more="hardware: 12gb", hardware="16gb")


def test_inputs_of_the_policy_node_that_nobody_touched_leave_the_choice_to_hardware():
    choice = choices.PolicyChoice({"family": "sdxl", "model": "org/name", "gradient_checkpointing": False})
    config = together("sdxl", {"hardware": "12gb", "prompts_per_iteration": 4}, policy=choice, chosen=rewards("brightness"))
    alone = load_config(
        {
            "preset": "sdxl",
            "hardware": "12gb",
            "prompts": {"train": ["a"] * 16, "evaluate": ["b"]},
            "rewards": {"brightness": {}},
        }
    )
    assert config.policy.offload == alone.policy.offload and config.policy.gradient_checkpointing


@pytest.mark.parametrize(
    ("hardware", "key", "value"), [("48gb", "offload", "model"), ("8gb", "offload", "none"), ("8gb", "vae_tiling", "off")]
)
def test_what_the_policy_node_says_goes_before_hardware(hardware, key, value):
    """`none` too: it is a choice, since the input's untouched value is `preset`."""
    told = choices.PolicyChoice({"family": "sdxl", "model": "org/name", "gradient_checkpointing": False, key: value})
    config = together("sdxl", {"hardware": hardware, "prompts_per_iteration": 4}, policy=told, chosen=rewards("brightness"))
    assert getattr(config.policy, key) == value
