"""A tokenizer for bases whose own is not here: as many tokens as a prompt usually has, and no meaning."""

from __future__ import annotations

from typing import Any

LETTERS_A_TOKEN = 4  # of English text in byte-pair vocabularies, roughly; prompts of fixed length don't depend on it
_CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"


def stand_in(limit: int) -> Any:
    """A transformers tokenizer that cuts text into pieces of four letters; at most `limit` tokens where it is asked to cut."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<end>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"[\\s\\S]{{1,{LETTERS_A_TOKEN}}}"), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", eos_token="<end>", model_max_length=limit
    )
    tokenizer.chat_template = _CHAT
    return tokenizer
