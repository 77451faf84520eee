/** The pure modules behind the views of one run; tests/unit/test_web_views.py runs this under node. */

import assert from "node:assert/strict"
import { test } from "node:test"

import { t, keys } from "../../../web/lib/text.mjs"
import { findWarnings } from "../../../web/lib/warnings.mjs"
import { curvesOf } from "../../../web/views/curve_list.mjs"
import { extended, smooth, thin, within } from "../../../web/views/curve_math.mjs"
import { evaluationsOf, pictureAt, placeOf, scoresAt, scoreSource } from "../../../web/views/sample_list.mjs"
import { fold, marked } from "../../../web/views/yaml_lines.mjs"

/** A table of `rows` iterations (every `step`-th); each column is a function of the row's number. */
function table(rows, columns, step = 1) {
  const x = Array.from({ length: rows }, (_, i) => 1 + i * step)
  return { x, columns: new Map(Object.entries(columns).map(([name, at]) => [name, x.map((_, i) => at(i))])) }
}

const kinds = (train, known) => findWarnings({ train, evaluate: table(0, {}) }, known).map(({ kind }) => kind)
/** Noise that is the same at every run. */
const noise = (i) => Math.sin(i * 12.9898) * 0.05

test("a run that learns has no warning", () => {
  const healthy = { "reward/total/mean": (i) => 0.4 + i * 0.004 + noise(i), "reward/nan_outputs": () => 0, "ratio/noise": () => 0, "advantage/frac_zero_std": () => 0.1, "steps/skipped": () => 0, "reward/saturation/mean": (i) => 0.12 + noise(i) / 10 }
  for (const rows of [0, 1, 5, 20, 64, 500]) assert.deepEqual(kinds(table(rows, healthy), { clipEps: 0.02 }), [], `${rows} rows`)
  assert.deepEqual(kinds(table(500, healthy, 20), { clipEps: 0.02 }), [], "thinned")
})

test("a flat reward is told after 20 iterations, and since when", () => {
  const flat = table(100, { "reward/total/mean": (i) => Math.min(0.4 + i * 0.01, 0.9) + noise(i) / 10 })
  const [found] = findWarnings({ train: flat })
  assert.equal(found.kind, "rewardFlat")
  assert.ok(found.values.since >= 50 && found.values.since <= 80, String(found.values.since))
  assert.deepEqual(kinds(table(19, { "reward/total/mean": () => 0.5 })), [], "too early to tell")
  assert.deepEqual(kinds(table(25, { "reward/total/mean": () => 0.5 })), ["rewardFlat"])
  assert.deepEqual(kinds(table(60, { "reward/total/mean": (i) => 0.9 - i * 0.01 })), ["rewardFlat"], "a falling one too")
})

test("zero variance, ratio noise, NaN and skipped steps", () => {
  const base = { "reward/total/mean": (i) => i * 0.01 }
  assert.deepEqual(kinds(table(30, { ...base, "advantage/frac_zero_std": () => 0.6 })), ["zeroVariance"])
  assert.deepEqual(kinds(table(30, { ...base, "advantage/frac_zero_std": () => 0.5 })), [])
  assert.deepEqual(kinds(table(30, { ...base, "ratio/noise": () => 0.0041 }), { clipEps: 0.02 }), ["ratioNoise"])
  assert.deepEqual(kinds(table(30, { ...base, "ratio/noise": () => 0.0039 }), { clipEps: 0.02 }), [])
  assert.deepEqual(kinds(table(30, { ...base, "ratio/noise": () => 0.5 }), { clipEps: null }), [], "no clip, no limit")
  assert.deepEqual(kinds(table(60, { ...base, "reward/nan_outputs": (i) => (i === 55 ? 3 : 0) })), ["nanOutputs"])
  assert.deepEqual(kinds(table(60, { ...base, "reward/nan_outputs": (i) => (i === 5 ? 3 : 0) })), [], "long ago")
  assert.deepEqual(kinds(table(30, { "reward/total/mean": (i) => (i === 29 ? null : i * 0.01) })), ["nanReward"])
  assert.deepEqual(kinds(table(30, { ...base, "steps/skipped": (i) => Number(i > 25) })), ["skippedSteps"])
})

test("a monitor that drifts while the reward rises", () => {
  const drift = (name, at) => table(100, { "reward/total/mean": (i) => i * 0.01 + noise(i), [`reward/${name}/mean`]: at })
  const [up] = findWarnings({ train: drift("saturation", (i) => 0.2 + i * 0.002 + noise(i) / 20) })
  assert.equal(up.kind, "rewardHackingUp")
  assert.equal(up.values.monitor, "saturation")
  assert.deepEqual(kinds(drift("high_frequency", (i) => 0.1 * 0.98 ** i)), ["rewardHackingDown"])
  assert.deepEqual(kinds(drift("saturation", (i) => 0.2 + i * 0.0002)), [], "a little is no drift")
  assert.deepEqual(kinds(drift("saturation", (i) => 0.2 + i * 0.002), { trained: ["saturation"] }), [], "it is what is trained on")
  assert.deepEqual(kinds(table(100, { "reward/total/mean": (i) => -i * 0.01, "reward/saturation/mean": (i) => 0.2 + i * 0.002 })), ["rewardFlat"], "the reward does not rise")
})

test("every warning has its texts, with nothing left to fill in", () => {
  const all = { "reward/total/mean": (i) => Math.min(i, 60) * 0.01, "reward/saturation/mean": (i) => 0.2 + i * 0.002, "reward/nan_outputs": () => 1, "ratio/noise": () => 1, "advantage/frac_zero_std": () => 1, "steps/skipped": () => 1 }
  const found = findWarnings({ train: table(100, all) }, { clipEps: 0.02 })
  assert.deepEqual(found.map(({ kind }) => kind), ["nanOutputs", "skippedSteps", "rewardHackingUp", "zeroVariance", "ratioNoise", "rewardFlat"])
  for (const { kind, values } of found) {
    assert.ok(keys().includes(`warnings.${kind}`) && keys().includes(`warnings.${kind}.try`), kind)
    assert.doesNotMatch(t(`warnings.${kind}`, values), /[{}]|\bNaN %|undefined/)
  }
})

test("smoothing keeps gaps, starts without bias, and does not change where rows are left out", () => {
  const x = Array.from({ length: 200 }, (_, i) => i)
  assert.deepEqual(smooth(x, x.map(() => 2), 0.9).map((y) => Number(y.toFixed(9))), x.map(() => 2))
  assert.deepEqual(smooth([1, 2], [1, 3], 0), [1, 3])
  assert.equal(smooth([1, 2, 3], [1, null, 3], 0.5)[1], null)
  const ramp = smooth(x, x, 0.9)[199]
  const sparse = x.filter((i) => i % 5 === 4)
  assert.ok(Math.abs(smooth(sparse, sparse, 0.9)[39] - ramp) < 4)
})

test("thinning keeps ends and extremes", () => {
  const x = Array.from({ length: 10_000 }, (_, i) => i)
  const y = x.map((i) => (i === 4321 ? 9 : i === 777 ? -9 : Math.sin(i)))
  const found = thin(x, y, 500)
  assert.ok(found.x.length <= 500 && found.x[0] === 0 && found.x.at(-1) === 9999)
  assert.ok(found.y.includes(9) && found.y.includes(-9))
  assert.ok(found.x.every((value, i) => i === 0 || value > found.x[i - 1]))
  const short = thin([1, 2], [3, 4], 500)
  assert.deepEqual(short, { x: [1, 2], y: [3, 4] })
  assert.deepEqual(within([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [3, 4]).x, [2, 3, 4, 5])
  assert.ok(extended({ x: [1, 2], y: [5, 6] }, { x: [1, 2, 3], y: [5, 6, 7] }))
  assert.ok(!extended({ x: [1, 2], y: [5, 6] }, { x: [1, 2, 3], y: [5, 0, 7] }), "a row was replaced")
  assert.ok(!extended({ x: [], y: [] }, { x: [1], y: [1] }))
})

test("curves: total first, rewards, monitors, what only held-out pictures have", () => {
  const train = table(1, { "reward/saturation/mean": () => 0, "reward/scene/mean": () => 0, "reward/scene/std": () => 0, "reward/total/mean": () => 0, "reward/nan_outputs": () => 0 })
  const evaluate = table(1, { "eval/scene/mean": () => 0, "eval/scene/accuracy": () => 0, "eval/total/mean": () => 0 })
  const groups = curvesOf([{ train, evaluate }], { rewards: { scene: 1 }, monitors: ["saturation"] })
  assert.deepEqual(groups.map((group) => [group.id, group.curves.map(({ title }) => title)]), [["rewards", ["total", "scene"]], ["monitors", ["saturation"]], ["heldOut", ["scene/accuracy"]]])
  assert.equal(groups[0].curves[1].evaluate, "eval/scene/mean")
  assert.equal(groups[0].curves[1].weight, 1)
  assert.deepEqual(curvesOf([{ train: table(0, {}), evaluate: table(0, {}) }], null), [])
})

test("pictures: what an entry leaves out is as before, missing ones are missing, seeds keep their digits", async () => {
  const detail = {
    samples: [
      { iteration: 0, folder: "samples/000000", prompts: ["a", "b"], seeds: ["1774771634293509410", "2", "3", "4"], seeds_per_prompt: 2, files: ["p000-s0.png", "p000-s1.png", "p001-s0.png"], means: {} },
      { iteration: 8, folder: "samples/000008", prompts: null, seeds: null, seeds_per_prompt: 2, files: null, means: {} },
      { iteration: 16, folder: "samples/000016", prompts: null, seeds: null, seeds_per_prompt: 2, files: ["p001-s1.png"], means: {} },
    ],
  }
  const all = evaluationsOf(detail)
  assert.deepEqual(pictureAt(all[1], 0, 0), { path: "samples/000008/p000-s0.png", prompt: "a", seed: "1774771634293509410", iteration: 8 })
  assert.equal(pictureAt(all[1], 1, 1), null)
  assert.equal(pictureAt(all[2], 1, 1).seed, "4")
  assert.equal(pictureAt(all[2], 0, 0), null)
  assert.deepEqual([-1, 0, 7, 8, 99].map((iteration) => placeOf(all, iteration)), [0, 0, 0, 1, 2])
  assert.deepEqual(evaluationsOf(null), [])
  let asked = 0
  const scores = scoreSource({ get: async (path) => (asked += 1, assert.equal(path, "/vgrpo/runs/r/samples/8"), { scores: { scene: [1, 2, 3, null] } }) }, "r")
  const [found] = await Promise.all([scores(all[1]), scores(all[1])])
  assert.equal(asked, 1)
  assert.deepEqual(scoresAt(found, all[1], 1, 0), [["scene", 3]])
  assert.deepEqual(scoresAt(found, all[1], 1, 1), [["scene", null]])
})

test("configuration: lines of changed settings are marked by their whole key, long lists fold", () => {
  const yaml = `name: x\nprompts:\n  train:\n${"  - {text: a, metadata: {}}\n".repeat(20)}  evaluate: file.txt\npolicy:\n  lora:\n    rank: 16\nevaluation:\n  steps: 8\nrollout:\n  steps: 9\n`
  const lines = marked(yaml, new Map([["policy.lora.rank", 8], ["rollout.steps", null]]))
  assert.deepEqual(lines.filter((line) => "preset" in line).map(({ text, preset }) => [text, preset]), [["    rank: 16", 8], ["  steps: 9", null]])
  const folded = fold(lines)
  assert.equal(folded.find((line) => line.folded).folded.length, 14)
  assert.equal(folded.reduce((sum, line) => sum + (line.folded?.length ?? 1), 0), lines.length)
})
