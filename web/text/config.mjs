/** English texts under "config."; see lib/text.mjs. */
export const texts = {
  "config.differs": "Differences from the preset {preset}",
  "config.noPreset": "No preset resembles this configuration",
  "config.same": "Nothing differs from {preset}.",
  "config.key": "Setting",
  "config.here": "This run",
  "config.preset": "Preset {preset}",
  "config.presetHas": "preset: {value}",
  "config.unset": "not set",
  "config.file": "config.yaml",
  "config.digest": "digest {digest}",
  "config.more": "Show {count} more lines",
  "config.failed": "The configuration could not be read: {error}",
}
