"""The ids and position ids of a Transformers model and its tokenizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from attnaudit.errors import ModelError


def require_matching_vocabulary(model: Any, tokenizer: Any, where: object) -> None:
    """Check that the model has an embedding for every id of the tokenizer.

    Raises:
        ModelError: An id is too large for the model's embeddings.
    """
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
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
