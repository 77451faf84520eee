"""Documents that are written by a program are what the program writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _module(name: str):
    """A program in docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_configuration_document_is_current():
    module = _module("make_configuration")
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == module.text(), "run: python docs/make_configuration.py"


def test_every_document_that_the_readme_links_to_exists():
    import re

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_documented_reward_of_one_s_own_works(tmp_path, monkeypatch):
    """The very code of the page, as an installed package offers it."""
    import importlib.metadata
    import re

    import torch

    from trainer.rewards import create, registry

    page = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    name, target = re.search(r'entry-points\."vgrpo\.rewards"\]\n(\w+) = "([\w.:]+)"', page).groups()
    assert len(code.strip().splitlines()) <= 20
    (tmp_path / "my_rewards.py").write_text(code.replace("vgrpo.trainer", "trainer"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    point = importlib.metadata.EntryPoint(name, target, registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_third_party", lambda: {name: point})
    images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    images[0, ..., 1] = 200
    images[1] = 90
    scores = create(name, {"share": 1.0}).score(images, ["", ""], [{}, {}])
    assert scores[0] == 0 > scores[1]
    registry._load.cache_clear()


def test_the_hardware_table_is_the_pages():
    module = _module("make_hardware")
    page = (ROOT / "docs" / "memory-plan.md").read_text(encoding="utf-8")
    assert module.page_table() in page, "run: python docs/make_hardware.py"
