"""`export`: a checkpoint's LoRA as a file for other tools."""

from __future__ import annotations

from ..config import load_config
from ..device import choose_device
from ..errors import UserError
from ..lora import FORMATS
from .common import factors_of, run_of


def run(args) -> int:
    run_dir = run_of(args.run)
    if args.format not in FORMATS:
        raise UserError(f"--format {args.format!r} is not known; allowed: {', '.join(FORMATS)}")
    factors, iteration = factors_of(run_dir, args.checkpoint, args.raw)
    from ..ending import export_metadata
    from ..lora import export_lora, layer_shapes
    from ..policies import load_policy
    from ..runs.evaluations import saved_means

    config = load_config(run_dir.config_file, check_files=False)  # the LoRA that it continued from may be gone
    # What a LoRA is does not depend on how the base was kept, and this machine need not have what that takes.
    plain = {"quantization": "none", "offload": "none", "attention": "auto", "compile": False}
    policy = load_policy(config.policy.model_copy(update=plain), choose_device("cpu"))
    before, after = (saved_means(run_dir, i).get("eval/total/mean") for i in (0, iteration))
    metadata = export_metadata(run_dir, config, policy, iteration, before, after)
    path = export_lora(
        factors,
        args.output,
        network=layer_shapes(policy.denoiser),
        family=policy.family,
        format=args.format,
        metadata=metadata,
    )
    print(f"LoRA of iteration {iteration} ({args.format}) in {path.resolve()}")
    return 0
