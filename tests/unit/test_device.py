"""Which device is taken, and how many threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer import device
from trainer.device import choose_device, choose_threads
from trainer.errors import UserError


@pytest.fixture
def machine(monkeypatch):
    """machine(cuda=2): a machine with two CUDA devices and nothing else."""

    def pretend(cuda=0, xpu=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.xpu, "is_available", lambda: xpu > 0)
        monkeypatch.setattr(torch.xpu, "device_count", lambda: xpu)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    "has, wanted, found",
    [
        ({}, "auto", "cpu"),
        ({}, "cpu", "cpu"),
        ({}, "cpu:0", "cpu:0"),
        ({"cuda": 1}, "auto", "cuda"),
        ({"cuda": 2, "xpu": 1}, "auto", "cuda"),
        ({"cuda": 2}, "cuda:1", "cuda:1"),
        ({"cuda": 2}, "cpu", "cpu"),
        ({"xpu": 2}, "auto", "xpu"),
        ({"xpu": 2}, "xpu:1", "xpu:1"),
        ({"mps": True}, "auto", "mps"),
    ],
)
def test_the_device_that_is_taken(machine, has, wanted, found):
    machine(**has)
    assert choose_device(wanted) == torch.device(found)


@pytest.mark.parametrize(
    "has, wanted, words",
    [
        ({}, "cuda", ["cuda is not available", "found here: cpu"]),
        ({"mps": True}, "cuda:0", ["cuda is not available", "found here: mps, cpu"]),
        ({"cuda": 2}, "cuda:2", ["no cuda:2", "2 cuda device(s)"]),
        ({"xpu": 1}, "xpu:1", ["no xpu:1"]),
        ({}, "cpu:1", ["no cpu:1"]),
        ({"cuda": 1}, "gpu", ["'gpu' is not a device", "auto, cuda, xpu, mps, cpu"]),
        ({"cuda": 1}, "CUDA", ["'CUDA'"]),
        ({"cuda": 1}, "cuda:", ["'cuda:'"]),
        ({"cuda": 1}, "cuda:-1", ["'cuda:-1'"]),
        ({"cuda": 1}, "cuda:٠", ["is not a device"]),
        ({"cuda": 1}, "cuda:²", ["is not a device"]),
        ({}, "", ["'' is not a device"]),
    ],
)
def test_a_device_that_cannot_be_taken(machine, has, wanted, words):
    machine(**has)
    with pytest.raises(UserError) as error:
        choose_device(wanted)
    assert str(error.value).startswith("device: ") and all(word in str(error.value) for word in words), error.value


def test_threads_are_bounded_and_spin_briefly(monkeypatch):
    for cores, threads in ((1, "1"), (2, "2"), (64, "8")):
        monkeypatch.setattr(device, "_usable_cores", lambda: cores)  # noqa: B023
        environment = {}
        choose_threads(environment)
        assert environment == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000", "OMP_NUM_THREADS": threads}


def test_the_user_s_own_setting_wins():
    environment = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "infinite"}
    choose_threads(environment)
    assert environment == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "infinite"}


@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc", reason="glibc")
def test_glibc_takes_the_request_to_keep_memory():
    done = subprocess.run(
        [sys.executable, "-c", "from trainer.device import keep_freed_memory; print(keep_freed_memory())"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert device.keep_freed_memory() is False


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_only_cores_that_this_process_may_use_count():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from trainer.device import _usable_cores; print(_usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"
