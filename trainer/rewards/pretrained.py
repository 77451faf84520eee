"""transformers models and processors from a folder on this machine. Nothing is fetched and no code of the folder is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError, one_line


def load_pretrained(kind: Any, folder: Path, title: str) -> Any:
    """The folder's model as `kind` (a model class, or an Auto class) loads it, in float32 on the CPU, for evaluation.

    Raises UserError of one line that names title and folder, also where weights are missing: transformers itself would go on
    with random ones.
    """
    import torch

    precision = {"torch_dtype" if _old() else "dtype": torch.float32}
    model, report = _load(kind, folder, title, output_loading_info=True, **precision)
    lacking = sorted((*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])))
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise UserError(f"{title}: {folder} is another model, or its file is torn: it lacks {lacking[0]}{more}")
    return model.eval()


def load_processor(kind: Any, folder: Path, title: str, **more: Any) -> Any:
    """The folder's configuration, tokenizer or image processor as `kind` loads it. Raises UserError likewise."""
    return _load(kind, folder, title, **more)


def image_processor(folder: Path, title: str) -> Any:
    """The folder's image processor in its variant on Pillow and numpy, which gives the same with and without torchvision."""
    from transformers import AutoImageProcessor

    return _load(AutoImageProcessor, folder, title, **({"use_fast": False} if _old() else {"backend": "pil"}))


def _load(kind: Any, folder: Path, title: str, **more: Any) -> Any:
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **more)
    except Exception as error:  # a dozen kinds: no such file, another model's configuration, torn weights
        raise UserError(
            f"{title}: {folder} can't be loaded as {kind.__name__} ({type(error).__name__}: {one_line(error)[:300]}); "
            "give a transformers folder of that kind"
        ) from error


def _old() -> bool:
    import transformers

    return int(transformers.__version__.split(".")[0]) < 5
