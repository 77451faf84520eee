"""The embedded models: small SD3s with worlds of their own, so that everything runs without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class EmbeddedModel:
    """A diffusers folder and prompt files that lie in this package, and the preset that trains on them."""

    title: str
    preset: str
    folder: Path  # holds model/, prompts/train.jsonl and prompts/evaluate.jsonl

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def prompts(self, part: str) -> Path:
        """part: "train" or "evaluate" (held out)."""
        return self.folder / "prompts" / f"{part}.jsonl"


DEMO, LETTERS = "demo", "demo-letters"
# By the word that names the model in `policy.model` and its prompts in `prompts.train` and `prompts.evaluate`.
EMBEDDED_MODELS = {
    DEMO: EmbeddedModel("V-GRPO embedded model", "demo", _HERE),
    LETTERS: EmbeddedModel("V-GRPO embedded model, letters", "letters", _HERE / "letters"),
}
MODEL_DIR = EMBEDDED_MODELS[DEMO].model
PROMPT_FILES = {part: EMBEDDED_MODELS[DEMO].prompts(part) for part in ("train", "evaluate")}
