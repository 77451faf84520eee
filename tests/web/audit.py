"""What a person with another sense or another screen would stumble over: controls without a name, text too faint to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CHECKS = Path(__file__).with_name("audit.js").read_text(encoding="utf-8").split("*/", 1)[1].strip()


def nameless_controls(root: Any) -> list[str]:
    """Visible controls below a playwright Locator that have no name for a screen reader."""
    return root.evaluate(f"root => ({_CHECKS}).namelessControls(root)")


def faint_texts(root: Any) -> list[str]:
    """Visible texts whose contrast is too low."""
    return root.evaluate(f"root => ({_CHECKS}).faintTexts(root)")
