"""ImageReward against the authors' own code (image-reward 1.5) on random weights: true widths and heads, fewer layers.

Their code imports functions that transformers has moved or removed since; the process that runs it puts those back. None of
them computes anything that is compared here, but for the mask of the picture's tokens, which is all ones.
"""

from __future__ import annotations

import pytest
import torch

from tests.authors import by_authors
from tests.pictures import SHAPES, as_batch, save_pictures
from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.imagereward_model import BLIP_LARGE, BlipShape, bert_tokenizer, load_model

SHAPE = BlipShape(picture_layers=2, text_layers=3)
PROMPTS = ["a red bicycle leaning on a wall", "Zwei Hunde, ein CAFÉ!", "word " * 60, ""]
WORDS = "a red bicycle leaning on wall zwei hunde , ein cafe ! word ##s".split()

AUTHORS = """
import types, json, importlib.util
from pathlib import Path
import transformers, transformers.modeling_utils as utils, transformers.pytorch_utils as old
from PIL import Image

utils.apply_chunking_to_forward = old.apply_chunking_to_forward
utils.find_pruneable_heads_and_indices = utils.prune_linear_layer = None
files = types.ModuleType("transformers.file_utils")
files.ModelOutput = transformers.utils.ModelOutput
sys.modules["transformers.file_utils"] = files
utils.PreTrainedModel.get_head_mask = lambda self, mask, layers: [None] * layers
utils.PreTrainedModel.invert_attention_mask = lambda self, mask: (1.0 - mask[:, None, None, :].float()) * -10000.0
for name in ("fairscale", "fairscale.nn", "fairscale.nn.checkpoint", "fairscale.nn.checkpoint.checkpoint_activations"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[name].checkpoint_wrapper = None  # saves memory in training
transformers.BertTokenizer.from_pretrained = classmethod(lambda cls, _: transformers.BertTokenizer(vocabulary))

# Packages without their __init__, which imports trainers and datasets.
place = Path(importlib.util.find_spec("ImageReward").submodule_search_locations[0])
for name, folder in (("ImageReward", place), ("ImageReward.models", place / "models")):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
import ImageReward.models.BLIP.blip as blip
import ImageReward.models.BLIP.blip_pretrain as pretrain
import ImageReward.models.BLIP.med as med
from ImageReward.models.BLIP.vit import VisionTransformer

med.BertPreTrainedModel.init_weights = lambda self: None  # of an older transformers; all weights are drawn below

def init_tokenizer():
    tokenizer = transformers.BertTokenizer(vocabulary)
    tokenizer.add_special_tokens({"bos_token": "[DEC]"})
    return tokenizer

pretrain.init_tokenizer = init_tokenizer
pretrain.create_vit = lambda *_: (
    VisionTransformer(img_size=224, patch_size=16, embed_dim=1024, depth=layers[0], num_heads=16), 1024
)
config = {
    "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": layers[1],
    "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30524, "encoder_width": 768, "add_cross_attention": True,
}
Path("med_config.json").write_text(json.dumps(config))
from ImageReward.ImageReward import ImageReward

torch.manual_seed(0)
model = ImageReward("med_config.json").eval()
for name, parameter in model.named_parameters():
    if parameter.ndim > 1:
        torch.nn.init.normal_(parameter, std=0.05)
torch.save(model.state_dict(), weights)
with torch.no_grad():
    answer["scores"] = {
        number: {name: model.score(prompt, Image.open(path).convert("RGB")) for name, path in pictures.items()}
        for number, prompt in enumerate(prompts)
    }
tokens = model.blip.tokenizer(prompts, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
answer["tokens"], answer["mask"] = tokens.input_ids, tokens.attention_mask
answer["pixels"] = {name: model.preprocess(Image.open(path).convert("RGB")) for name, path in pictures.items()}
"""


@pytest.fixture(scope="module")
def authors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagereward")
    bert = folder / "bert-base-uncased"
    bert.mkdir()
    special = ["[PAD]", *(f"[unused{n}]" for n in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    (bert / "vocab.txt").write_text(
        "\n".join([*special, *WORDS, *(f"##{x}" for x in letters), *letters]) + "\n", encoding="utf-8"
    )
    pictures, weights = save_pictures(folder), folder / "ImageReward.pt"
    layers = [SHAPE.picture_layers, SHAPE.text_layers]
    common = {"pictures": pictures, "prompts": PROMPTS, "weights": str(weights), "vocabulary": str(bert / "vocab.txt")}
    return {**by_authors(folder, AUTHORS, layers=layers, **common), "paths": pictures, "folder": folder}


@pytest.fixture
def reward(authors, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(authors["folder"]))
    monkeypatch.setattr(
        "trainer.rewards.imagereward_model.load_model", lambda file, path, words: load_model(file, path, words, SHAPE)
    )
    return create("imagereward", {"batch_size": 3})


def test_the_true_sizes():
    assert vars(BLIP_LARGE) == {**vars(SHAPE), "picture_layers": 24, "text_layers": 12}


def test_pixels(authors, reward):
    for name, path in authors["paths"].items():
        assert (reward.module().pixels(as_batch(path))[0] - authors["pixels"][name]).abs().max() <= 1e-6


def test_tokens(authors, reward):
    ids, mask = reward.module().tokens(PROMPTS)
    assert ids.tolist() == authors["tokens"].tolist() and mask.tolist() == authors["mask"].tolist()


def test_scores(authors, reward):
    assert reward.missing() is None
    theirs = torch.tensor([[authors["scores"][n][name] for name in SHAPES] for n in range(len(PROMPTS))])
    ours = torch.stack(
        [torch.cat([reward.score(as_batch(authors["paths"][name]), [prompt], [{}]) for name in SHAPES]) for prompt in PROMPTS]
    )
    assert min(theirs.std(0).min(), theirs.std(1).min()) > 1e-3, "the random model must tell pictures and prompts apart"
    assert (ours - theirs).abs().max() <= 1e-6 * max(1.0, float(theirs.abs().max()))


def test_a_batch_of_several_prompts(authors, reward):
    pictures = as_batch(authors["paths"]["landscape"]).repeat(5, 1, 1, 1)
    order = [0, 1, 2, 1, 0]
    scores = reward.score(pictures, [PROMPTS[n] for n in order], [{}] * 5)
    theirs = torch.tensor([authors["scores"][n]["landscape"] for n in order])
    assert (scores - theirs).abs().max() <= 1e-5


def test_what_is_missing_is_named(authors, reward, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.rewards.weights._cached", lambda *_: None)
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    assert "ImageReward: ImageReward.pt is missing" in reward.missing()
    text = create("imagereward", {"model": str(authors["folder"] / "ImageReward.pt")}).missing()
    assert "BERT's vocabulary" in text and "bert-base-uncased" in text and len(text.splitlines()) == 1


@pytest.mark.parametrize(("content", "part"), [(b"\xff\xfe", "can't be read"), (b"a\nb\n", "lacks [PAD], [UNK], [CLS], [SEP]")])
def test_a_wrong_vocabulary_is_said_in_one_line(tmp_path, content, part):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError) as caught:
        bert_tokenizer(tmp_path / "vocab.txt")
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1
