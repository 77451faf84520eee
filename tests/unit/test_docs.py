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


def test_the_page_of_evidence_has_the_results_as_they_are():
    module = _module("make_evidence")
    assert module.PAGE.read_text(encoding="utf-8") == module.text(), "run: python docs/make_evidence.py"


def test_evidence_goes_by_single_seeds_and_says_what_was_not_run(tmp_path, monkeypatch):
    module = _module("make_evidence")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    claim = module.ahead("sample_efficiency", "vgrpo", "awm")
    assert claim() == (module.NOT_RUN, "") and f"*{module.NOT_RUN.capitalize()}.*" in module.section(module.BENCHMARKS[0])
    ends = {("vgrpo", 0): 0.6, ("vgrpo", 1): 0.8, ("awm", 0): 0.5, ("awm", 1): 0.5}
    lines = ["method,lr,seed,evaluations,cpu_seconds,held_out_reward"]
    for (method, seed), reward in ends.items():
        lines += [f"{method},0.001,{seed},0,0,0.9", f"{method},0.001,{seed},9,1,{reward}"]
    (tmp_path / "sample_efficiency.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert claim() == ("0.700 against 0.500; ahead in 2 of 2 seeds", "yes")  # the untrained model does not count
    assert module.not_(claim)()[1] == "no" and module.learns("sample_efficiency", "awm")()[1] == "no"
    text = "| method | need: 0.55 | 0.60 |\n|---|---|---|\n| V-GRPO | 1 (1 to 1) | 1 (1 to 1) |\n"
    text += "| MixGRPO | not reached | <= 0.40 (0.3 to 0.5; missed by 0 of 5 and 2 of 5) |\n"
    text += "| DiffusionNFT | 1 (1 to 1) | 0.9 (0.8 to 0.95) |"
    (tmp_path / "sample_efficiency.md").write_text(text, encoding="utf-8")
    assert module.needs("0.60")()[1] == "yes" and module.needs("0.55")()[1] == "unclear"
    assert text in module.section(module.BENCHMARKS[0])


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
