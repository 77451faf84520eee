/** English texts under "settings."; see lib/text.mjs. */
export const texts = {
  "settings.tab.runs": "V-GRPO",
  "settings.tab.runsTip": "V-GRPO: training runs",
  "settings.tab.run": "V-GRPO run",
  "settings.command.runs": "V-GRPO: show or hide the runs",
  "settings.command.run": "V-GRPO: show the newest run",
  "settings.group.training": "Training",
  "settings.group.panel": "Panel",
  "settings.cancel": "What Cancel does to a training that a node waits for",
  "settings.cancelTip":
    "For V-GRPO Train LoRA in mode 'wait' with on_cancel 'as in settings'. Detach: it goes on in the background. Pause: it frees the device and keeps its place. Stop and save: queueing again goes on from its checkpoint.",
  "settings.cancel.detach": "Detach",
  "settings.cancel.pause": "Pause",
  "settings.cancel.stop": "Stop and save",
  "settings.refresh": "Seconds between two looks at a run that changes",
  "settings.refreshTip": "Smaller is livelier and asks the server more often.",
  "settings.smoothing": "Smoothing of curves at first",
  "settings.smoothingTip": "0 shows curves as they are, 0.95 is very smooth. The raw curve stays visible behind.",
}
