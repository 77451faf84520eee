"""A server for the reward `http`, with nothing but Python and Pillow: python http_scorer.py --port 8000

It scores how blue a picture is. Put your own model into `score`.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image


def score(picture: Image.Image, prompt: str, metadata: dict) -> float | None:
    """Higher is better; None where the picture can't be scored."""
    red, green, blue = picture.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    return blue / (red + green + blue + 1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scores = [self._score(item) for item in request["pictures"]]
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._answer(400, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._answer(200, {"scores": scores})

    def _score(self, item: dict) -> float | None:
        with Image.open(io.BytesIO(base64.b64decode(item["image"]))) as picture:
            return score(picture.convert("RGB"), item["prompt"], item["metadata"])

    def _answer(self, status: int, answer: dict) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    with ThreadingHTTPServer((args.host, args.port), Handler) as server:
        print(f"scoring at http://{args.host}:{server.server_port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
