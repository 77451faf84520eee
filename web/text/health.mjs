/** English texts under "health."; see lib/text.mjs. */
export const texts = {
  "health.empty": "No iteration is done yet. The first signs appear after it.",
  "health.log": "log",
  "health.log.label": "{name}: logarithmic axis",
  "health.half": "half of the groups",
  "health.clip": "clip_eps {clip}",
  "health.surrogate/cv_group": "Surrogate spread in the group",
  "health.surrogate/cv_group.note":
    "How far the surrogate differs between outputs of one prompt. A steady value is healthy; a steep rise means noisy ratios: raise surrogate.pairs.",
  "health.ratio/max_abs_dev": "Largest ratio deviation from 1",
  "health.ratio/max_abs_dev.note":
    "Grows with the step size. Far above clip_eps most of a step is thrown away; at 0 nothing is learnt.",
  "health.ratio/noise": "numerical noise before the first update",
  "health.ratio/clip_frac": "Share of clipped outputs",
  "health.ratio/clip_frac.note": "A few percent to a third is usual. Near 1: lower the learning rate or the gradient steps.",
  "health.kl": "KL to the behaviour policy",
  "health.kl.note": "How far one iteration moves the policy. Jumps warn of a policy that breaks.",
  "health.grad_norm": "Gradient norm before clipping",
  "health.grad_norm.note": "Spikes are cut by optimizer.max_grad_norm. A steady climb calls for a lower learning rate.",
  "health.advantage/frac_zero_std": "Prompt groups without differences",
  "health.advantage/frac_zero_std.note": "Groups in which all outputs score the same teach nothing.",
  "health.time": "Seconds an iteration",
  "health.time.note": "Where the time goes, added up.",
  "health.time/rollout": "rollout",
  "health.time/reward": "reward",
  "health.time/update": "update",
}
