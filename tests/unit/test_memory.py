"""Out of memory, pretended: every phase goes on with half its batch, and with the result that the smaller batch gives."""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager

import pytest
import torch

from tests.bench import bright, factors, iterate, same, shake, tiny_bench
from tests.cramped import cramped, cuda_error
from tests.small_run import assert_same_outcome, events, go, new_run, small_config, stop_after
from trainer import cli, runs
from trainer.config import load_config
from trainer.loop import sampling_of
from trainer.memory import UPDATE, MemoryShortage, PhaseBatches, advice, is_out_of_memory
from trainer.policies import decoding
from trainer.policies.sd3 import SD3Policy
from trainer.rollout import pick_prompts, sample_groups

OFF_POLICY = {"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.3}
ON_POLICY = {"gradient_steps": 1}


# Recognising it


@pytest.mark.parametrize(
    "error",
    [
        cuda_error(),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 2.00 GiB)"),
        RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4294967296 bytes."),
    ],
)
def test_every_device_says_it_in_its_own_way(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), OSError(28, "No space left")])
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_the_allocator_of_this_machine_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


# Halving


def test_what_is_done_is_not_done_again_and_the_size_is_kept():
    told: list[str] = []
    batches, done = PhaseBatches(told.append), []

    def work(here: slice) -> int:
        if here.stop - here.start > 2 and here.start >= 5:
            raise cuda_error()
        done.append((here.start, here.stop))
        return here.stop - here.start

    assert batches.over("sampling", 5, 12, work) == [5, 2, 2, 2, 1]
    assert done == [(0, 5), (5, 7), (7, 9), (9, 11), (11, 12)]
    assert told == ["out of memory in sampling: batch 5 -> 2 for the rest of the run"]
    assert batches.over("sampling", 5, 4, lambda here: here.stop) == [2, 4]
    assert batches.over("decoding", 5, 4, lambda here: here.stop) == [4]  # another phase has its own


def test_another_error_passes():
    with pytest.raises(ValueError, match="no"):
        PhaseBatches().attempt("sampling", 4, lambda size: (_ for _ in ()).throw(ValueError("no")))


def test_the_memory_of_what_failed_is_free_when_it_is_tried_again():
    """An exception holds its frames, and these their tensors."""
    held = []

    def work(size: int) -> None:
        assert not held or held[-1]() is None
        tensor = torch.empty(8)
        held.append(weakref.ref(tensor))
        if size > 1:
            raise cuda_error()

    PhaseBatches().attempt("sampling", 4, work)
    assert len(held) == 3


def test_the_advice_names_what_is_not_in_use_yet(tiny_sd3):
    def text(**policy):
        return advice(load_config(small_config(tiny_sd3, policy=policy)).policy)

    assert all(key in text() for key in ("gradient_checkpointing to true", "offload to model", "quantization to nf4"))
    used = text(gradient_checkpointing=True, offload="blocks", quantization="int8")
    assert used == "make the pictures smaller"


# Sampling, decoding, encoding


def told(bench) -> list[str]:
    lines: list[str] = []
    bench.policy.batches.tell = lines.append
    return lines


def test_a_rollout_without_memory_is_that_of_the_smaller_batch(tiny_sd3):
    bench, small = tiny_bench(tiny_sd3), tiny_bench(tiny_sd3, rollout={"batch_size": 2})
    lines = told(bench)
    with cramped(bench.policy, 2):
        mine = _sampled(bench)
    assert lines == ["out of memory in sampling 64 x 64: batch 8 -> 4 for the rest of the run",
                     "out of memory in sampling 64 x 64: batch 4 -> 2 for the rest of the run"]  # fmt: skip
    other = _sampled(small)
    assert all(map(torch.equal, mine.latents, other.latents))
    pictures = zip(mine.images, other.images, strict=True)  # decoded in another batch
    assert max(int((one.int() - two.int()).abs().max()) for one, two in pictures) <= 1


def _sampled(bench):
    r = bench.config.rollout
    picks = pick_prompts(bench.train, r.prompts_per_iteration, bench.config.seed, 0, r.sizes)
    with bench.learner.adapter.for_sampling():
        return sample_groups(
            bench.policy, picks, bench.train_conditioning, r.group_size, sampling_of(bench.config), bench.config.seed, 0
        )


def test_a_picture_that_does_not_fit_whole_is_decoded_in_tiles(tiny_sd3, monkeypatch):
    monkeypatch.setattr(decoding, "TILE", 32)
    bench = tiny_bench(tiny_sd3)
    sampled = _sampled(bench)
    latents, whole = torch.stack(sampled.latents), torch.stack(sampled.images)
    tiles = tiny_bench(tiny_sd3, policy={"vae_tiling": "on"})
    expected = tiles.policy.decode(latents)
    assert not torch.equal(expected, whole) and expected.shape == whole.shape
    decoder, lines, sizes = bench.policy._pipe.vae.decoder, told(bench), []

    def limited(_module, args):
        sizes.append(args[0].shape[-1])
        if args[0].shape[-1] > 4:  # latents of 32 pixels
            raise cuda_error()

    handle = decoder.register_forward_pre_hook(limited)
    assert torch.equal(bench.policy.decode(latents), expected)
    assert lines[-1] == "out of memory in decoding 64 x 64: not even 1 fits, so it is done in tiles for the rest of the run"
    sizes.clear()
    assert torch.equal(bench.policy.decode(latents), expected) and set(sizes) <= {1, 2, 3, 4}  # it remembers
    handle.remove()
    strict = tiny_bench(tiny_sd3, policy={"vae_tiling": "off"})
    strict.policy._pipe.vae.decoder.register_forward_pre_hook(limited)
    with pytest.raises(MemoryShortage, match="decoding 64 x 64"):
        strict.policy.decode(latents)


@pytest.mark.parametrize("offload", ["none", "model"])
def test_rewards_make_room_for_the_encoders(tiny_sd3, monkeypatch, offload):
    order, encode = [], SD3Policy.encode
    monkeypatch.setattr("trainer.setup.park", lambda rewards: order.append([reward.name for reward in rewards]))
    monkeypatch.setattr(SD3Policy, "encode", lambda policy, *args: (order.append("encode"), encode(policy, *args))[1])
    bench = tiny_bench(tiny_sd3, policy={"offload": offload})
    assert order == [[[*bench.rewards]], []][offload == "none"] + ["encode"]


def test_encoding_prompts(tiny_sd3, monkeypatch):
    plain, encode, sizes = tiny_bench(tiny_sd3), SD3Policy.encode_prompts, []

    def limited(policy, pipe, prompts):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise cuda_error()
        return encode(policy, pipe, prompts)

    monkeypatch.setattr(SD3Policy, "encode_prompts", limited)
    monkeypatch.setattr("trainer.policies.pipeline.default_folder", lambda: tmp)
    tmp = plain.policy._cache_folder / "elsewhere"
    bench = tiny_bench(tiny_sd3)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1]  # the negative prompt, three and two
    assert any("encoding prompts: batch 6 -> 3" in note for note in bench.notes)
    for key, rows in plain.train_conditioning.tensors.items():
        assert torch.allclose(rows, bench.train_conditioning.tensors[key], atol=1e-5)


# The update


def no_memory_in(bench, call: int, backward: bool):
    """Memory is short once: in the forward pass `call` with gradients, or in the backward pass of it."""
    count = {"forward": -1}

    def forward(_module, args, kw):
        if not torch.is_grad_enabled():
            return
        count["forward"] += 1
        if count["forward"] == call and not backward:
            raise cuda_error()

    def output(_module, args, result):
        if torch.is_grad_enabled() and count["forward"] == call and backward:
            result[0].register_hook(lambda grad: (_ for _ in ()).throw(cuda_error()))

    bench.policy.denoiser.register_forward_pre_hook(forward, with_kwargs=True)
    bench.policy.denoiser.register_forward_hook(output)


@pytest.mark.parametrize("objective", [OFF_POLICY, ON_POLICY], ids=["theta_old", "on policy"])
def test_an_update_without_memory_is_that_of_the_smaller_batch(tiny_sd3, objective):
    """From theta_old's losses on (method: they are measured in the very row batches of the training)."""
    outputs = 8 // objective["gradient_steps"]
    rows = outputs * 3
    cut, small = (tiny_bench(tiny_sd3, bright, objective=objective, surrogate={"batch_size": size}) for size in (64, rows // 2))
    lines = told(cut)
    for bench in (cut, small):
        shake(bench)
    with _only_updates(cut, rows // 2):
        metrics = [iterate(cut, i).metrics for i in range(2)]
    expected = [iterate(small, i).metrics for i in range(2)]
    assert same(factors(cut), factors(small))
    assert [_timeless(m) for m in metrics] == [_timeless(m) for m in expected]
    assert lines == [f"out of memory in the update: batch {rows} -> {rows // 2} for the rest of the run"]


def _timeless(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


@contextmanager
def _only_updates(bench, most: int):
    """Inside, the estimate's passes are cramped and the pipeline's are not."""
    inside, pipe = {"pipeline": False}, type(bench.policy._pipe).__call__

    def watched(self, *args, **kw):
        inside["pipeline"] = True
        try:
            return pipe(self, *args, **kw)
        finally:
            inside["pipeline"] = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(bench.policy._pipe), "__call__", watched)
        with cramped(bench.policy, most, when=lambda call: not inside["pipeline"]) as tried:
            yield tried


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("call", [0, 1])
def test_a_step_that_fails_half_way_is_done_anew_whole(tiny_sd3, call, backward):
    """No gradient of the first row batch is counted twice."""
    cut, small = (tiny_bench(tiny_sd3, bright, surrogate={"batch_size": size}) for size in (12, 6))
    for bench in (cut, small):
        shake(bench)
    no_memory_in(cut, call, backward)
    iterate(cut)
    iterate(small)
    assert cut.policy.batches.sizes == {UPDATE: 6} and same(factors(cut), factors(small))
    assert not any(p.grad is not None for p in cut.learner.adapter.parameters())


def test_a_later_step_measures_theta_old_again(tiny_sd3):
    """The first step was done in the large batches; the second needs theta_old's losses in the small ones."""
    bench = tiny_bench(tiny_sd3, bright, objective=OFF_POLICY, surrogate={"batch_size": 12})
    shake(bench)
    no_memory_in(bench, 1, backward=False)
    result = iterate(bench)
    assert bench.policy.batches.sizes == {UPDATE: 6} and result.metrics["steps/taken"] == 2
    assert result.metrics["nfe/behaviour"] == 4 + 24 / 8  # once an output and pair, and not what failed


def test_one_row_that_does_not_fit_ends_with_advice_and_changes_nothing(tiny_sd3):
    bench = tiny_bench(tiny_sd3, bright)
    before = factors(bench)
    with _only_updates(bench, 0), pytest.raises(MemoryShortage) as caught:
        iterate(bench)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("out of memory in the update: a batch of 1 does not fit either; set ")
    assert "policy.gradient_checkpointing to true" in line
    assert same(factors(bench), before) and not any(p.grad is not None for p in bench.learner.adapter.parameters())


# A whole run


def test_a_run_says_it_keeps_it_and_resumes_with_it(tiny_sd3, tmp_path):
    """Stopped and resumed, also in a process that has memory enough, it gives the LoRA of the unbroken run."""
    output = SD3Policy.output

    def limited(policy, z_t, *args):
        if len(z_t) > 3:
            raise cuda_error()
        return output(policy, z_t, *args)

    def run(folder, stop: bool):
        one = new_run(tmp_path / folder, small_config(tiny_sd3, optimizer={"ema_decay": 0.5}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SD3Policy, "output", limited)
            go(one, stop_after(one, 1) if stop else None)
        if stop:
            assert runs.read_state(one).status == runs.STOPPED
            go(one)
        return one

    whole, broken = run("whole", False), run("broken", True)
    assert_same_outcome(broken, whole)
    said = [e["message"] for e in events(whole, "warning") if "out of memory" in e["message"]]
    assert said == ["out of memory in the update: batch 12 -> 6 for the rest of the run",
                    "out of memory in the update: batch 6 -> 3 for the rest of the run"]  # fmt: skip


def test_a_run_that_can_not_go_on_says_what_to_change(tiny_sd3, tmp_path):
    run = new_run(tmp_path, small_config(tiny_sd3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SD3Policy, "output", lambda *args: (_ for _ in ()).throw(cuda_error()))
        with pytest.raises(MemoryShortage):
            go(run)
    state = runs.read_state(run)
    assert state.status == runs.FAILED and "set policy.gradient_checkpointing to true" in state.message


def test_the_command_sample_goes_on_too(tiny_sd3, tmp_path, capsys, monkeypatch):
    run = new_run(tmp_path / "runs", small_config(tiny_sd3, iterations=1))
    go(run)
    original, out, memory = SD3Policy.__init__, tmp_path / "pictures", ExitStack()
    tried: list[list[int]] = []

    def built(policy, *args, **kw):
        original(policy, *args, **kw)
        tried.append(memory.enter_context(cramped(policy, 1)))

    monkeypatch.setattr(SD3Policy, "__init__", built)
    with memory:
        what = ["--prompt", "a red square", "--images", "3", "--steps", "2"]
        assert cli.main(["sample", str(run.path), *what, "--output", str(out)]) == 0
    assert "note: out of memory in sampling 64 x 64: batch 3 -> 1" in capsys.readouterr().out
    assert len(list(out.glob("*.png"))) == 4 and set(tried[0]) == {3, 1}


def test_nothing_is_halved_where_memory_suffices(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    with cramped(bench.policy, 10**6):
        iterate(bench)
    assert not bench.policy.batches.sizes
