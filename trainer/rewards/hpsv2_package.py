"""HPSv2 by the code of an installed `hpsv2` or `hpsv2x`, repaired around what keeps that code from running.

Only its open_clip is used, imported from its folder under a name of our own. So none of these faults of hpsv2 1.2.0 matters:
its top modules import clint and requests; `factory.py` imports turtle, which needs tkinter; the wheel lacks the vocabulary that
`tokenizer.py` opens on import; `hpsv2.score` fetches a 3.9 GB base that it overwrites, reads the checkpoint with full pickle at
every call, and reads the prompt again for each picture.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError, one_line

_NAME = "_vgrpo_hpsv2_open_clip"
_INSIDE = ("src", "open_clip")
_NEEDS = {"torchvision": "torchvision", "regex": "regex", "ftfy": "ftfy"}
_MODEL = "ViT-H-14"


def package_problem() -> str | None:
    """One line if no package is installed, or something that its code imports is not."""
    if _folder() is None:
        return (
            "backend: package needs the package hpsv2x or hpsv2, which is not installed; install with: "
            f"{sys.executable} -m pip install --no-deps hpsv2x, or use backend: transformers, which needs none"
        )
    if lacking := [pip for module, pip in _NEEDS.items() if importlib.util.find_spec(module) is None]:
        those = " ".join(lacking)
        return (
            f"backend: package: the code of hpsv2 imports {those}, not installed; install with: {sys.executable} -m pip "
            f"install {those}, or use backend: transformers"
        )
    return None


def load_towers(file, path: Path, layers: tuple[int, int] | None = None):
    """The authors' own model, transform and tokenizer as `Towers`.

    layers: of the picture and the text tower, where they are not ViT-H-14's 32 and 24. Raises UserError of one line.
    """
    from .checkpoint import read_state
    from .weights import size_hint

    if problem := package_problem():
        raise UserError(problem)
    open_clip = _open_clip()
    state = read_state(path, file.title, size_hint(file, path))
    return _towers(open_clip, state, file.title, path, layers)


def _towers(open_clip: types.ModuleType, state, title: str, path: Path, layers: tuple[int, int] | None):
    import torch
    from PIL import Image

    from .checkpoint import fill
    from .towers import Towers

    config = open_clip.get_model_config(_MODEL)
    if layers:
        config["vision_cfg"]["layers"], config["text_cfg"]["layers"] = layers
    model = open_clip.CLIP(**config, output_dict=True)
    fill(model, state, title, path)
    transform = open_clip.image_transform(model.visual.image_size, is_train=False, resize_longest_max=True)
    tokenize = open_clip.get_tokenizer(_MODEL)

    class PackageTowers(Towers):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def pixels(self, pictures):
            return torch.stack([transform(Image.fromarray(picture)) for picture in pictures.numpy()])

        def see(self, pixels):
            return self.model.encode_image(pixels)

        def read(self, prompt):
            ids = tokenize([prompt]).to(self.model.logit_scale.device)
            return self.model.encode_text(ids)[0]

    return PackageTowers()


def _folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("hpsv2")
    except (ImportError, ValueError):
        return None
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(root).joinpath(*_INSIDE)
        if (folder / "__init__.py").is_file():
            return folder
    return None


def _open_clip() -> types.ModuleType:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    folder = _folder()
    spec = importlib.util.spec_from_file_location(_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        with _repaired(folder):
            spec.loader.exec_module(module)
    except Exception as error:
        for name in [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]:
            del sys.modules[name]
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"backend: package: the code in {folder} can't be imported ({type(error).__name__}: {one_line(error)[:200]}); use "
            "backend: transformers"
        ) from error
    return module


@contextmanager
def _repaired(folder: Path) -> Iterator[None]:
    """While the code is imported: a turtle that needs no tkinter, and a tokenizer where the vocabulary is missing."""
    before = sys.modules.get("turtle")
    stand_in = types.ModuleType("turtle")
    stand_in.forward = None
    sys.modules["turtle"] = stand_in
    if not (folder / "bpe_simple_vocab_16e6.txt.gz").is_file():
        sys.modules[f"{_NAME}.tokenizer"] = _own_tokenizer()
    try:
        yield
    finally:
        if before is None:
            del sys.modules["turtle"]
        else:
            sys.modules["turtle"] = before


def _own_tokenizer() -> types.ModuleType:
    from .clip_text import clean_like_open_clip, load_tokenizer

    module = types.ModuleType(f"{_NAME}.tokenizer")
    module.tokenize = load_tokenizer(clean_like_open_clip)
    module.SimpleTokenizer = module.HFTokenizer = module.decode = None
    return module
