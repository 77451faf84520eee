"""From what a Prompt Set node holds to a checked `PromptSet`. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..trainer.demo import DEMO, EMBEDDED_MODELS
from ..trainer.errors import UserError
from ..trainer.prompts import Prompt, from_json_line, load_prompts
from .choices import PromptSet

NODE = "Prompt Set"
TEXT, FILE = "text", "file"
SOURCES = (TEXT, FILE, *EMBEDDED_MODELS)
_SHOWN = 3
_WIDTH = 100


def from_text(train: str, held_out: str, holdout: int) -> PromptSet:
    """The set that two texts make, one prompt a line. Raises UserError."""
    return _assembled(read_lines(train, f"{NODE}: train"), read_lines(held_out, f"{NODE}: held_out"), holdout, "train")


def from_files(train: Path, held_out: Path | None, holdout: int) -> PromptSet:
    """The set that two files (.txt or .jsonl) make. Raises UserError."""
    judged = load_prompts(held_out, f"{NODE}: held_out_file") if held_out else []
    return _assembled(load_prompts(train, f"{NODE}: train_file"), judged, holdout, "train_file")


def from_demo(name: str = DEMO) -> PromptSet:
    """An embedded model's own prompts, those of scenes with the metadata that the scene reward reads."""
    return _checked(load_prompts(name, "prompts.train"), load_prompts(name, "prompts.evaluate"))


def read_lines(text: str, where: str) -> list[Prompt]:
    """The prompts of a text: one a line; a line that starts with { is a JSON object with `prompt` and metadata; blank lines
    and lines that start with # are skipped. Raises UserError with `where` and the line's number."""
    prompts = []
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line, at = line.strip(), f"{where}, line {number}"
        if line.startswith("{"):
            prompts.append(from_json_line(line, at))
        elif line and not line.startswith("#"):
            prompts += load_prompts([line], at)
    return prompts


def preview(prompts: PromptSet) -> str:
    """Counts and samples, for people."""
    return "\n".join([*_part("to train on", prompts.train), *_part("held out", prompts.evaluate)])


def _assembled(train: list[Prompt], held_out: list[Prompt], holdout: int, field: str) -> PromptSet:
    if not train:
        raise UserError(f"{NODE}: {field} holds no prompt; write at least one, or choose another source")
    if held_out:
        return _checked(train, held_out)
    if holdout < 1:
        raise UserError(f"{NODE}: no held-out prompts; give some that are not in train, or set holdout to 1 or more")
    if holdout >= len(train):
        raise UserError(
            f"{NODE}: holdout = {holdout}, but {field} has only {_count(train)}, and one must be left to train on; "
            + (
                f"allowed: 1 to {len(train) - 1}, or give held-out prompts"
                if len(train) > 1
                else "add prompts, or give held-out prompts"
            )
        )
    return _checked(train[:-holdout], train[-holdout:])


def _checked(train: Sequence[Prompt], held_out: Sequence[Prompt]) -> PromptSet:
    """Refuses a prompt that stands in both, since judging on it would show memory."""
    trained = {_key(prompt) for prompt in train}
    shared = [prompt.text for prompt in held_out if _key(prompt) in trained]
    if shared:
        those = f"{_short(shared[0])!r} is" if len(shared) == 1 else f"{_short(shared[0])!r} and {len(shared) - 1} more are"
        raise UserError(
            f"{NODE}: {those} both in the training and in the held-out prompts; "
            "held-out prompts are never trained on, remove each from one of the two"
        )
    return PromptSet(tuple(train), tuple(held_out))


def _key(prompt: Prompt) -> str:
    return " ".join(prompt.text.split()).casefold()


def _part(title: str, prompts: tuple[Prompt, ...]) -> list[str]:
    told = sum(1 for prompt in prompts if prompt.metadata)
    repeated = len(prompts) - len({_key(prompt) for prompt in prompts})
    notes = [f"{told} with metadata"] if told else []
    notes += [f"{repeated} repeated"] if repeated else []
    head = f"{_count(prompts)} {title}" + (f" ({', '.join(notes)})" if notes else "")
    rest = len(prompts) - _SHOWN
    return [head, *(f"  {_short(prompt.text)}" for prompt in prompts[:_SHOWN]), *([f"  ... {rest} more"] if rest > 0 else [])]


def _count(prompts: Sequence[Prompt]) -> str:
    return f"{len(prompts)} prompt{'s' if len(prompts) != 1 else ''}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
