"""A base that is a file takes its tokenizers from ComfyUI's own folder, and they read text as the published models do."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.comfyui.comfyui_tree import comfyui_tree
from trainer.policies.references import REFERENCES, write_reference

TEXT = "a photo of a cat"
CLIP = [49406, 320, 1125, 539, 320, 2368, 49407]
EXPECTED = {
    ("sd15", "tokenizer"): [*CLIP, 49407, 49407],
    ("sdxl", "tokenizer"): [*CLIP, 49407, 49407],
    ("sdxl", "tokenizer_2"): [*CLIP, 0, 0],  # SDXL's second CLIP is padded with "!"
    ("flux", "tokenizer"): [*CLIP, 49407, 49407],
    ("flux", "tokenizer_2"): [3, 9, 1202, 13, 3, 9, 1712, 1, 0],
}


@pytest.mark.parametrize(("family", "part"), EXPECTED)
def test_the_tokenizers_of_comfyui(tmp_path: Path, family: str, part: str) -> None:
    write_reference(family, "Any", tmp_path / "reference", comfyui_tree() / "comfy", {})
    kind = getattr(transformers, REFERENCES[family][part][1])
    tokenizer = kind.from_pretrained(tmp_path / "reference", subfolder=part)
    assert tokenizer(TEXT, padding="max_length", max_length=9, truncation=True).input_ids == EXPECTED[family, part]
    assert tokenizer.model_max_length == (512 if part == "tokenizer_2" and family == "flux" else 77)
