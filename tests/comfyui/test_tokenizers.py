"""A base that is a file takes its tokenizers from ComfyUI's own folder, and they read text as the published models do."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.comfyui.comfyui_tree import comfyui_tree
from trainer.policies.published import PUBLISHED
from trainer.policies.references import write_reference

TEXT = "a photo of a cat"
CLIP = [49406, 320, 1125, 539, 320, 2368, 49407]
EXPECTED = {
    ("sd15", "tokenizer"): [*CLIP, 49407, 49407],
    ("sdxl", "tokenizer"): [*CLIP, 49407, 49407],
    ("sdxl", "tokenizer_2"): [*CLIP, 0, 0],  # SDXL's second CLIP is padded with "!"
    ("flux", "tokenizer"): [*CLIP, 49407, 49407],
    ("flux", "tokenizer_2"): [3, 9, 1202, 13, 3, 9, 1712, 1, 0],
    ("sd3", "tokenizer_2"): [*CLIP, 0, 0],
    ("sd3", "tokenizer_3"): [3, 9, 1202, 13, 3, 9, 1712, 1, 0],
    ("chroma", "tokenizer"): [3, 9, 1202, 13, 3, 9, 1712, 1, 0],
    ("qwen_image", "tokenizer"): [64, 6548, 315, 264, 8251, *[151643] * 4],
    ("z_image", "tokenizer"): [64, 6548, 315, 264, 8251, *[151643] * 4],
}
LONGEST = {  # by the class that the reference names
    "CLIPTokenizer": 77,
    "T5TokenizerFast": 512,
    "Qwen2Tokenizer": 131072,
}


@pytest.mark.parametrize(("family", "part"), EXPECTED)
def test_the_tokenizers_of_comfyui(tmp_path: Path, family: str, part: str) -> None:
    write_reference(family, "Any", tmp_path / "reference", comfyui_tree() / "comfy", {}, {})
    kind = getattr(transformers, PUBLISHED[family][part][1])
    tokenizer = kind.from_pretrained(tmp_path / "reference", subfolder=part)
    assert tokenizer(TEXT, padding="max_length", max_length=9, truncation=True).input_ids == EXPECTED[family, part]
    assert tokenizer.model_max_length == LONGEST[PUBLISHED[family][part][1]]


@pytest.mark.parametrize(
    ("family", "thinking", "ids"),
    [
        ("z_image", True, [151644, 872, 198, 64, 6548, 315, 264, 8251, 151645, 198, 151644, 77091, 198]),
        (
            "flux2_klein",
            False,
            [151644, 872, 198, 64, 6548, 315, 264, 8251, 151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271],
        ),
    ],
)
def test_the_chat_is_qwen3s(tmp_path: Path, family: str, thinking: bool, ids: list[int]) -> None:
    """As the pipelines ask for it; Qwen2.5's own template, which lies beside its words, would speak as a helpful assistant."""
    write_reference(family, "Any", tmp_path / "reference", comfyui_tree() / "comfy", {}, {})
    tokenizer = transformers.Qwen2Tokenizer.from_pretrained(tmp_path / "reference", subfolder="tokenizer")
    message = [{"role": "user", "content": TEXT}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
    assert tokenizer(text).input_ids == ids
