"""V-GRPO training backend. Runs in a process of its own and never imports ComfyUI."""
