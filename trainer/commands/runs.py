"""`runs`: what is in a folder of runs."""

from __future__ import annotations

from ..errors import UserError
from ..runs import list_runs, metric_series, read_events, read_state


def run(args) -> int:
    if args.root.exists() and not args.root.is_dir():
        raise UserError(f"{args.root} is a file; give the folder that holds the runs")
    found = list_runs(args.root)
    if not found:
        print(f"no runs in {args.root.resolve()}")
        return 0
    width = max(len(r.id) for r in found)
    print(f"{'run':<{width}}  {'status':<9} {'iteration':>11}  {'held-out reward':<20} message")
    for run_dir in found:
        try:
            state = read_state(run_dir)
        except UserError as error:
            print(f"{run_dir.id:<{width}}  unreadable: {error}")
            continue
        points = metric_series(read_events(run_dir.events_file, types=("evaluation", "resumed"))).get("eval/total/mean", [])
        curve = f"{points[0][1]:.3f} -> {points[-1][1]:.3f}" if points else "-"
        done = f"{state.iteration:>5}/{state.iterations:<5}"
        print(f"{run_dir.id:<{width}}  {state.status:<9} {done}  {curve:<20} {state.message}".rstrip())
    return 0
