from __future__ import annotations

import codecs
import json
import re
from pathlib import Path

import pytest

from trainer.demo import PROMPT_FILES
from trainer.errors import UserError
from trainer.prompts import Prompt, load_prompts

KEY = "prompts.train"


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def refusal(source: object, where: str = KEY, base: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_prompts(source, where, base)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(where)
    return text


def test_a_text_file_gives_one_prompt_a_line_without_blanks_and_comments(tmp_path):
    path = write(tmp_path, "p.txt", "# heading\n\n  a red fox  \r\n\tzwei Füchse 🦊\n   # also a comment\na # b\rlast")
    assert load_prompts(path, KEY) == [Prompt("a red fox"), Prompt("zwei Füchse 🦊"), Prompt("a # b"), Prompt("last")]


def test_a_json_lines_file_keeps_metadata_and_takes_further_keys_into_it(tmp_path):
    lines = [
        {"prompt": "one", "metadata": {"a": [1, 2.5, None, True]}},
        {"text": "two"},
        {"tag": "counting", "include": [{"class": "dog", "count": 2}], "prompt": "two dogs", "metadata": {"seed": 1}},
        {"prompt": "  kept as it is ", "metadata": None},
    ]
    path = write(tmp_path, "p.JSONL", "\n\n".join(map(json.dumps, lines)) + "\n")
    assert load_prompts(str(path), KEY) == [
        Prompt("one", {"a": [1, 2.5, None, True]}),
        Prompt("two"),
        Prompt("two dogs", {"seed": 1, "tag": "counting", "include": [{"class": "dog", "count": 2}]}),
        Prompt("  kept as it is "),
    ]


@pytest.mark.parametrize(("name", "text"), [("p.txt", "a fox\n"), ("p.jsonl", '{"prompt": "a fox"}\n')])
def test_a_byte_order_mark_is_not_part_of_the_first_prompt(tmp_path, name, text):
    assert load_prompts(write(tmp_path, name, codecs.BOM_UTF8 + text.encode()), KEY) == [Prompt("a fox")]


def test_a_list_takes_strings_mappings_and_prompts():
    source = ["a", {"text": "b", "metadata": {"n": 1}}, {"prompt": "c"}, Prompt("d", {"x": 2})]
    assert load_prompts(source, KEY) == [Prompt("a"), Prompt("b", {"n": 1}), Prompt("c"), Prompt("d", {"x": 2})]
    assert load_prompts(tuple(source), KEY) == load_prompts(source, KEY)


def test_metadata_is_a_copy():
    metadata = {"objects": [{"n": 1}]}
    (prompt,) = load_prompts([{"text": "a", "metadata": metadata}], KEY)
    metadata["objects"][0]["n"] = 2
    assert prompt.metadata == {"objects": [{"n": 1}]}


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_the_word_demo_means_the_embedded_file_of_the_key(name):
    prompts = load_prompts("demo", f"prompts.{name}")
    assert prompts == load_prompts(PROMPT_FILES[name], f"prompts.{name}")
    assert len(prompts) >= 48 and all(prompt.metadata["objects"] for prompt in prompts)


def test_relative_paths_count_from_the_base_or_from_the_current_folder(tmp_path, monkeypatch):
    folder = tmp_path / "Größe und Maß 猫"
    folder.mkdir()
    write(folder, "p.txt", "inside")
    write(tmp_path, "p.txt", "outside")
    monkeypatch.chdir(tmp_path)
    assert load_prompts("p.txt", KEY, folder) == [Prompt("inside")]
    assert load_prompts("p.txt", KEY) == [Prompt("outside")]
    assert load_prompts(Path("Größe und Maß 猫/p.txt"), KEY) == [Prompt("inside")]
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    assert load_prompts("~/p.txt", KEY, tmp_path) == [Prompt("inside")]


@pytest.mark.parametrize("text", ["", "\n \n", "# only\n#comments\n"])
def test_a_file_without_a_prompt_is_refused(tmp_path, text):
    assert re.search(r"p\.txt holds no prompt", refusal(write(tmp_path, "p.txt", text)))
    assert re.search(r"q\.jsonl holds no prompt", refusal(write(tmp_path, "q.jsonl", "\n")))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('"text"', "not an object"),
        ("{}", "neither text nor prompt"),
        ('{"text": "a", "prompt": "a"}', "both text and prompt"),
        ('{"prompt": 3}', "the prompt is 3; it must be a string"),
        ('{"prompt": " "}', "blank"),
        ('{"prompt": "a", "metadata": [1]}', r"metadata = \[1\]; allowed: an object"),
        ('{"prompt": "a", "metadata": {"x": NaN}}', "NaN is not a JSON number"),
        ('{"prompt": "a", "metadata": {"x": 1e999}}', "metadata holds inf"),
        ('{"prompt": "a", "tag": 1, "metadata": {"tag": 2}}', "'tag' stands both"),
        ('{"prompt": "a\\ud800"}', "surrogate"),
        ('{"prompt": "a", "metadata": {"x": "\\ud800"}}', "surrogate"),
        ('{"prompt": "a", "x": ' + "[" * 40 + "]" * 40 + "}", "deeper than 16"),
        ("[" * 100_000, "not"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, said):
    path = write(tmp_path, "p.jsonl", '{"prompt": "fine"}\n\n' + line + '\n{"prompt": "fine"}\n')
    text = refusal(path)
    assert f"{path}, line 3: " in text and re.search(said, text), text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([], "the list is empty"),
        (["a", 3], r"prompts\.train\[1\] = 3; allowed: a string, or a mapping"),
        ([""], r"prompts\.train\[0\]: the prompt is blank"),
        ([None], r"\[0\] = None"),
        ([{"text": "a", "metdata": {}}], r"unknown key 'metdata' \(did you mean 'metadata'\?\)"),
        ([{"text": "a", "zzz": {}}], r"unknown key 'zzz' \(allowed: text, metadata\)"),
        ([{"text": "a", "metadata": {1: 2}}], r"metadata holds \{1: 2\}"),
        ([{"text": "a", "metadata": {"x": object()}}], "metadata holds <object"),
        (3, r"= 3; allowed: a list of prompts, a \.txt file"),
        (None, "= None; allowed: a list"),
        ({"text": "a"}, "allowed: a list of prompts"),
        ("a photo of a cat", "is not a prompt source; allowed"),
        ("prompts.json", "is not a prompt source; allowed"),
        ("no/such.txt", "prompt file not found: .*such.txt"),
    ],
)
def test_a_bad_source_is_refused(source, said):
    assert re.search(said, refusal(source)), refusal(source)


def test_a_folder_and_another_encoding_are_refused(tmp_path):
    (tmp_path / "d.txt").mkdir()
    assert "is a folder" in refusal(tmp_path / "d.txt")
    assert re.search(r"l\.txt, line 2: not UTF-8", refusal(write(tmp_path, "l.txt", b"ok\nGr\xf6\xdfe\n")))
    assert re.search(r"u\.txt, line 1: not UTF-8", refusal(write(tmp_path, "u.txt", "a".encode("utf-16"))))
