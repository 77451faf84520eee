"""`curriculum`: the stages of one file as runs, one after another; called again it goes on where it was."""

from __future__ import annotations

from .. import runs
from ..curriculum import Stage, check_order, check_same, continued, load_curriculum
from ..errors import UserError
from ..preflight import preflight
from ..runs import RunDir
from ..runs.state import state_or_lost
from . import resume, train
from .common import program


def run(args) -> int:
    curriculum = load_curriculum(args.file)
    check_order(curriculum, args.output)
    for stage in curriculum.stages:
        try:
            preflight(stage.config, args.output)  # what stage 5 lacks is better known before stage 1 has trained for a day
        except UserError as error:
            raise UserError(f"stage {stage.number}: {error}") from error
    before: RunDir | None = None
    for stage in curriculum.stages:
        here = RunDir(args.output / stage.run_id)
        print(f"stage {stage.number} of {len(curriculum.stages)}: {stage.config.name}", flush=True)
        code = _work(stage, here, before, args)
        if code or state_or_lost(here).status != runs.FINISHED:
            print(f'Go on with:\n  {program()} curriculum "{args.file.absolute()}" --output "{args.output.absolute()}"')
            return code
        before = here
    return 0


def _work(stage: Stage, here: RunDir, before: RunDir | None, args) -> int:
    config = stage.config if before is None else continued(stage.config, before)
    if not here.config_file.is_file():
        return train.start(config, args.output, args.device, stage.run_id)
    check_same(here, config)
    return resume.go_on(here, args.device)
