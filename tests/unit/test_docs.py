"""Documents that are written by a program are what the program writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_configuration_document_is_current():
    spec = importlib.util.spec_from_file_location("make_configuration", ROOT / "docs" / "make_configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == module.text(), "run: python docs/make_configuration.py"


def test_every_document_that_the_readme_links_to_exists():
    import re

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
