"""The surrogate of -log pi(o|c): the weighted denoising error of the finished output (arXiv 2604.23380)."""

from __future__ import annotations

from torch import Tensor

from ._tensors import at_least_float32, nonzero, per_output, same_shape

WEIGHTINGS = ("adaptive", "x", "v", "eps")

# Unit-scale latents carry a float32 residue near 1e-7; the floor keeps it from being normalised into a gradient of size 1,
# and makes an exact prediction cost 0 instead of 0 / 0.
ADAPTIVE_FLOOR = 1e-6


def surrogate(
    x_pred: Tensor,
    x0: Tensor,
    weighting: str = "adaptive",
    a_t: float | Tensor | None = None,
    b_t: float | Tensor | None = None,
) -> Tensor:
    """One pair's loss for each output, from the clean output predicted at `z_t = a_t x0 + b_t eps`.

    Args:
        x_pred: [B, ...], the predicted clean output.
        x0: [B, ...], the output itself.
        weighting: with err = x_pred - x0 and means over all axes but the first,
            "adaptive": mean(err^2) / stop_gradient(mean|err|), the paper's default. The value moves half as fast as the
            gradient says, because the gradient holds the denominator still.
            "x": mean(err^2).
            "v": mean((err / b_t)^2), the error in velocity: rectified flow (x = z - t v, b_t = t) and the
            variance-preserving v (x = a z - b v) both have v error = x error / b_t.
            "eps": mean((err a_t / b_t)^2), the error in noise (x = (z - b eps) / a).
        a_t, b_t: one number or one per output [B]; "v" and "eps" need both, the others ignore them.

    Returns: [B], at least float32 whatever the inputs are.
    Raises: ValueError for an unknown weighting, missing coefficients, b_t = 0, or shapes that do not fit.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is {weighting!r}; allowed: {', '.join(WEIGHTINGS)}")
    same_shape(x_pred, "x_pred", x0, "x0")
    if x_pred.ndim < 2:
        raise ValueError(f"x_pred has shape {list(x_pred.shape)}; outputs [B, ...] with at least one axis each are needed")
    x_pred, x0 = at_least_float32(x_pred, x0)
    error = (x_pred - x0).flatten(1)
    square = error.square().mean(1)
    if weighting == "adaptive":
        return square / error.detach().abs().mean(1).clamp_min(ADAPTIVE_FLOOR)
    if weighting == "x":
        return square
    missing = [name for name, value in (("a_t", a_t), ("b_t", b_t)) if value is None]
    if missing:
        raise ValueError(f"weighting {weighting!r} needs {' and '.join(missing)}")
    b = nonzero(per_output(b_t, "b_t", square), "b_t", f"without noise there is no error in {weighting}")
    scale = 1 / b if weighting == "v" else per_output(a_t, "a_t", square) / b
    return square * scale.square()
