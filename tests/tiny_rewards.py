"""Small random models of transformers' real classes, as folders that rewards load."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trainer.demo import parts as demo_parts

LABELS = ("cat", "dog", "mouse")
_NORMALISED = {
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_resize": True,
    "resample": 2,
}


def _labels(names: tuple[str, ...] = LABELS) -> dict:
    return {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}


def _save(model: torch.nn.Module, folder: Path, processor: dict) -> Path:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**_NORMALISED, **processor}), encoding="utf-8")
    return folder


def make_mask2former_folder(folder: Path) -> Path:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    torch.manual_seed(0)
    backbone = SwinConfig(
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        dim_feedforward=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=4,
        num_queries=8,
        **_labels(),
    )
    size = {"shortest_edge": 64, "longest_edge": 128}
    processor = {"image_processor_type": "Mask2FormerImageProcessor", "size": size, "size_divisor": 32}
    return _save(Mask2FormerForUniversalSegmentation(config), folder, processor)


def make_yolos_folder(folder: Path) -> Path:
    from transformers import YolosConfig, YolosForObjectDetection

    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[64, 64],
        num_detection_tokens=6,
        **_labels(),
    )
    size = {"height": 64, "width": 64}
    return _save(YolosForObjectDetection(config), folder, {"image_processor_type": "YolosImageProcessor", "size": size})


def make_vit_folder(folder: Path, labels: tuple[str, ...] = ("normal", "nsfw")) -> Path:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, **_labels(labels)
    )
    model = ViTForImageClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=0.3)  # else every picture has nearly the same
    return _save(model, folder, {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}})


def make_clip_folder(folder: Path) -> Path:
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    tokenizer = demo_parts.build_tokenizer(0)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "projection_dim": 16}
    text = {
        **small,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": demo_parts.TOKENS,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = CLIPConfig(text_config=text, vision_config={**small, "image_size": 32, "patch_size": 8}, projection_dim=16)
    tokenizer.save_pretrained(folder)
    crop = {"do_center_crop": True, "crop_size": {"height": 32, "width": 32}, "size": {"shortest_edge": 32}}
    return _save(CLIPModel(config), folder, {"image_processor_type": "CLIPImageProcessor", **crop})
