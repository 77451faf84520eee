"""PickScore and CLIPScore against transformers' own processors and forward pass: an independent computation, the one that their
authors' examples consist of."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from tests.clip_models import TINY, open_clip_state, vocabulary
from tests.pictures import SHAPES, as_batch, save_pictures
from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.clip_pixels import center_crop
from trainer.rewards.clip_text import END, START, clean_like_transformers, read_merges
from trainer.rewards.pretrained import image_processor
from trainer.rewards.towers import clip_from_open_clip, pooled

PROMPTS = ["a red bicycle leaning on a wall", "Two  DOGS\n&amp; a café", "word " * 120, ""]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return save_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A transformers folder with a tiny CLIP, its tokenizer and its image processor, as PickScore_v1 has them."""
    made = tmp_path_factory.mktemp("models") / "PickScore_v1"
    clip = clip_from_open_clip(open_clip_state(), TINY, "tiny", made).float()
    clip.save_pretrained(made)
    vocabulary(made)
    _tokenizer_files(made)
    size = {"shortest_edge": TINY.size}
    crop = {"height": TINY.size, "width": TINY.size}
    processor = {"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, "size": size, "crop_size": crop}
    (made / "preprocessor_config.json").write_text(json.dumps(processor))
    return made


def _tokenizer_files(folder):
    merges = read_merges(folder / "merges.txt")
    from trainer.rewards.clip_text import _byte_letters

    letters = _byte_letters()
    words = [*letters, *(f"{x}</w>" for x in letters), *("".join(p) for p in merges), "<|startoftext|>", "<|endoftext|>"]
    assert words.index("<|startoftext|>") == START and words.index("<|endoftext|>") == END
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": "<|startoftext|>"}
    config |= {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def by_transformers(folder, paths):
    """logits_per_image of every picture and prompt, computed one by one."""
    from transformers import AutoTokenizer, CLIPModel

    clip = CLIPModel.from_pretrained(folder).eval()
    processor, tokenizer = image_processor(folder, "test"), AutoTokenizer.from_pretrained(folder)
    found = {}
    for name, path in paths.items():
        pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt").pixel_values
        for number, prompt in enumerate(PROMPTS):
            text = tokenizer([prompt], padding="max_length", truncation=True, max_length=77, return_tensors="pt")
            with torch.no_grad():
                found[name, number] = float(clip(pixel_values=pixels, **text).logits_per_image)
    return found


@pytest.mark.parametrize("rounding", ["down", "nearest"])
@pytest.mark.parametrize("name", SHAPES)
def test_pixels(paths, folder, name, rounding):
    """`down` as transformers crops; `nearest` differs from it by at most one pixel, and is compared in other files."""
    pixels = center_crop(as_batch(paths[name]), TINY.size, rounding)
    assert pixels.shape == (1, 3, TINY.size, TINY.size)
    if rounding == "down":
        theirs = image_processor(folder, "test")(images=Image.open(paths[name]).convert("RGB"), return_tensors="pt")
        assert (pixels - theirs.pixel_values).abs().max() <= 1e-6


def test_tokens(folder):
    from transformers import AutoTokenizer

    from trainer.rewards.clip_text import load_tokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for prompt, ours in zip(PROMPTS, load_tokenizer(clean_like_transformers, folder)(PROMPTS), strict=True):
        theirs = tokenizer(prompt, truncation=True, max_length=77).input_ids
        assert ours[: len(theirs)].tolist() == theirs and not ours[len(theirs) :].any()


def test_pickscore(folder, paths):
    expected = by_transformers(folder, paths)
    reward = create("pickscore", {"model": str(folder)})
    assert reward.missing() is None
    for name, path in paths.items():
        ours = reward.score(as_batch(path).repeat(len(PROMPTS), 1, 1, 1), PROMPTS, [{}] * len(PROMPTS))
        theirs = torch.tensor([expected[name, n] for n in range(len(PROMPTS))], dtype=torch.float64)
        # The logit scale is about 100, so this is 1e-6 of the cosine.
        assert (ours - theirs).abs().max() <= 1e-4
    spread = torch.tensor(list(expected.values())).std()
    assert spread > 1, "the random model must tell pictures and prompts apart"


@pytest.mark.parametrize(
    ("formula", "of"),
    [("cosine", lambda x: x / 100), ("clipscore", lambda x: 2.5 * max(x / 100, 0)), ("logit", lambda x: x)],
)
def test_clipscore(folder, paths, formula, of):
    expected = by_transformers(folder, paths)
    reward = create("clipscore", {"model": str(folder), "formula": formula})
    scale = float(torch.tensor(4.6052).half().double().exp())
    for name, path in paths.items():
        ours = reward.score(as_batch(path).repeat(len(PROMPTS), 1, 1, 1), PROMPTS, [{}] * len(PROMPTS))
        theirs = torch.tensor([of(expected[name, n] * 100 / scale) for n in range(len(PROMPTS))], dtype=torch.float64)
        theirs = theirs * scale / 100 if formula == "logit" else theirs
        assert (ours - theirs).abs().max() <= (1e-4 if formula == "logit" else 1e-6)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """A tiny SigLIP with a word tokenizer, as transformers saves one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel

    made = tmp_path_factory.mktemp("siglip")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = SiglipConfig(
        text_config={**sizes, "vocab_size": 50, "max_position_embeddings": 16, "projection_size": 32},
        vision_config={**sizes, "image_size": 28, "patch_size": 14},
    )
    SiglipModel(config).save_pretrained(made)
    words = {"<pad>": 0, "<unk>": 1, **{word: n for n, word in enumerate("a red bicycle leaning on wall".split(), 2)}}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>").save_pretrained(made)
    processor = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 28, "width": 28}, "resample": 3}
    (made / "preprocessor_config.json").write_text(json.dumps(processor))
    return made


def test_clipscore_with_siglip(siglip, paths):
    """Prompts are padded to the full length, as SigLIP was trained, and its bias counts."""
    from transformers import AutoTokenizer, SiglipModel

    model, tokenizer = SiglipModel.from_pretrained(siglip).eval(), AutoTokenizer.from_pretrained(siglip)
    reward = create("clipscore", {"model": str(siglip), "formula": "logit"})
    text = tokenizer(PROMPTS[:1], padding="max_length", max_length=16, return_tensors="pt").input_ids
    for path in paths.values():
        pixels = image_processor(siglip, "test")(images=Image.open(path).convert("RGB"), return_tensors="pt").pixel_values
        with torch.no_grad():
            theirs = float(model(pixel_values=pixels, input_ids=text).logits_per_image)
        assert abs(float(reward.score(as_batch(path), PROMPTS[:1], [{}])) - theirs) <= 1e-4


def test_features_of_either_transformers():
    class Output:
        pooler_output = "features"

    assert pooled(Output()) == "features" and pooled("features") == "features"


@pytest.mark.parametrize("name", ["pickscore", "clipscore"])
def test_a_wrong_folder_is_said_in_one_line(folder, tmp_path, name):
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    del state["visual_projection.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError) as caught:
        create(name, {"model": str(tmp_path)}).load("cpu")
    text = str(caught.value)
    assert "lacks visual_projection.weight" in text and str(tmp_path) in text and len(text.splitlines()) == 1
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError) as caught:
        create(name, {"model": str(tmp_path)}).load("cpu")
    assert "can't be loaded" in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_model_without_two_towers_is_said_in_one_line(tmp_path):
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 32}
    ViTModel(ViTConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        create("clipscore", {"model": str(tmp_path)}).load("cpu")
    assert len(str(caught.value).splitlines()) == 1 and str(tmp_path) in str(caught.value)
