"""Sample Prompt Group: several outputs for each of several prompts, with ComfyUI's own samplers."""

from __future__ import annotations

import logging

import comfy.samplers
import torch
from comfy_api.latest import io

from ..trainer.errors import UserError, one_line
from . import host
from .checks import one_of
from .prompt_groups import HELD_OUT, NODE, SPLITS, TRAIN, PlannedGroup, batches, check_size, plan_groups
from .values import CATEGORY, GROUP, PROMPTS, Group

log = logging.getLogger("vgrpo.nodes")

SMALLEST_PREVIEW = 128  # pixels; a preview of a small model's latent would be a few dots


class SamplePromptGroup(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VGRPOSamplePromptGroup",
            display_name="Sample Prompt Group",
            category=CATEGORY,
            description=(
                "Makes a group of pictures for each of several prompts, as an iteration of the training would, so that a "
                "reward can be tried on them (Score Group). Works with any MODEL, CLIP and VAE."
            ),
            inputs=[
                io.Model.Input("model", tooltip="The model that makes the pictures, with or without a LoRA."),
                io.Clip.Input("clip", tooltip="The text encoder that reads the prompts."),
                io.Vae.Input("vae", tooltip="The VAE that turns latents into pictures; it belongs to the same model."),
                PROMPTS.Input("prompts", tooltip="The prompts, from a Prompt Set."),
                io.Combo.Input(
                    "split",
                    options=list(SPLITS),
                    default=TRAIN,
                    tooltip="train: the prompts that a training learns from. held-out: those that it is only judged on.",
                ),
                io.Int.Input(
                    "prompt_count",
                    default=4,
                    min=0,
                    max=65536,
                    tooltip="How many prompts, one group each, from first_prompt on. 0 = all that follow.",
                ),
                io.Int.Input(
                    "group_size",
                    default=8,
                    min=1,
                    max=1024,
                    tooltip="Pictures a prompt. Rewards are compared within a group, so 1 has nothing to compare; trainings "
                    "use 16 to 24.",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=0xFFFFFFFFFFFFFFFF,
                    control_after_generate=True,
                    tooltip="Every picture gets its own noise, derived from this seed, its prompt's place in the list and its "
                    "number in the group; batch_size does not matter.",
                ),
                io.Combo.Input(
                    "sampler",
                    options=list(comfy.samplers.KSampler.SAMPLERS),
                    default="euler",
                    tooltip="ComfyUI's sampler. Those that add noise on the way (ancestral, sde, lcm) make one picture at a "
                    "time.",
                ),
                io.Combo.Input(
                    "scheduler",
                    options=list(comfy.samplers.KSampler.SCHEDULERS),
                    default="simple",
                    tooltip="Which noise levels the sampler visits. simple is what the trainer does for SD3 and FLUX.",
                ),
                io.Int.Input("steps", default=20, min=1, max=1000, tooltip="Sampling steps a picture. The embedded model: 4."),
                io.Float.Input(
                    "cfg",
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                    tooltip="Classifier-free guidance. 1 = off, as in trainings and for the embedded model and FLUX; SD1.5 and "
                    "SDXL need about 5 to 8 for good pictures.",
                ),
                io.Int.Input("width", default=512, min=16, max=16384, step=8, tooltip="Pixels. The embedded model: 64."),
                io.Int.Input("height", default=512, min=16, max=16384, step=8, tooltip="Pixels. The embedded model: 64."),
                io.Int.Input(
                    "batch_size",
                    default=8,
                    min=1,
                    max=1024,
                    tooltip="Pictures of one prompt that are made at once. Changes memory and speed only; 1 needs the least "
                    "memory.",
                ),
                io.Int.Input(
                    "first_prompt",
                    default=1,
                    min=1,
                    max=1000000,
                    optional=True,
                    tooltip="The number of the first prompt taken, counted from 1.",
                ),
                io.String.Input(
                    "negative",
                    default="",
                    multiline=True,
                    dynamic_prompts=False,
                    optional=True,
                    tooltip="What the pictures should not show; the same for all. Only used where cfg is not 1.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="images", tooltip="All pictures, ordered by prompt, then member."),
                GROUP.Output(display_name="group", tooltip="The same pictures with their prompts and seeds, for Score Group."),
            ],
        )

    @classmethod
    def execute(
        cls, model, clip, vae, prompts, split, prompt_count, group_size, seed, sampler, scheduler, steps, cfg, width, height,
        batch_size, first_prompt=1, negative="",
    ) -> io.NodeOutput:  # fmt: skip
        one_of(NODE, "sampler", sampler, comfy.samplers.KSampler.SAMPLERS)
        one_of(NODE, "scheduler", scheduler, comfy.samplers.KSampler.SCHEDULERS)
        chosen = prompts.evaluate if split == HELD_OUT else prompts.train
        groups = plan_groups(chosen, split, first_prompt, prompt_count, group_size, seed)
        empty = empty_latent(model, vae, width, height)
        parts = [batches(group.seeds, sampler, batch_size) for group in groups]
        outputs = len(groups) * group_size
        progress = host.progress(steps * sum(map(len, parts)) + outputs)
        positives, nothing = _encode(clip, [group.prompt.text for group in groups], negative)
        latents = []
        preview = Previewer(model)
        for positive, seed_batches in zip(positives, parts, strict=True):
            for seeds in seed_batches:
                step = _Step(progress, preview, steps, begin=steps * len(latents))
                latents.append(sample(model, empty, seeds, positive, nothing, sampler, scheduler, steps, cfg, step))
        images = _decode(vae, latents, progress, steps * len(latents))
        if broken := int((~images.isfinite()).flatten(1).any(1).sum()):
            raise UserError(
                f"{NODE}: {broken} of {len(images)} pictures hold NaN or infinite pixels; "
                "start ComfyUI with --fp32-vae, or lower cfg"
            )
        return io.NodeOutput(images, as_group(groups, images))


def as_group(groups: tuple[PlannedGroup, ...], images: torch.Tensor) -> Group:
    """The pictures [B, H, W, 3] of all groups, in their order, with what belongs to each."""
    owners = [number for number, group in enumerate(groups) for _ in group.seeds]
    return Group(
        images=images,
        prompts=tuple(groups[owner].prompt for owner in owners),
        prompt_index=tuple(owners),
        seeds=tuple(seed for group in groups for seed in group.seeds),
    )


def empty_latent(model, vae, width: int, height: int) -> torch.Tensor:
    """A latent of zeros [1, C, h, w] (or with a time axis) in the model's own format. UserError if the parts do not fit."""
    import comfy.sample

    latent_format = model.get_model_object("latent_format")
    channels = latent_format.latent_channels
    decodes = getattr(vae, "latent_channels", channels)
    if latent_format.latent_dimensions == 2 and decodes != channels:
        raise UserError(
            f"{NODE}: the model makes latents of {channels} channels, but this VAE decodes {decodes}; use the model's own VAE"
        )
    ratio = int(vae.spacial_compression_encode())
    w, h = check_size(width, height, ratio, _largest_side(model, ratio))
    return comfy.sample.fix_empty_latent_channels(model, torch.zeros(1, channels, h, w))


def _largest_side(model, ratio: int) -> int | None:
    """SD3 has a table of positions that ends somewhere; others take any size."""
    network = model.get_model_object("diffusion_model")
    places = getattr(network, "pos_embed_max_size", None)
    if getattr(network, "pos_embed", None) is None or not isinstance(places, int):
        return None
    return places * int(getattr(network, "patch_size", None) or 1) * ratio


def sample(model, empty, seeds, positive, negative, sampler, scheduler, steps, cfg, callback) -> torch.Tensor:
    """Finished latents, one a seed; each starts from the noise that KSampler makes of that seed for a batch of one."""
    import comfy.sample

    noise = torch.cat([comfy.sample.prepare_noise(empty, seed) for seed in seeds])
    return comfy.sample.sample(
        model, noise, steps, cfg, sampler, scheduler, positive, negative, empty.expand_as(noise).clone(),
        callback=callback, disable_pbar=True, seed=seeds[0],
    )  # fmt: skip


class _Step:
    """The sampler's callback: progress, preview, Cancel."""

    def __init__(self, progress, preview, steps: int, begin: int) -> None:
        self.progress, self.preview, self.steps, self.begin = progress, preview, steps, begin

    def __call__(self, step, x0, x, total_steps) -> None:
        host.raise_if_cancelled()
        done = self.begin + round(self.steps * (step + 1) / max(1, total_steps))
        self.progress.update_absolute(done, preview=self.preview(x0))


class Previewer:
    """A rough picture of the first unfinished output, as the user's preview method makes it, else by the format's colours."""

    def __init__(self, model) -> None:
        self.previewer = None
        try:
            import latent_preview

            latent_format = model.get_model_object("latent_format")
            self.previewer = latent_preview.get_previewer(model.load_device, latent_format)
            if self.previewer is None and latent_format.latent_rgb_factors is not None:
                self.previewer = latent_preview.Latent2RGBPreviewer(
                    latent_format.latent_rgb_factors,
                    getattr(latent_format, "latent_rgb_factors_bias", None),
                    getattr(latent_format, "latent_rgb_factors_reshape", None),
                )
        except Exception as error:
            self._give_up(error)

    def __call__(self, x0):
        if self.previewer is None:
            return None
        try:
            return enlarge(self.previewer.decode_latent_to_preview(x0))
        except Exception as error:
            return self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        # Pictures are worth more than their previews.
        self.previewer = None
        log.warning("V-GRPO: no previews: %s", one_line(error))


def enlarge(picture):
    """A small Pillow picture by a whole factor to at least SMALLEST_PREVIEW pixels; None stays None."""
    if picture is None or max(picture.size) >= SMALLEST_PREVIEW:
        return picture
    factor = -(-SMALLEST_PREVIEW // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), 0)


def _encode(clip, texts: list[str], negative: str):
    """Conditionings of all prompts and of the negative one, before sampling, so that the encoder is loaded once."""
    encoded = []
    for text in [*texts, negative]:
        host.raise_if_cancelled()
        encoded.append(clip.encode_from_tokens_scheduled(clip.tokenize(text)))
    return encoded[:-1], encoded[-1]


def _decode(vae, latents: list[torch.Tensor], progress, begin: int) -> torch.Tensor:
    """float[B, H, W, 3] in [0, 1] on the CPU."""
    pictures = []
    for part in latents:
        host.raise_if_cancelled()
        images = vae.decode(part)
        if images.ndim == 5:  # a video VAE: one frame each
            images = images.reshape(-1, *images.shape[-3:])
        pictures.append(images[..., :3].float().clamp(0, 1).cpu())
        begin += len(part)
        progress.update_absolute(begin)
    return torch.cat(pictures)


NODES: list[type[io.ComfyNode]] = [SamplePromptGroup]
