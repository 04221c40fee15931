"""The ids, the position ids and the longest input of a Transformers model and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from attnaudit.errors import ModelError

#: A tokenizer without a limit reports a limit of at least this many tokens.
UNLIMITED = 10**6


def require_matching_vocabulary(model: Any, tokenizer: Any, where: object) -> None:
    """Check that the model has an embedding for every id of the tokenizer.

    Raises:
        ModelError: An id is too large for the model's embeddings.
    """
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # Transformers cannot tell where the embeddings are, so there is no size to compare
        size = None
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if size is not None and highest >= size:
        raise ModelError(
            f"{where}: the tokenizer gives ids up to {highest}, but the model has only {size} embeddings. Save the "
            "model's own tokenizer to the folder."
        )


def choose_pad_id(model: Any, tokenizer: Any) -> int:
    """Choose the id that fills padding, and store it in the model's config, from which classifiers read it.

    Many classifiers skip this id at the end of a text. If the config names no id, the model alone skips none. The
    token that the tokenizer adds at the end of texts is therefore not chosen then.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is not None and 0 <= int(config.pad_token_id) < int(config.vocab_size):
        return int(config.pad_token_id)
    end = config.eos_token_id
    candidates = [tokenizer.pad_token_id, *(end if isinstance(end, list) else [end]), 0, 1]
    possible = [int(c) for c in candidates if c is not None and 0 <= int(c) < int(config.vocab_size)]
    added = tokenizer("a")["input_ids"][-1:] if config.pad_token_id is None else []
    config.pad_token_id = next(c for c in possible if c not in added)
    return int(config.pad_token_id)


def position_offset(model: nn.Module) -> int:
    """Return the number of position ids that a model reserves for padding, as RoBERTa does; 0 for most models."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def longest_input(tokenizer: Any, config: Any, position_offset: int) -> int | None:
    """Return the longest input that the model and the tokenizer take, in tokens, including special tokens.

    The result is None if neither has a limit.

    Args:
        tokenizer: The tokenizer.
        config: The config of the model.
        position_offset: Number of position ids that the model reserves for padding.
    """
    limits = []
    model_max_length = getattr(tokenizer, "model_max_length", None)
    if isinstance(model_max_length, int) and 0 < model_max_length < UNLIMITED:
        limits.append(model_max_length)
    # Some models keep the settings of the part that reads texts in a config of its own.
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "encoder"))):
        for name in ("max_position_embeddings", "max_seq_len"):
            positions = getattr(part, name, None)
            if isinstance(positions, int) and positions > position_offset:
                limits.append(positions - position_offset)
        # Longer texts change the results of all texts in their batch: with longrope their rotary embeddings, and with a
        # window of kept keys, as in Doge, the keys that each query attends to.
        rope, kept = getattr(part, "rope_parameters", None), getattr(part, "keep_window_size", None)
        if isinstance(rope, Mapping) and rope.get("rope_type") == "longrope":
            limits.append(rope["original_max_position_embeddings"])
        if isinstance(kept, int):
            limits.append(kept)
    return min(limits, default=None)
