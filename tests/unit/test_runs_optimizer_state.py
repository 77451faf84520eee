"""Optimiser and random states come back to the last bit, and training goes on as if nothing had been."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from trainer.errors import UserError
from trainer.runs import create_run
from trainer.runs.checkpoints import load_checkpoint, save_checkpoint
from trainer.runs.optimizer_state import optimizer_from_tensors, optimizer_to_tensors, rng_from_tensors, rng_to_tensors

NAMES = ["block.0/lora.A", "block.0/lora.B", "out.A"]  # a name may hold a slash

OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
    "AdamW amsgrad": lambda groups: torch.optim.AdamW(groups, lr=1e-2, amsgrad=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(1e-2)),
    "SGD momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "SGD plain": lambda groups: torch.optim.SGD(groups, lr=1e-2),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2, centered=True),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=1e-2),
}


def training(kind, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (3, 4), (5,)]
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = OPTIMIZERS[kind]([{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0}])
    return parameters, optimizer


def train(parameters, optimizer, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for number, parameter in enumerate(parameters):
            unused = number == 2 and step < 5  # one parameter gets its first gradient after the resume
            parameter.grad = None if unused else torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor.detach().reshape(1).view(torch.uint8)


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resumed_optimizer_continues_bit_for_bit(kind, tmp_path):
    straight, optimizer = training(kind)
    train(straight, optimizer, 4)
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    run = create_run(tmp_path, "demo")
    weights = dict(zip(NAMES, straight, strict=True))
    path = save_checkpoint(run, 4, {"lora": weights, "optimizer": tensors}, {"optimizer": meta})
    train(straight, optimizer, 6, first=4)

    loaded, position = load_checkpoint(path)
    resumed, other = training(kind)
    with torch.no_grad():
        for name, parameter in zip(NAMES, resumed, strict=True):
            parameter.copy_(loaded["lora"][name])
    for group in other.param_groups:
        group["lr"] = 5.0  # a wrong one: the checkpoint's counts
    optimizer_from_tensors(other, NAMES, loaded["optimizer"], position["optimizer"])
    train(resumed, other, 6, first=4)

    for a, b in zip(straight, resumed, strict=True):
        same(a, b)
    for a, b in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {k: (v, type(v)) for k, v in a.items() if k != "params"} == {
            k: (v, type(v)) for k, v in b.items() if k != "params"
        }
    for a, b in zip(straight, resumed, strict=True):
        assert optimizer.state[a].keys() == other.state[b].keys()
        for key, value in optimizer.state[a].items():
            same(value, other.state[b][key]) if isinstance(value, torch.Tensor) else None
            assert isinstance(value, torch.Tensor) or value == other.state[b][key]


def test_the_test_above_can_fail():
    """Without the state, the very same continuation gives other weights."""
    straight, optimizer = training("AdamW")
    train(straight, optimizer, 4)
    fresh, other = training("AdamW")
    with torch.no_grad():
        for a, b in zip(fresh, straight, strict=True):
            a.copy_(b)
    train(straight, optimizer, 2, first=4)
    train(fresh, other, 2, first=4)
    assert not torch.equal(straight[0], fresh[0])


def test_meta_is_json_and_float_options_come_back_exactly():
    parameters, optimizer = training("AdamW")
    optimizer.param_groups[0]["lr"] = 0.1 + 0.2
    train(parameters, optimizer, 1)
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    assert {"block.0/lora.A/exp_avg", "block.0/lora.A/step"} <= tensors.keys() and "out.A/exp_avg" not in tensors
    meta = json.loads(json.dumps(meta, allow_nan=False))
    _, other = training("AdamW")
    optimizer_from_tensors(other, NAMES, tensors, meta)
    assert other.param_groups[0]["lr"] == 0.1 + 0.2 and other.param_groups[0]["betas"] == (0.8, 0.95)
    assert other.param_groups[1]["weight_decay"] == 0.0


def test_float32_moments_of_bfloat16_weights_keep_their_bits():
    parameters, optimizer = training("AdamW", torch.bfloat16)
    train(parameters, optimizer, 2)
    for parameter in parameters[:2]:
        optimizer.state[parameter]["exp_avg"] = torch.randn(parameter.shape)  # as an optimiser with master moments keeps them
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    fresh, other = training("AdamW", torch.bfloat16)
    optimizer_from_tensors(other, NAMES, tensors, meta)
    same(other.state[fresh[0]]["exp_avg"], optimizer.state[parameters[0]]["exp_avg"])
    assert other.state[fresh[0]]["exp_avg_sq"].dtype == torch.bfloat16


def test_loading_does_not_tie_the_optimizer_to_the_loaded_tensors():
    parameters, optimizer = training("AdamW")
    train(parameters, optimizer, 1)
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    fresh, other = training("AdamW")
    optimizer_from_tensors(other, NAMES, tensors, meta)
    train(fresh, other, 2)
    for name in tensors:
        same(tensors[name], before[name])


def test_parameters_are_matched_by_name_not_by_order():
    parameters, optimizer = training("AdamW")
    train(parameters, optimizer, 3)
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    swapped = [torch.nn.Parameter(parameters[i].detach().clone()) for i in (1, 0, 2)]
    other = OPTIMIZERS["AdamW"]([{"params": swapped[:2]}, {"params": swapped[2:]}])
    optimizer_from_tensors(other, [NAMES[1], NAMES[0], NAMES[2]], tensors, meta)
    same(other.state[swapped[0]]["exp_avg"], optimizer.state[parameters[1]]["exp_avg"])
    same(other.state[swapped[1]]["exp_avg"], optimizer.state[parameters[0]]["exp_avg"])


def test_a_state_for_something_else_is_refused_in_one_line_and_changes_nothing():
    parameters, optimizer = training("AdamW")
    train(parameters, optimizer, 2)
    tensors, meta = optimizer_to_tensors(optimizer, NAMES)
    wide = [torch.nn.Parameter(torch.zeros(4, 8)), *training("AdamW")[0][1:]]
    regrouped = training("AdamW")[0]
    lacking = {name: tensor for name, tensor in tensors.items() if not name.endswith("A/exp_avg")}
    fresh = training("AdamW")[1]
    for other, names, given, given_meta, word in [
        (training("Adam")[1], NAMES, tensors, meta, "optimiser AdamW.*Adam;"),
        (training("AdamW")[1], ["x", *NAMES[1:]], tensors, meta, "2 differ"),
        (OPTIMIZERS["AdamW"]([{"params": wide[:2]}, {"params": wide[2:]}]), NAMES, tensors, meta, r"\(4, 3\).*\(4, 8\)"),
        (OPTIMIZERS["AdamW"]([{"params": regrouped}]), NAMES, tensors, meta, "other groups"),
        (fresh, NAMES, lacking, meta, "incomplete"),
        (training("AdamW")[1], NAMES, tensors, {}, "malformed"),
    ]:
        with pytest.raises(UserError, match=word) as error:
            optimizer_from_tensors(other, names, given, given_meta)
        assert "\n" not in str(error.value)
        assert not other.state
    for names in (NAMES[:2], [NAMES[0]] * 3):
        with pytest.raises(ValueError):
            optimizer_to_tensors(optimizer, names)


def test_a_state_that_json_cannot_hold_is_refused():
    parameters, optimizer = training("AdamW")
    train(parameters, optimizer, 1)
    optimizer.state[parameters[0]]["hook"] = object()
    with pytest.raises(TypeError, match="hook"):
        optimizer_to_tensors(optimizer, NAMES)


# --- random generators


def draw():
    return [
        torch.rand(3).tolist(),
        torch.randn(5).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(2).tolist(),
        np.random.randn(3).tolist(),
        np.random.randint(0, 9, 4).tolist(),
    ]


@pytest.fixture
def generators_put_back():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize("gauss_pending", [False, True])
def test_generators_continue_where_they_stood(generators_put_back, tmp_path, gauss_pending):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()
    draw() if gauss_pending else None
    if gauss_pending:
        random.gauss(0, 1)
        random.seed(random.random())
        random.gauss(0, 1)  # Python and numpy keep the second of each pair of normals for the next call
    assert (random.getstate()[2] is not None) or not gauss_pending
    path = save_checkpoint(create_run(tmp_path, "demo"), 1, {"rng": rng_to_tensors()}, {})
    expected = draw()
    draw()
    assert rng_from_tensors(load_checkpoint(path)[0]["rng"]) == []
    assert draw() == expected
    assert draw() != expected


def test_devices_that_are_not_here_are_named(generators_put_back):
    tensors = rng_to_tensors() | {"torch.cuda.77": torch.zeros(16, dtype=torch.uint8)}
    assert rng_from_tensors(tensors) == ["torch.cuda.77"]


@pytest.mark.parametrize("name", ["torch.cpu", "python.words", "python.gauss", "numpy.words", "numpy.gauss"])
def test_a_damaged_random_state_gives_one_line(generators_put_back, name):
    tensors = rng_to_tensors()
    short = torch.zeros(5, dtype=tensors.pop(name).dtype)
    with pytest.raises(UserError, match="random state"):
        rng_from_tensors(tensors)
    if name.endswith("words") or name == "torch.cpu":
        with pytest.raises(UserError, match="random state"):
            rng_from_tensors(rng_to_tensors() | {name: short})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_generators_continue(generators_put_back):
    torch.cuda.manual_seed_all(4)
    tensors = {name: tensor.clone() for name, tensor in rng_to_tensors().items()}
    assert len([name for name in tensors if name.startswith("torch.cuda.")]) == torch.cuda.device_count()
    expected = torch.rand(4, device="cuda")
    rng_from_tensors(tensors)
    assert torch.equal(torch.rand(4, device="cuda"), expected)
