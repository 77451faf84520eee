"""V-GRPO and its peers on the embedded model and the `scene` reward: how many network evaluations each needs.

    python benchmarks/sample_efficiency.py --output /tmp/sample-efficiency                    hours; a second call goes on
    python benchmarks/sample_efficiency.py --output /tmp/se --only vgrpo mix_grpo --seeds 0   a part of it
    ... --write-results                                                                       into benchmarks/results/

Every method has the same rollouts (16 outputs for each of 6 prompts, 8 steps), no moving average, the same LoRA and
evaluation; `vgrpo_demo` is the demo as it is: 12 prompts, 4 steps, a moving average. Every method has of one grid, which goes
on where an end of it is best, the learning rate that does best for it on tuning seeds, by the mean held-out reward over a
tuning run as long as the reported ones. The reported seeds are others. What else a method has comes from its paper
(docs/algorithms.md), but for the KL of 1e-4 to the base in DiffusionNFT and AWM, which would cost them more evaluations.
"""

from __future__ import annotations

from harness import Budget, Method, arguments, chosen, publish, reach_text, study

LEVELS = (0.55, 0.60, 0.65, 0.70)
JUDGED = {"evaluation.steps": 8}
# No moving average: a method with few, long iterations would be judged by a policy that lags behind it.
COMMON = {"rollout.steps": 8, "rollout.prompts_per_iteration": 6, "optimizer.ema_decay": 0.0, **JUDGED}
ONE = {"objective.gradient_steps": 1, "objective.clip_eps": None, "objective.kl_coef": 0.0}
SOFT, HARD = {"objective.soft_clip_eta": 3.0}, {"objective.soft_clip_eta": None, "objective.advantage.clip": 5.0}


BATCH = {"objective.advantage.scale": "batch"}  # the codes of Flow-GRPO, DiffusionNFT and AWM: global_std
CLIP = 1e-4 * (65_536 / 1024) ** 0.5  # 1e-4 clips a mean over 65,536 numbers (SD 3.5, 512 x 512); here a latent has 1024


def ratios(steps: int, kl: float = 0.0) -> dict:
    return {**HARD, "objective.gradient_steps": steps, "objective.clip_eps": CLIP, "objective.kl_coef": kl}


METHODS = (
    Method("vgrpo", "V-GRPO", {**COMMON, **ONE, **SOFT}),
    Method("vgrpo_demo", "V-GRPO, our best (the demo's settings)", JUDGED),
    Method("flow_grpo", "Flow-GRPO", {"algorithm": "flow_grpo", **COMMON, **ratios(2, kl=0.04), **BATCH}),
    Method(
        "mix_grpo",
        "MixGRPO",
        {"algorithm": "mix_grpo", **COMMON, **ratios(4), "trajectory.window": 4, "trajectory.window_every": 5},
    ),
    Method("dance_grpo", "DanceGRPO", {"algorithm": "dance_grpo", **COMMON, **ratios(2)}),
    Method(
        "diffusion_nft",
        "DiffusionNFT",
        {
            "algorithm": "diffusion_nft",
            **COMMON,
            **ONE,
            **HARD,
            **BATCH,
            "surrogate.pairs": 8,
            "surrogate.share": "none",
        },
    ),
    Method(
        "awm",
        "AWM",
        {
            "algorithm": "awm",
            **COMMON,
            **ONE,
            **HARD,
            **BATCH,
            "forward.lag_kl_coef": 0.0,  # in runs this short the copy that lags is nearly the policy, and costs as much
            "surrogate.pairs": 6,
            "surrogate.share": "none",
        },
    ),
    Method(
        "naive_elbo",
        "naive ELBO",
        {
            **COMMON,
            **ONE,
            **SOFT,
            "surrogate.share": "none",
            "surrogate.stratified": False,
            "surrogate.weighting": "v",
        },
    ),
)


def main() -> None:
    args = arguments(__doc__).parse_args()
    methods = chosen(METHODS, args)
    curves, rates = study(methods, args)
    budget = Budget(args.budget, args.points, args.prompts)
    lines = [
        "| method | lr | held-out reward | evaluations | V-GRPO's need over its: "
        + " | ".join(f"{level:.2f}" for level in LEVELS)
        + " |",
        "|---|---|---|---|" + "---|" * len(LEVELS),
    ]
    base = curves.get("vgrpo")
    for method in methods:
        mine = curves[method.name]
        ends = [curve.rows[-1][2] for curve in mine]
        starts = [curve.rows[0][2] for curve in mine]
        ratios = [reach_text(base, mine, level, budget) if base else "" for level in LEVELS]
        lines.append(
            f"| {method.title} | {rates[method.name]:g} | {sum(starts) / len(starts):.3f} -> {sum(ends) / len(ends):.3f} "
            f"({min(ends):.3f} to {max(ends):.3f}) | {mine[0].rows[-1][0]:.0f} | " + " | ".join(ratios) + " |"
        )
    lines.append("\nA ratio under 1: V-GRPO needs fewer. In brackets the 95 % interval over resampled seeds of both.")
    publish("sample_efficiency", "\n".join(lines), methods, curves, args)


if __name__ == "__main__":
    main()
