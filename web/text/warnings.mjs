/** What lib/warnings.mjs finds, and what to try: "warnings.<kind>" and "warnings.<kind>.try". */
export const texts = {
  "warnings.title": "What this run may suffer from",
  "warnings.more": "{count} more hints",
  "warnings.more.one": "1 more hint",
  "warnings.fewer": "Fewer hints",
  "warnings.try": "Try:",
  "warnings.level.error": "Error",
  "warnings.level.warning": "Warning",
  "warnings.dismiss": "Hide",
  "warnings.dismiss.label": "Hide the hint: {title}",

  "warnings.rewardFlat": "The total reward has not risen for {iterations} iterations (since iteration {since}).",
  "warnings.rewardFlat.try":
    "If it is near its ceiling the run is done: compare the samples and stop. Else raise the learning rate or the gradient steps, use larger prompt groups, or prompts that the base sometimes gets right.",

  "warnings.zeroVariance": "In {percent} % of the prompt groups all outputs score the same, so these groups teach nothing.",
  "warnings.zeroVariance.try":
    "Raise rollout.group_size, choose prompts that are neither always nor never solved, or use a reward with finer steps.",

  "warnings.ratioNoise":
    "Before any update the ratio deviates from 1 by {noise}: numerical noise above a fifth ({limit}) of clip_eps {clip}.",
  "warnings.ratioNoise.try":
    "Compute in a finer type (policy.dtype float32), leave out quantization, raise surrogate.pairs, or widen objective.clip_eps.",

  "warnings.rewardHackingUp":
    "The reward rises while {monitor} went up by {percent} % ({first} to {last}): pictures may be turning garish or noisy to please the reward.",
  "warnings.rewardHackingUp.try":
    "Look at the samples from before and now. If they got worse: raise objective.kl_coef, lower the learning rate, add a second reward that dislikes this, or take an earlier checkpoint.",

  "warnings.rewardHackingDown":
    "The reward rises while {monitor} fell by {percent} % ({first} to {last}): pictures may be turning flat or blurred to please the reward.",
  "warnings.rewardHackingDown.try":
    "Look at the samples from before and now. If they got worse: raise objective.kl_coef, lower the learning rate, add a second reward that dislikes this, or take an earlier checkpoint.",

  "warnings.nanOutputs":
    "A reward could not score {outputs} outputs in the last {iterations} iterations (NaN); they count for nothing.",
  "warnings.nanOutputs.try":
    "The log names the reward. Black or broken pictures come from half precision: try policy.dtype bfloat16 or float32. Else check the reward's own settings.",

  "warnings.nanReward": "The newest iteration has no total reward: no output could be scored.",
  "warnings.nanReward.try":
    "Stop the run and look at the log. Lower the learning rate, set optimizer.max_grad_norm to 1, use policy.dtype bfloat16 or float32, and go on from an earlier checkpoint.",

  "warnings.skippedSteps": "Gradient steps skipped lately, because their gradient was not finite: {steps}",
  "warnings.skippedSteps.try":
    "Use policy.dtype bfloat16 or float32, lower the learning rate, or set a smaller optimizer.max_grad_norm. A single skipped step does no harm.",
}
