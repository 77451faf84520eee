"""`hardware`: where its settings lie, what `auto` finds, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trainer import device
from trainer.config import FAMILIES, load_config
from trainer.config import hardware as module
from trainer.config.hardware import CHOICES, CLASSES, hardware_settings, largest_class, read_table
from trainer.errors import UserError

GIB = 2**30
ROW = {
    "policy": {"gradient_checkpointing": True, "offload": "model", "quantization": "nf4"},
    "rollout": {"batch_size": 3},
    "surrogate": {"batch_size": 2},
}


@pytest.fixture
def table(monkeypatch):
    """One family, two classes."""
    made = {"sdxl": {"12gb": ROW, "24gb": {**ROW, "surrogate": {"batch_size": 6}}}}
    monkeypatch.setattr(module, "read_table", lambda: made)
    return made


@pytest.fixture
def card(monkeypatch):
    """card(GiB): a CUDA device with so much free memory."""

    def make(free, kind="cuda"):
        monkeypatch.setattr(device, "choose_device", lambda wanted: torch.device(kind))
        monkeypatch.setattr(device, "free_memory", lambda found: int(free * GIB))

    return make


def source(**more):
    return {
        "preset": "sdxl",
        "prompts": {"train": ["a fox"] * 48, "evaluate": ["a fox in snow"]},
        "rewards": {"brightness": {}},
        **more,
    }


def refused(*arguments, **options):
    with pytest.raises(UserError) as caught:
        load_config(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_it_lies_over_the_preset_and_under_the_users_own(table):
    preset = load_config(source())
    config = load_config(source(hardware="12gb", rollout={"batch_size": 5}))
    assert preset.rollout.batch_size == preset.surrogate.batch_size == 4
    assert config.policy.quantization == "nf4" and config.policy.offload == "model"
    assert config.surrogate.batch_size == 2 and config.rollout.batch_size == 5
    assert config.rollout.width == 1024  # the preset's, which it does not touch


def test_an_override_names_it_and_overrides_go_before_it(table):
    config = load_config(source(hardware="24gb"), ["hardware=12gb", "policy.quantization=none"])
    assert config.surrogate.batch_size == 2 and config.policy.quantization == "none"
    assert load_config(source(hardware="24gb"), ["hardware=none"]) == load_config(source())


def test_the_family_may_come_from_an_override(table):
    other = {**source(hardware="12gb"), "preset": "flux"}
    assert load_config(other).policy.quantization == "none"  # flux is not in this table
    assert load_config(other, ["policy.family=sdxl", "rollout.shift=null"]).policy.quantization == "nf4"


def test_a_runs_own_configuration_holds_the_values_and_not_the_word(table):
    config = load_config(source(hardware="12gb"))
    text = config.to_yaml()
    assert "hardware" not in text and load_config(text) == config
    by_hand = load_config(source(**ROW))
    assert config.digest() == by_hand.digest()


def test_none_changes_nothing(table):
    assert load_config(source(hardware="none")) == load_config(source(hardware=None)) == load_config(source())


@pytest.mark.parametrize("name", ["12gb", "auto"])
def test_the_embedded_model_needs_none_of_it(name):
    assert load_config({"preset": "demo", "hardware": name}) == load_config({"preset": "demo"})


@pytest.mark.parametrize(
    ("free", "rows"), [(10.9, 2), (21.5, 2), (21.7, 6), (139, 6)], ids=["12 GB", "not quite 24", "24 GB", "more than any class"]
)
def test_auto_takes_the_largest_class_that_is_free(table, card, free, rows):
    card(free)
    assert load_config(source(hardware="auto"), device="cuda:1").surrogate.batch_size == rows


def test_auto_on_a_cpu_changes_nothing(table, card):
    card(64, "cpu")
    assert load_config(source(hardware="auto")) == load_config(source())


def test_auto_without_enough_memory_says_what_is_free_and_what_to_do(table, card):
    card(4)
    text = refused(source(hardware="auto"))
    assert "4.0 GiB are free on cuda" in text and "smallest class of this family is 12gb" in text and "10.8 GiB" in text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("16g", "did you mean '16gb'?"),
        (16, "allowed: none, auto, 8gb"),
        (["8gb"], "allowed: none, auto, 8gb"),
        (True, "allowed: none, auto, 8gb"),
    ],
)
def test_other_words_are_refused(table, value, words):
    text = refused(source(hardware=value))
    assert text.startswith("hardware = ") and words in text


def test_an_override_that_is_no_class_names_itself(table):
    assert refused(source(), ["hardware=2tb"]).startswith("override 'hardware=2tb': hardware = ")


def test_a_class_that_a_family_does_not_fit_into_names_those_that_it_does(table):
    text = refused(source(hardware="8gb"))
    assert text == "hardware = 8gb: no settings let family sdxl train in it; allowed: none, auto, 12gb, 24gb"


def test_the_largest_class_counts_on_nine_tenths():
    assert largest_class(int(7.2 * GIB) + 1, dict.fromkeys(CLASSES)) == "8gb"
    assert largest_class(int(7.1 * GIB), dict.fromkeys(CLASSES)) is None


def test_the_table_has_every_family_and_classes_in_order():
    table = read_table()
    assert set(table) == set(FAMILIES)
    for classes in table.values():
        assert list(classes) == [name for name in CLASSES if name in classes] and "48gb" in classes
    assert CHOICES == ("none", "auto", "8gb", "12gb", "16gb", "24gb", "48gb")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_the_table_is_a_configuration(family):
    for name, settings in read_table()[family].items():
        config = load_config({**source(hardware=name), "preset": family}, ["rollout.prompts_per_iteration=4"])
        data = config.to_dict()
        for section, keys in settings.items():
            assert all(data[section][key] == value for key, value in keys.items()), name
        assert hardware_settings(name, family, "org/name") == settings


def test_reading_the_table_loads_no_torch():
    code = (
        "import sys; from trainer.config import load_config; "
        "load_config({'preset': 'sdxl', 'hardware': '24gb', 'prompts': {'train': ['a'] * 48, 'evaluate': ['b']}, "
        "'rewards': {'brightness': {}}}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
