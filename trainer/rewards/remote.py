"""What rewards behind an address share: their options, pictures as text, and what became of the requests."""

from __future__ import annotations

import base64
import io
import os
import re
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from ..errors import UserError
from .base import Reward, RewardOptions
from .endpoint import Answers, Endpoint, Failed, unreachable, url_problem

if TYPE_CHECKING:
    import torch


_KEY = re.compile(r"VGRPO_KEY[A-Z0-9_]*")


class RemoteOptions(RewardOptions):
    url: str = Field("", description="address of the server; the pictures and prompts are sent there")
    parallel: int = Field(8, ge=1, le=256, description="requests on their way at once")
    timeout_s: float = Field(60.0, gt=0, le=3600, description="seconds for one attempt as a whole")
    retries: int = Field(
        3,
        ge=0,
        le=20,
        description="further attempts after a time-out, a broken connection, a server error or an unusable answer; the wait "
        "before each doubles from half a second",
    )
    key_variable: str = Field(
        "",
        description="environment variable with the server's key, which is sent as a bearer token. Its name starts with "
        "VGRPO_KEY, so that no stranger's workflow can send another secret away; empty = none",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if problem := url_problem(value):
            raise ValueError(problem)
        return value

    @field_validator("key_variable")
    @classmethod
    def _check_key(cls, value: str) -> str:
        if value and not _KEY.fullmatch(value):
            raise ValueError("allowed: a name that starts with VGRPO_KEY, such as VGRPO_KEY_JUDGE, or nothing")
        return value


class RemoteReward(Reward):
    """A reward that asks a server. What the newest `score` met is told by `counts` and `trouble`."""

    Options = RemoteOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._endpoint: Endpoint | None = None
        self._answers: Answers = Answers([])

    def missing(self):
        own = self.options
        if not own.url:
            return f"no address is given; set 'url' of {self.name}, such as http://127.0.0.1:8000"
        if own.key_variable and not os.environ.get(own.key_variable):
            return f"the environment variable {own.key_variable} is not set, which 'key_variable' of {self.name} names"
        return super().missing()

    def load(self, device="cpu", dtype=None):
        """Only a look whether the server is there, so that a wrong address is told before hours of rollouts."""
        if problem := unreachable(self.options.url):
            raise UserError(f"{problem}; start the server, or correct 'url' of {self.name}")

    def interrupt(self):
        if self._endpoint is not None:
            self._endpoint.interrupt()

    def counts(self):
        return {kind: float(number) for kind, number in sorted(self._answers.counts.items())}

    def trouble(self):
        return self._answers.trouble()

    def address(self) -> str:
        """Where requests go."""
        return self.options.url

    def ask(self, bodies, read) -> list[Any]:
        """The answers as `Endpoint.post` has them, None for each that failed."""
        if self._endpoint is None:
            own = self.options
            key = os.environ.get(own.key_variable, "") if own.key_variable else ""
            self._endpoint = Endpoint(
                self.address(), timeout_s=own.timeout_s, retries=own.retries, parallel=own.parallel, key=key
            )
        self._answers = self._endpoint.post(bodies, read)
        return [None if isinstance(item, Failed) else item for item in self._answers.items]


def as_png(picture: torch.Tensor) -> bytes:
    """uint8[H, W, 3] as a PNG file, without loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.contiguous().numpy()).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def as_base64(picture: torch.Tensor) -> str:
    return base64.b64encode(as_png(picture)).decode("ascii")


def is_number(value: Any) -> bool:
    """A JSON number (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)
