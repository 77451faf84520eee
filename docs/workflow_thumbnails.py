"""Pictures for the template browser: what a workflow made, or the graph itself where it needs models that are not here."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageDraw, ImageFont
from workflow_graph import BLUE, BROWN, FOLDER, GREEN

from tests.comfyui.server import Client

THUMBNAIL = (640, 400)
PAPER, INK, FAINT = "#1d1f24", "#e8e8ea", "#a0a6b0"
BOXES = {BLUE: "#3d5594", GREEN: "#2f7042", BROWN: "#95602c"}  # the page's colours are too dark at this size


def pictures(client: Client, outputs: dict[str, Any], node: str, count: int) -> list[Image.Image]:
    return [Image.fromarray(client.picture(image)) for image in outputs[node]["images"][:count]]


def thumbnail(name: str, rows: list[tuple[str, list[Image.Image]]]) -> None:
    """Rows of pictures, each with a word to its left, as large as fits."""
    width, height = THUMBNAIL
    sheet = Image.new("RGB", THUMBNAIL, PAPER)
    draw, font, left, gap = ImageDraw.Draw(sheet), ImageFont.load_default(20), 110, 8
    columns = max(len(row) for _, row in rows)
    tall = max(picture.height / picture.width for _, row in rows for picture in row)
    cell = int(min((width - left - gap) / columns - gap, ((height - gap) / len(rows) - gap) / tall))
    top = (height - len(rows) * (int(cell * tall) + gap) + gap) // 2
    for number, (word, row) in enumerate(rows):
        y = top + number * (int(cell * tall) + gap)
        draw.multiline_text((left - 12, y + cell * tall / 2), word, INK, font, anchor="rm", align="right")
        for column, picture in enumerate(row):
            size = (cell, round(cell * picture.height / picture.width))
            shown = picture.resize(size, Image.NEAREST if picture.width <= cell else Image.LANCZOS)
            sheet.paste(shown, (left + column * (cell + gap), y))
    sheet.save(FOLDER / f"{name}.jpg", quality=88, optimize=True)


def draw_graph(name: str, workflow: dict[str, Any], heading: str, lines: tuple[str, ...]) -> None:
    """The graph as boxes and links below a heading and some words."""
    width, height = THUMBNAIL
    sheet = Image.new("RGB", THUMBNAIL, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((24, 16), heading, INK, ImageFont.load_default(34))
    draw.multiline_text((24, 62), "\n".join(lines), FAINT, ImageFont.load_default(19), spacing=6)
    nodes = {node["id"]: node for node in workflow["nodes"] if node["type"] != "MarkdownNote"}
    lefts, tops = zip(*(node["pos"] for node in nodes.values()), strict=True)
    rights, bottoms = zip(*((n["pos"][0] + n["size"][0], n["pos"][1] + n["size"][1]) for n in nodes.values()), strict=True)
    top = 76 + 27 * len(lines)
    scale = min((width - 48) / (max(rights) - min(lefts)), (height - top - 20) / (max(bottoms) - min(tops)))
    over = (width - scale * (max(rights) - min(lefts))) / 2

    def place(x: float, y: float) -> tuple[float, float]:
        return over + (x - min(lefts)) * scale, top + (y - min(tops)) * scale

    for _, origin, _, target, _, _ in workflow["links"]:
        one, two = nodes[origin], nodes[target]
        begin = place(one["pos"][0] + one["size"][0], one["pos"][1] + 20)
        draw.line([begin, place(two["pos"][0], two["pos"][1] + 20)], "#5b6270", 1)
    for node in nodes.values():
        (x, y), (w, h) = node["pos"], node["size"]
        draw.rounded_rectangle([place(x, y), place(x + w, y + h)], 3, BOXES.get(node.get("color"), "#4a505c"), "#8a919e")
    sheet.save(FOLDER / f"{name}.jpg", quality=88, optimize=True)
