"""The aesthetic predictor's network: CLIP ViT-L/14's picture tower, its features at length 1, five linear layers."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.nn.functional import normalize

from .checkpoint import fill, read_state
from .clip_pixels import center_crop
from .linear_head import make_head, numbered
from .towers import ClipShape, fill_vision, from_open_clip
from .weights import Weights, size_hint

VIT_L_14 = ClipShape(
    features=768, picture_width=1024, picture_layers=24, text_width=768, text_layers=12, text_heads=12, activation="quick_gelu"
)


class AestheticModel(nn.Module):
    def __init__(self, clip: nn.Module, head: nn.Module, size: int) -> None:
        super().__init__()
        self.clip, self.head, self._size = clip, head, size

    def pixels(self, pictures: Tensor) -> Tensor:
        """uint8[B, H, W, 3] -> float32[B, 3, S, S], cropped as OpenAI's own `clip.load` does it."""
        return center_crop(pictures, self._size, "nearest")

    def see(self, pixels: Tensor) -> Tensor:
        """Features [B, 768]."""
        return self.clip(pixel_values=pixels).image_embeds

    def rate(self, features: Tensor) -> Tensor:
        """Scores float32[B]. In float32 whatever the tower's precision: the head has no activation to keep errors small."""
        return self.head(normalize(features.float(), dim=-1))[:, 0]


def load_model(head: tuple[Weights, Path], clip: tuple[Weights, Path], shape: ClipShape = VIT_L_14) -> AestheticModel:
    """Raises UserError of one line if one of the files can't be read or is another model."""
    layers = make_head(shape.features)
    spec, path = head
    fill(layers, numbered(read_state(path, spec.title, size_hint(spec, path))), spec.title, path)
    spec, path = clip
    file = path if path.is_file() else _tensors(path)
    tower = fill_vision(from_open_clip(read_state(file, spec.title, size_hint(spec, file))), shape, spec.title, file)
    return AestheticModel(tower, layers, shape.size)


def _tensors(folder: Path) -> Path:
    safe = folder / "model.safetensors"
    return safe if safe.is_file() else folder / "pytorch_model.bin"
