"""The Prompt Set node."""

from __future__ import annotations

import os

import pytest

from tests.comfy_api import NodeError, pack

prompt_text = pack("nodes.prompt_text")
UserError = pack("trainer.errors").UserError
TWO_SQUARES = '{"prompt": "2 blue squares", "metadata": {"objects": [{"color": "blue", "shape": "square", "count": 2}]}}'


def texts(prompts):
    return [prompt.text for prompt in prompts]


def refusal(read, *arguments):
    with pytest.raises(UserError) as caught:
        read(*arguments)
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and text.startswith("Prompt Set: ")
    return text


def test_lines_and_json_lines_stand_side_by_side():
    made = prompt_text.from_text(f"# a note\n\n  a fox  \r\n{TWO_SQUARES}\n", '{"text": "a cat", "tag": "x"}', 0)
    assert texts(made.train) == ["a fox", "2 blue squares"] and texts(made.evaluate) == ["a cat"]
    assert made.train[1].metadata["objects"][0]["count"] == 2 and made.evaluate[0].metadata == {"tag": "x"}


def test_without_held_out_prompts_the_last_are_taken_out():
    made = prompt_text.from_text("a\nb\nc\nd\ne", " \n", 2)
    assert texts(made.train) == ["a", "b", "c"] and texts(made.evaluate) == ["d", "e"]


def test_given_held_out_prompts_leave_train_whole():
    made = prompt_text.from_text("a\nb\nc", "d", 2)
    assert texts(made.train) == ["a", "b", "c"] and texts(made.evaluate) == ["d"]


@pytest.mark.parametrize(
    ("train", "held_out", "holdout", "said"),
    [
        ("", "", 1, "train holds no prompt"),
        ("# only a note\n", "a", 1, "train holds no prompt"),
        ("a\nb", "", 0, "no held-out prompts"),
        ("a\nb", "", 2, "allowed: 1 to 1"),
        ("a", "", 1, "holdout = 1, but train has only 1 prompt, and"),
        ("a fox\nb", "A  Fox", 1, "'A  Fox' is both"),
        ("a\nb\nc", "a\nb\nx", 1, "'a' and 1 more are both"),
        ("a\nb\na", "", 1, "'a' is both"),
        ('a\n{"prompt": "b"', "", 1, "train, line 2: not JSON"),
        ("a\nb", '\n{"metadata": {}}', 1, "held_out, line 2: neither text nor prompt"),
    ],
)
def test_refusals(train, held_out, holdout, said):
    assert said.replace("A  Fox", "A Fox") in refusal(prompt_text.from_text, train, held_out, holdout)


def test_files(tmp_path):
    (tmp_path / "train.txt").write_text("a\nb\nc\n", encoding="utf-8")
    (tmp_path / "held.jsonl").write_text(TWO_SQUARES, encoding="utf-8")
    made = prompt_text.from_files(tmp_path / "train.txt", tmp_path / "held.jsonl", 4)
    assert texts(made.train) == ["a", "b", "c"] and texts(made.evaluate) == ["2 blue squares"]
    assert texts(prompt_text.from_files(tmp_path / "train.txt", None, 1).evaluate) == ["c"]
    (tmp_path / "bad.jsonl").write_text("{}\n", encoding="utf-8")
    assert "line 1" in refusal(prompt_text.from_files, tmp_path / "bad.jsonl", None, 1)


def test_each_embedded_model_has_its_prompts():
    made = prompt_text.from_demo("demo-letters")
    assert all('"' in prompt.text for prompt in (*made.train, *made.evaluate))


def test_the_demo_has_metadata_for_every_prompt():
    made = prompt_text.from_demo()
    assert len(made.train) >= 48 and len(made.evaluate) >= 48
    assert all(prompt.metadata["objects"] for prompt in (*made.train, *made.evaluate))


def test_the_preview_counts_and_samples():
    made = prompt_text.from_text("a\na\nb\nc\n" + "word " * 100 + "\n" + TWO_SQUARES, "held", 0)
    assert prompt_text.preview(made).splitlines() == [
        "6 prompts to train on (1 with metadata, 1 repeated)",
        "  a",
        "  a",
        "  b",
        "  ... 3 more",
        "1 prompt held out",
        "  held",
    ]
    assert all(len(line) <= 102 for line in prompt_text.preview(prompt_text.from_text("x" * 500, "y", 0)).splitlines())


# In ComfyUI


def test_the_node_shows_its_preview(comfy_nodes):
    made = comfy_nodes.run("VGRPOPromptSet", source="text", train="a\nb\nc", holdout=1)
    assert [prompt["text"] for prompt in made.outputs[0]["train"]] == ["a", "b"]
    assert made.outputs[1].startswith("2 prompts to train on") and made.ui == {"text": [made.outputs[1]]}


def test_files_come_from_the_input_folder_by_list(comfy_nodes):
    folder = comfy_nodes.base / "input"
    (folder / "sets").mkdir(exist_ok=True)
    (folder / "sets" / "füchse.txt").write_text("a fox\nb fox", encoding="utf-8")
    (folder / "picture.png").write_bytes(b"")
    (folder / ".hidden.txt").write_text("a", encoding="utf-8")
    (comfy_nodes.base / "secret.txt").write_text("a\nb", encoding="utf-8")
    inputs = comfy_nodes.info("VGRPOPromptSet")["input"]["optional"]
    assert inputs["train_file"][1]["options"] == inputs["held_out_file"][1]["options"] == ["none", "sets/füchse.txt"]
    made = comfy_nodes.run("VGRPOPromptSet", source="file", train="", train_file="sets/füchse.txt", holdout=1)
    assert [prompt["text"] for prompt in made.outputs[0]["train"]] == ["a fox"]
    for typed in (
        "../secret.txt",
        str(comfy_nodes.base / "secret.txt"),
        "sets/../sets/füchse.txt",
        "picture.png",
        ".hidden.txt",
    ):
        with pytest.raises(NodeError, match="choose one from the list"):
            comfy_nodes.run("VGRPOPromptSet", source="file", train="", train_file=typed)


def test_an_edited_file_is_read_again(comfy_nodes):
    file = comfy_nodes.base / "input" / "edited.txt"
    file.write_text("a\nb", encoding="utf-8")
    given = {"source": "file", "train": "", "train_file": "edited.txt", "held_out_file": "none", "held_out": "", "holdout": 1}
    first = comfy_nodes.call("VGRPOPromptSet", "fingerprint_inputs", **given)
    assert comfy_nodes.call("VGRPOPromptSet", "fingerprint_inputs", **given) == first
    os.utime(file, ns=(1, 1))
    assert comfy_nodes.call("VGRPOPromptSet", "fingerprint_inputs", **given) != first
    assert comfy_nodes.call("VGRPOPromptSet", "fingerprint_inputs", **{**given, "source": "text"}) == []


@pytest.mark.parametrize(("source", "said"), [("file", "choose a .txt or .jsonl file"), ("url", "allowed: text, file, demo")])
def test_the_node_refuses_what_its_lists_do_not_have(comfy_nodes, source, said):
    with pytest.raises(NodeError, match=said) as caught:
        comfy_nodes.run("VGRPOPromptSet", source=source, train="a")
    assert caught.value.kind == "UserError"
