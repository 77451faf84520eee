"""How much memory a piece of code really takes: what torch's allocator hands out, as torch itself records it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_of(run: Callable[[], object], device: torch.device | None = None) -> int:
    """Most bytes that `run` held at once beyond what was held before: on a CPU by the profiler's record of every allocation."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    del result
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
