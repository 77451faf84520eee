"""All that the pack asks of ComfyUI itself: the only module that touches its server, folders, memory and progress.

Nothing of ComfyUI is imported before a function is called, so that the pack can be imported anywhere.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trainer.errors import UserError, one_line
from ..trainer.runs.atomic import ASIDE_PREFIX, replace

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("vgrpo.nodes")

_WEIGHT_FOLDERS = ("clip_vision", "text_encoders", "clip")  # beside the pack's own below `models`
RUNS_FOLDER = "vgrpo"  # below ComfyUI's output folder, and below a `loras` folder
PREVIEW_SIZE = 512  # pixels of a preview's longer side
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')  # in a file's name on any system
_SETTLED_BYTES = 32 * 2**20  # free memory that rises by less than this between two looks has settled
_LOOK_S = 0.25


class NotListed(UserError, ValueError):
    """ComfyUI lists no such file or folder; one line says which name, in which folder, and what to do."""


# Folders


def runs_root() -> Path:
    """The folder that holds runs: `<ComfyUI output>/vgrpo`. It may not exist yet."""
    import folder_paths

    return Path(folder_paths.get_output_directory()).absolute() / RUNS_FOLDER


def loras() -> list[str]:
    """Names as Load LoRA lists them."""
    return models("loras")


def lora_file(name: str) -> Path:
    """The file of a LoRA by its name in Load LoRA. Raises NotListed."""
    return model_file("loras", name)


def models(folder: str) -> list[str]:
    """What ComfyUI lists for a model folder such as `checkpoints`; an unknown folder holds nothing."""
    import folder_paths

    try:
        return list(folder_paths.get_filename_list(folder))
    except KeyError:
        return []


def model_file(folder: str, name: str) -> Path:
    """The file behind a name from `models(folder)`. Raises NotListed for any other text, so no typed path gets through."""
    import folder_paths

    path = folder_paths.get_full_path(folder, name) if name in models(folder) else None
    if path is None:
        raise NotListed(f"ComfyUI's folder '{folder}' has no {name!r}; choose one from the list, or refresh it with the R key.")
    return Path(path).absolute()


def comfy_folder() -> Path | None:
    """ComfyUI's own folder `comfy`, which carries tokenizers; None where it can't be told."""
    import importlib.util

    found = importlib.util.find_spec("comfy")
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]).absolute() if places else None


def model_folders() -> list[str]:
    """Names of the diffusers models (folders with a model_index.json) in ComfyUI's `diffusers` folders."""
    return sorted(_diffusers())


def diffusers_folder(name: str) -> Path:
    """The folder behind a name from `model_folders()`. Raises NotListed."""
    found = _diffusers().get(name)
    if found is None:
        raise NotListed(
            f"ComfyUI's folder 'diffusers' has no model {name!r}; choose one from the list (a folder with a model_index.json)."
        )
    return found


def _diffusers() -> dict[str, Path]:
    import folder_paths

    found: dict[str, Path] = {}
    for root in folder_paths.get_folder_paths("diffusers"):
        for folder, below, files in os.walk(root, followlinks=True):
            if "model_index.json" in files:
                below.clear()  # its parts are no models of their own, and hold many files
                if (name := os.path.relpath(folder, root)) != ".":
                    found.setdefault(name.replace(os.sep, "/"), Path(folder).absolute())
    return found


def offer_model_folders(environ: MutableMapping[str, str] = os.environ) -> None:
    """Tells this process and the trainers that it starts where the weights of rewards may lie: `models/vgrpo`, the folders of
    ComfyUI's own CLIP models, and ComfyUI's CLIP vocabulary. Folders that are set already come first. Call it once."""
    import folder_paths

    from ..trainer.rewards.weights import FOLDERS, OWN

    folder_paths.add_model_folder_path(OWN, os.path.join(folder_paths.models_dir, OWN))
    folders = [folder for kind in (OWN, *_WEIGHT_FOLDERS) for folder in _folders(kind)]
    folders.append(os.path.join(os.path.dirname(folder_paths.__file__), "comfy"))
    given = [folder for folder in environ.get(FOLDERS, "").split(os.pathsep) if folder]
    environ[FOLDERS] = os.pathsep.join(dict.fromkeys(map(os.path.abspath, (*given, *folders))))


def _folders(kind: str) -> list[str]:
    import folder_paths

    try:
        return list(folder_paths.get_folder_paths(kind))
    except KeyError:  # this version has no such kind
        return []


def input_files(suffixes: tuple[str, ...]) -> list[str]:
    """Files with these endings in ComfyUI's input folder and below it, as `sub/name.txt`; hidden ones are left out."""
    return sorted(_inputs(suffixes))


def input_file(name: str, suffixes: tuple[str, ...]) -> Path:
    """The file behind a name from `input_files(suffixes)`. Raises NotListed for any other text."""
    found = _inputs(suffixes).get(name)
    if found is None:
        raise NotListed(
            f"ComfyUI's input folder has no file {name!r}; choose one from the list ({', '.join(suffixes)}), or refresh it "
            "with the R key."
        )
    return found


def _inputs(suffixes: tuple[str, ...]) -> dict[str, Path]:
    import folder_paths

    root = Path(folder_paths.get_input_directory()).absolute()
    found: dict[str, Path] = {}
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if path.suffix.lower() in suffixes and not name.startswith("."):
                found[path.relative_to(root).as_posix()] = path
    return found


def publish_lora(source: Path, name: str) -> str:
    """Copies a finished LoRA to `vgrpo/<name>` in the first writable `loras` folder; returns its name in Load LoRA.

    The file is there whole or not at all, and replaces one of the same name. Raises UserError if no folder can be written.
    """
    import folder_paths

    file_name = _FORBIDDEN.sub("-", name.removesuffix(".safetensors")).strip(". ")[:120]
    if not file_name:
        raise UserError(f"{name!r} cannot name a LoRA file; use letters and digits.")
    if not Path(source).is_file():
        raise UserError(f"The LoRA {source} is not there any more; export the run again.")
    problem = "ComfyUI has no such folder"
    for root in folder_paths.get_folder_paths("loras"):
        target = Path(root) / RUNS_FOLDER / f"{file_name}.safetensors"
        try:
            _copy_whole(Path(source), target)
        except OSError as error:
            problem = f"{target.parent}: {one_line(error)}"
        else:
            getattr(folder_paths, "filename_list_cache", {}).pop("loras", None)
            return os.path.join(RUNS_FOLDER, target.name)
    raise UserError(f"The LoRA {source} could not be copied to a 'loras' folder ({problem}); copy it there by hand.")


def _copy_whole(source: Path, target: Path) -> None:
    """Copies aside, under a name that ComfyUI does not list, then renames. Raises OSError and leaves nothing behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{ASIDE_PREFIX}{target.stem[:40]}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(source, "rb") as read, open(aside, "xb") as write:
            shutil.copyfileobj(read, write, 2**20)
            write.flush()
            os.fsync(write.fileno())
        replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


# Execution


def raise_if_cancelled() -> None:
    """Raises ComfyUI's own exception if the user pressed Cancel. Call it at least once a second in long work."""
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()


class Progress:
    """The bar and the preview on the node that is being executed."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update_absolute(self, value: float, total: float | None = None, preview: Image | None = None) -> None:
        """`value` of `total`; may raise ComfyUI's exception for Cancel."""
        self._bar.update_absolute(value, total, None if preview is None else ("JPEG", preview.convert("RGB"), PREVIEW_SIZE))


def progress(total: float, node_id: str | None = None) -> Progress:
    """Progress of the node `node_id`, or of the one that is being executed."""
    import comfy.utils

    return Progress(comfy.utils.ProgressBar(total, node_id=node_id) if node_id else comfy.utils.ProgressBar(total))


# Memory and device


def device() -> str:
    """The device ComfyUI computes on, in torch's words: `cuda:0`, `mps`, `xpu:0`, `cpu`; `auto` if the trainer can't use it."""
    import comfy.model_management

    found = str(comfy.model_management.get_torch_device())
    if found in ("cuda", "xpu"):
        found += ":0"
    return found if found.split(":")[0] in ("cuda", "mps", "xpu", "cpu") else "auto"


def free_models(wait_s: float = 30) -> None:
    """Unloads all of ComfyUI's models and waits until free memory stops rising. On the prompt thread only.

    Raises ComfyUI's exception if the user presses Cancel meanwhile.
    """
    import comfy.model_management as management

    management.unload_all_models()
    gc.collect()
    management.soft_empty_cache()
    wait_until_settled(_free_bytes, wait_s, raise_if_cancelled)


def ask_to_free_models(wait_s: float = 15) -> None:
    """The same from any other thread: asks the prompt thread, which does it when no prompt runs, and waits a while."""
    queue = getattr(_server(), "prompt_queue", None)
    if queue is None:
        return
    before = _free_bytes()
    queue.set_flag("unload_models", True)
    queue.set_flag("free_memory", True)
    deadline = time.monotonic() + min(wait_s, 3.0)
    while _free_bytes() - before < _SETTLED_BYTES and time.monotonic() < deadline:  # nobody says when it begins
        time.sleep(_LOOK_S)
    wait_until_settled(_free_bytes, wait_s)


def wait_until_settled(
    read: Callable[[], int], wait_s: float, check: Callable[[], None] = lambda: None, look_s: float = _LOOK_S
) -> int:
    """Reads free bytes until they stop rising (twice in a row) or `wait_s` is over; returns the last reading."""
    deadline = time.monotonic() + wait_s
    highest, still = read(), 0
    while still < 2 and time.monotonic() < deadline:
        check()
        time.sleep(look_s)
        now = read()
        still = still + 1 if now - highest < _SETTLED_BYTES else 0
        highest = max(highest, now)
    return highest


def _free_bytes() -> int:
    import comfy.model_management as management

    free = management.get_free_memory(management.get_torch_device())
    return int(free[0] if isinstance(free, tuple) else free)


# Server


def inside() -> bool:
    """Whether this process is a ComfyUI (its server need not run yet)."""
    return "folder_paths" in sys.modules


def _server() -> Any:
    # Never imported from here: outside ComfyUI any module may be called `server`.
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def send(event: str, data: dict[str, Any]) -> None:
    """An event to every open page; without a server nobody is told. Safe from any thread, never raises."""
    server = _server()
    if server is None:
        return
    try:
        server.send_sync(event, data)
    except Exception as error:  # the event loop may be closing
        log.debug("event %s was not sent: %s", event, one_line(error))


def show_text(text: str, node_id: str | None) -> None:
    """Text below the widgets of the node that is being executed; without a server nobody is told. Never raises."""
    show = getattr(_server(), "send_progress_text", None)
    if show is None or node_id is None:
        return
    try:
        show(text, node_id)
    except Exception as error:  # the event loop may be closing
        log.debug("text of node %s was not shown: %s", node_id, one_line(error))


def add_routes(register: Callable[[Any], None]) -> bool:
    """`register(routes)` with the server's route table, if there is a server; call it while the pack is imported."""
    server = _server()
    if server is None:
        return False
    register(server.routes)
    return True


def setting(name: str, default: Any = None) -> Any:
    """A value from ComfyUI's settings. With several users it is the default user's, as a prompt does not say whose it is."""
    try:
        import folder_paths

        of_user = getattr(folder_paths, "get_public_user_directory", None)
        user = of_user("default") if of_user else os.path.join(folder_paths.get_user_directory(), "default")
        values = json.loads((Path(user) / "comfy.settings.json").read_text(encoding="utf-8"))
        return values.get(name, default)
    except (ImportError, OSError, ValueError, TypeError, AttributeError):
        return default


def comfyui_version() -> str:
    """The running ComfyUI's version, `unknown` if it does not say."""
    try:
        import comfyui_version as module

        return str(module.__version__)
    except (ImportError, AttributeError):
        return "unknown"
