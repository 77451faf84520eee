"""The head that the aesthetic predictor and ImageReward share: five linear layers without activation between them."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

_WIDTHS = (1024, 128, 64, 16, 1)
_LAYERS = (0, 2, 4, 6, 7)  # their numbers in published files, where dropout stands between them


def make_head(features: int) -> nn.Module:
    """Linear layers named as in the published file, without the dropout that only training needs."""
    widths = (features, *_WIDTHS)
    return nn.Sequential(OrderedDict((f"linear{n}", nn.Linear(widths[n], widths[n + 1])) for n in range(len(_WIDTHS))))


def numbered(state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """`layers.4.weight` of a file, after `prefix`, -> `linear2.weight` of `make_head`; other names are passed on."""
    kinds = ("weight", "bias")
    names = {f"{prefix}layers.{layer}.{kind}": f"{prefix}linear{n}.{kind}" for n, layer in enumerate(_LAYERS) for kind in kinds}
    return {names.get(key, key): tensor for key, tensor in state.items()}
