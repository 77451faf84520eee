"""The letters world: words of three capital letters on paper, drawn, captioned and misdescribed.

The letters are twelve that text recognition tells apart without a context (0 and O, 1 and I are not among them). Everything is
a pure function of the `random.Random` that is passed in.
"""

from __future__ import annotations

import random
import zlib
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 64, 32
LETTERS = "ABCDEGLNPRST"
LENGTH = 3
# English words of these letters: what prompts ask for. The base learns from every other string of three letters as well.
WORDS = tuple(
    "ABC ABS ACE ACT ADD ADS AGE ALE ALL AND ANT APE APT ARC ARE ART ASP ATE BAD BAG BAN BAR BAT BED BEE BEG BET CAB CAD CAN "
    "CAP CAR CAT DAB DAD DEN EAR EAT EBB EEL EGG ELL END ERA GAB GAG GAL GAP GAS GEL GET LAB LAC LAD LAG LAP LEA LEE LEG LET "
    "NAB NAG NAN NAP NEE NET PAD PAL PAN PAR PAS PAT PEA PEE PEG PEN PEP PER PET RAG RAN RAP RAT RED REP RES SAC SAD SAG SAL "
    "SAP SAT SEA SEE SET SPA TAB TAD TAG TAN TAP TAR TEA TED TEE TEN".split()
)
INKS = ((20, 20, 20), (200, 30, 30), (30, 60, 200), (20, 130, 60))
PAPER = (245, 245, 245)
WORDINGS = ('the word "{}"', 'write "{}"', 'a sign: "{}"', '"{}"')
_FONT_SIZE = (29.0, 31.0)  # pixels; a letter is then 18 wide
_JITTER = 1.5  # pixels
_SUPERSAMPLE = 4
HELD_OUT_SHARE = 3  # one string in three is held out, from the base's training as well


def held_out(word: str) -> bool:
    return zlib.crc32(word.encode()) % HELD_OUT_SHARE == 0


def prompts(part: str) -> list[dict]:
    """The lines of a prompt file: "train", each word in two wordings, or "evaluate", the held-out words, each in one."""
    rng = random.Random(part)
    words = [word for word in WORDS if held_out(word) == (part == "evaluate")]
    wordings = 1 if part == "evaluate" else 2
    lines = [{"prompt": text.format(word)} for word in words for text in rng.sample(WORDINGS, wordings)]
    rng.shuffle(lines)
    return lines


def sample_word(rng: random.Random) -> str:
    """A string of three letters that is not held out."""
    while True:
        word = "".join(rng.choices(LETTERS, k=LENGTH))
        if not held_out(word):
            return word


def caption(word: str, rng: random.Random) -> str:
    return rng.choice(WORDINGS).format(word)


def corrupt(word: str, rng: random.Random) -> str:
    """The word with one letter misspelt, as a careless caption would; never a word that is held out."""
    while True:
        place = rng.randrange(len(word))
        wrong = word[:place] + rng.choice([letter for letter in LETTERS if letter != word[place]]) + word[place + 1 :]
        if not held_out(wrong):
            return wrong


def draw(word: str, rng: random.Random) -> Image.Image:
    """The word as a 64 x 32 RGB picture, antialiased; ink, place and size are drawn from `rng`."""
    scale = _SUPERSAMPLE
    picture = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), PAPER)
    at = tuple((side / 2 + rng.uniform(-_JITTER, _JITTER)) * scale for side in (WIDTH, HEIGHT))
    font = _font(round(rng.uniform(*_FONT_SIZE) * scale))
    ImageDraw.Draw(picture).text(at, word, font=font, fill=rng.choice(INKS), anchor="mm")
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans Mono Bold, which matplotlib brings along: every letter has its place, wherever the others are narrow."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono-Bold.ttf"), size)
