"""One module a command of `trainer/cli.py`; each has `run(args) -> exit code`."""
