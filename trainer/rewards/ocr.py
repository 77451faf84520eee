"""Can the picture's text be read as the prompt wants it? Text recognition by rapidocr (PP-OCR), compared by edit distance."""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..config.later import LATER
from ..errors import UserError
from .base import Reward, RewardOptions

_QUOTED = re.compile(
    r'"([^"]+)"|“([^”"]+)[”"]|„([^“”"]+)[“”"]|«([^»]+)»|「([^」]+)」|『([^』]+)』|‘([^’]+)’(?!\w)|(?<!\w)\'([^\']+)\'(?!\w)'
)
_LONGEST = 2000  # characters of a picture's text that are compared
_KEPT = 4096  # texts of pictures, so that details read nothing twice
_LINE_HEIGHT = 48  # what PP-OCR's recognisers take
_LINES_AT_ONCE = 32
_PARTS = {"Det": "*det*.onnx", "Cls": "*cls*.onnx", "Rec": "*rec*.onnx"}


class OcrOptions(RewardOptions):
    rule: Literal["flow_grpo", "whole", "anywhere"] = Field(
        "flow_grpo",
        description="flow_grpo: as Flow-GRPO (arXiv 2505.05470), full score if the text occurs, else edit distance to all that "
        "was read; whole: all that was read is compared, further text costs; anywhere: the best place counts, the rest is free",
    )
    ignore_case: bool = Field(True, description="compare without regard to upper and lower case, as Flow-GRPO does")
    ignore_spaces: bool = Field(True, description="compare without spaces and line breaks, as Flow-GRPO does")
    recognizer: str = Field(
        "",
        description="path of another rapidocr recognition model (.onnx) for a script that the one in the package can't read "
        "(it reads Latin letters, Chinese and Japanese); empty = the package's",
    )
    lines: Literal["find", "one"] = Field(
        "find",
        description="find: lines of text are searched for in the picture, then read; one: the whole picture is one line of "
        "text, as a label is, and is only read, which takes a fraction of the time",
        json_schema_extra=LATER,
    )


class OcrReward(Reward):
    """Wants the text between quotation marks in the prompt, or the metadata's `text` (one text or a list of them)."""

    name = "ocr"
    description = (
        "Reads the picture and compares it with the text in quotation marks, or the metadata's `text`: 1 - edit distance."
    )
    range = "0 (nothing of it) to 1 (exactly the text); the detail `exact` is 1 only there"
    licence = "rapidocr and its PP-OCR models: Apache-2.0"
    packages = {"rapidocr": "rapidocr", "onnxruntime": "onnxruntime"}  # noqa: RUF012 - a ClassVar of the protocol
    Options = OcrOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._read: dict[str, str] = {}
        self._device = "cpu"
        self._engine: Any = None
        self._lock = threading.Lock()  # an engine keeps the picture it works on in itself

    def missing(self):
        given = self.options.recognizer
        if given and not Path(given).expanduser().is_file():
            return (
                f"'recognizer' of {self.name}: there is no file {given}; give a rapidocr recognition model, or leave it empty"
            )
        return super().missing()

    def load(self, device="cpu", dtype=None):
        with self._lock:
            if self._engine is None or str(device) != self._device:
                self._device = str(device)
                self._engine = _make_engine(self.options.recognizer, self._device, self.options.lines)

    def score(self, images, prompts, metadata):
        return self._compare(images, prompts, metadata, lambda target, text: similarity(target, text, self.options.rule))

    def details(self, images, prompts, metadata):
        whole = self.options.rule == "whole"
        return {"exact": self._compare(images, prompts, metadata, lambda t, text: float(t == text if whole else t in text))}

    def problem(self, prompt, metadata):
        found = targets(prompt, metadata)
        if isinstance(found, str):
            return found
        if not all(self._plain(text) for text in found):
            return "the text to write is blank"
        return None

    def _compare(self, images, prompts, metadata, figure):
        import torch

        values = []
        scored = [not self.problem(prompt, spec) for prompt, spec in zip(prompts, metadata, strict=True)]
        read = iter(self.read([image for image, wanted in zip(images, scored, strict=True) if wanted]))
        for prompt, spec, possible in zip(prompts, metadata, scored, strict=True):
            if not possible:
                values.append(torch.nan)
                continue
            wanted = [self._plain(text) for text in targets(prompt, spec)]
            if self.options.rule == "whole":
                wanted = ["".join(wanted) if self.options.ignore_spaces else " ".join(wanted)]
            text = self._plain(next(read))[:_LONGEST]
            values.append(sum(figure(target, text) for target in wanted) / len(wanted))
        return torch.tensor(values, dtype=torch.float64)

    def read(self, images) -> list[str]:
        """The texts of uint8[H, W, 3] each, in reading order, a space between two lines."""
        keys = [hashlib.blake2b(x.contiguous().numpy(), digest_size=16).hexdigest() + str(tuple(x.shape)) for x in images]
        fresh = {key: image for key, image in zip(keys, images, strict=True) if key not in self._read}
        if fresh:
            if self._engine is None:
                self.load(self._device)
            # rapidocr takes arrays in OpenCV's order, blue first
            arrays = [image.flip(-1).contiguous().numpy() for image in fresh.values()]
            with self._lock:
                texts = self._recognize(arrays) if self.options.lines == "one" else [self._find(array) for array in arrays]
            fresh = dict(zip(fresh, texts, strict=True))
        found = [fresh.get(key, self._read.get(key)) for key in keys]
        for key, text in fresh.items():
            while len(self._read) >= _KEPT:
                self._read.pop(next(iter(self._read)))
            self._read[key] = text
        return found

    def _find(self, array) -> str:
        return " ".join(self._engine(array).txts or ())

    def _recognize(self, arrays) -> list[str]:
        return list(self._engine.recognize_txt(arrays).txts)

    def _plain(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text)
        if self.options.ignore_case:
            text = text.casefold()
        return "".join(text.split()) if self.options.ignore_spaces else " ".join(text.split())


def targets(prompt: str, metadata: Mapping[str, Any]) -> list[str] | str:
    """The texts that the picture should show; or, as one string, why there are none."""
    given = metadata.get("text")
    if given is not None:
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            return f"the metadata's 'text' is {given!r}; allowed: a text, or a list of texts"
        return list(texts)
    found = [next(filter(None, match.groups())) for match in _QUOTED.finditer(prompt)]
    return found or "the prompt has no text in quotation marks, and the metadata no 'text'"


def similarity(target: str, text: str, rule: str) -> float:
    """How well `text` (what was read) shows `target`, 0 to 1, by one of the rules that `OcrOptions` describes."""
    if rule == "whole":
        return 1 - edit_distance(target, text) / max(len(target), len(text), 1)
    if rule == "flow_grpo" and target in text:
        return 1.0
    distance = edit_distance(target, text, anywhere=rule == "anywhere")
    return 1 - min(distance, len(target)) / len(target)


def edit_distance(target: Sequence, text: Sequence, anywhere: bool = False) -> int:
    """Levenshtein's distance; with `anywhere` that to the part of `text` which is nearest to `target` (P. Sellers, 1980)."""
    above = [0] * (len(text) + 1) if anywhere else list(range(len(text) + 1))
    for row, wanted in enumerate(target, start=1):
        here = [row]
        for column, found in enumerate(text, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (wanted != found)))
        above = here
    return min(above) if anywhere else above[-1]


def _make_engine(recognizer: str, device: str, lines: str):
    """A rapidocr engine with the models that lie in its package. By their paths: without, it fetches what it misses."""
    import onnxruntime
    import rapidocr
    import torch

    folder = Path(rapidocr.__file__).parent / "models"
    params: dict[str, Any] = {"Global.log_level": "critical"}
    for part, pattern in _PARTS.items():
        found = sorted(folder.glob(pattern))
        if not found:
            raise UserError(f"rapidocr has no {pattern} in {folder}; install it anew: pip install --force-reinstall rapidocr")
        params[f"{part}.model_path"] = str(found[0])
    if recognizer:
        params["Rec.model_path"] = str(Path(recognizer).expanduser().absolute())
    if lines == "one":  # pictures as wide as they are, not padded to the usual width of a line, and many at once
        params["Rec.rec_img_shape"], params["Rec.rec_batch_num"] = [3, _LINE_HEIGHT, _LINE_HEIGHT], _LINES_AT_ONCE
    params["EngineConfig.onnxruntime.intra_op_num_threads"] = torch.get_num_threads()
    cuda = device.startswith("cuda") and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    params["EngineConfig.onnxruntime.use_cuda"] = cuda
    if cuda:
        params["EngineConfig.onnxruntime.cuda_ep_cfg.device_id"] = torch.device(device).index or 0
    return rapidocr.RapidOCR(params=params)
