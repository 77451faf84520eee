"""Curve and pictures of a run as ComfyUI's IMAGE: float32[B, H, W, 3] in [0, 1]. Heavy packages are imported when used."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..trainer import runs
from ..trainer.config import RunConfig
from ..trainer.errors import one_line
from ..trainer.runs import RunDir

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

# An IMAGE takes 12 bytes a pixel; a big evaluation must not fill the memory of the machine that shows it.
MAX_BYTES = 1 << 30
NO_EVALUATION = "no evaluation yet"


def curve(run: RunDir, config: RunConfig) -> Tensor:
    """The reward curve so far, [1, H, W, 3]; a placeholder while there are no points, or where it cannot be drawn."""
    series = runs.metric_series(runs.read_events(run.events_file))
    if not any(f"{kind}/{name}/mean" in series for name in config.rewards for kind in ("reward", "eval")):
        return placeholder("no curve yet")
    from PIL import Image

    with tempfile.TemporaryDirectory(prefix="vgrpo-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "curve.png"
        try:
            from ..trainer.report import save_curve

            save_curve(path, series, list(config.rewards), f"{config.name}: {_base(config)}, seed {config.seed}")
            with Image.open(path) as picture:
                return to_image([picture])
        except ImportError as error:
            return placeholder(f"no curve: the package {error.name} is missing")
        except Exception as error:  # a picture of a run is never worth the run's node
            return placeholder(f"no curve: {one_line(error)}")


def evaluation_pictures(run: RunDir, config: RunConfig, iteration: int | None) -> tuple[Tensor, str | None]:
    """The pictures of an evaluation, [prompts * seeds, H, W, 3] by prompt, then seed; and a note if not all are there.

    Pictures of different sizes stand in the middle of black ones as wide as the widest and as high as the highest.
    A placeholder of one picture where there is no evaluation, or where its files are damaged.
    """
    if iteration is None:
        return placeholder(NO_EVALUATION), None
    import torch

    from ..trainer.evaluation import evaluation_prompts
    from ..trainer.samples import load_evaluation

    found = load_evaluation(run, iteration, evaluation_prompts(config))
    if found is None:
        text = f"the pictures of iteration {iteration} cannot be read"
        return placeholder(text), text
    images, per_prompt = found.images, found.seeds_per_prompt
    height, width = (max(image.shape[side] for image in images) for side in (0, 1))
    room = MAX_BYTES // (4 * 3 * height * width)
    shown = max(1, room // per_prompt * per_prompt)
    note = f"only the first {shown} of {len(images)} pictures fit in an IMAGE batch" if shown < len(images) else None
    batch = torch.zeros(min(shown, len(images)), height, width, 3)
    for place, image in zip(batch, images, strict=False):
        top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
        place[top : top + image.shape[0], left : left + image.shape[1]] = image / 255.0
    return batch, note


def grid_file(run: RunDir, iteration: int | None) -> Path | None:
    """The labelled grid of an evaluation, as the trainer saved it."""
    if iteration is None:
        return None
    path = run.evaluation(iteration) / "grid.png"
    return path if path.is_file() else None


def ui_images(run: RunDir, iteration: int | None, runs_folder: str) -> dict[str, list[dict[str, str]]]:
    """The grid for the node's own preview: the trainer's file, which /view serves, not a copy. {} where there is none."""
    path = grid_file(run, iteration)
    if path is None:
        return {}
    place = f"{runs_folder}/{path.parent.relative_to(run.path.parent).as_posix()}"
    return {"images": [{"filename": path.name, "subfolder": place, "type": "output"}]}


def grid_preview(run: RunDir, iteration: int | None) -> Image.Image | None:
    """The labelled grid for a node's preview; None where there is none, or it is damaged."""
    path = grid_file(run, iteration)
    if path is None:
        return None
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError):  # Pillow calls a broken PNG a SyntaxError
        return None


def placeholder(text: str, width: int = 512, height: int = 256) -> Tensor:
    """A small picture that says why there is none, [1, height, width, 3]."""
    from PIL import Image, ImageDraw

    from ..trainer.pictures import FAINT, PAPER, label_font

    picture = Image.new("RGB", (width, height), PAPER)
    lines, font = _wrapped(text, 44), label_font(20)
    pen = ImageDraw.Draw(picture)
    pen.multiline_text((width / 2, height / 2), "\n".join(lines), fill=FAINT, font=font, anchor="mm", align="center")
    return to_image([picture])


def to_image(pictures: list[Image.Image]) -> Tensor:
    """Pictures of one size as an IMAGE."""
    import numpy as np
    import torch

    arrays = [np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0 for picture in pictures]
    return torch.from_numpy(np.stack(arrays))


def _base(config: RunConfig) -> str:
    return Path(config.policy.model).name or config.policy.model


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)[:8] or [""]
