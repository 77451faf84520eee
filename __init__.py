"""What ComfyUI loads: the nodes, and the folder with the page's files. Imported anywhere else it does nothing."""

from .nodes import comfy_entrypoint, start

WEB_DIRECTORY = "./web"
start()

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
