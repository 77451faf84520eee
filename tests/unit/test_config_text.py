from __future__ import annotations

import math

import pytest
import yaml

from trainer.config.text import Row, dump, make_dumper, make_loader, parse
from trainer.errors import UserError

PARSERS = [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)]
EMITTERS = [yaml.SafeDumper, getattr(yaml, "CSafeDumper", yaml.SafeDumper)]
TRICKY = [
    *("1e-4 no yes on null ~ 010 0x1F 1_000 1:30 2026-11-30 .5 +1 5. .nan -.inf = << - ? : true".split()),
    *("", " lead", "trail ", "a: b", "# x", "- a", "a # b", "'q'", '"', "@a", "%b", "!c", "&d", "*e", "[", "{a: b}", ","),
    *("two\nlines\n", "\n", "\t", "a\r\nb", "\x85", "a\u2028b", "\ufeff", "\x00\x07", "ünïcode 猫 🦊", "x" * 3000),
]


@pytest.fixture(params=PARSERS, ids=["python", "c"])
def loader(request):
    return make_loader(request.param)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2E+3", -2000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("010", 10),
        ("+7", 7),
        ("18446744073709551615", 2**64 - 1),
        ("true", True),
        ("", None),
        ("~", None),
        ("-.inf", -math.inf),
        ("'1e-4'", "1e-4"),
        ("no", "no"),
        ("off", "off"),
        ("2026-11-30", "2026-11-30"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("e5", "e5"),
    ],
)
def test_scalars_follow_yaml_1_2(loader, text, value):
    read = parse(f"a: {text}", "here", loader)["a"]
    assert read == value and type(read) is type(value)


def test_nan_is_a_number(loader):
    assert math.isnan(parse("a: .nan", "here", loader)["a"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "here, line 3: the key 'a' appears twice, first on line 1"),
        ("x:\n  - {b: 1, b: 2}\n", "here, line 2: the key 'b' appears twice, first on line 2"),
        ("a: 1\n'a': 2\n", "here, line 2: the key 'a' appears twice"),
        ("a: &x [1]\nb: *x\n", "here, line 1: anchors and aliases"),
        ("a: &x\n  b: *x\n", "anchors and aliases"),
        ("a: 1\n? [b]\n: 2\n", "here, line 2: a key must be a plain word"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", "here, line 2: could not determine a constructor"),
        ("a: 1\nb: !!int x\n", "here: invalid literal"),
        ("a: 1\n---\nb: 1\n", "but found another document"),
        ("a: [1\nb", "here, line "),
        ("a: \x00\n", "here: not YAML text"),
        ("a: 1\nb: " + "9" * 5000, "here, line 2: a number of 5000 digits"),
        ("[" * 100_000, "here"),
    ],
)
def test_what_is_refused_names_the_line(loader, text, said):
    with pytest.raises(UserError) as caught:
        parse(text, "here", loader)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("emitter", EMITTERS, ids=["python", "c"])
def test_what_is_written_is_read_back_by_either_reading_of_yaml(loader, emitter):
    data = {
        "a": TRICKY,
        "n": [1e-5, 1e22, 3.0, -0.0, 7, None, True],
        "rows": [Row(text=text, m={"x": [text]}) for text in TRICKY],
    }
    text = dump(data, make_dumper(emitter))
    assert parse(text, "here", loader) == data
    assert yaml.safe_load(text) == data


def test_a_row_takes_one_line_and_nothing_is_shared():
    shared = {"b": [1, 2]}
    assert dump([Row(a=shared), Row(a=shared)]) == "- {a: {b: [1, 2]}}\n- {a: {b: [1, 2]}}\n"
