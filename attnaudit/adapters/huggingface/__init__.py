"""Adapters for Hugging Face Transformers models, with every layer and head as an attention site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.adapters.huggingface.checkpoint_format import require_transformers

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

__all__ = ["transformer"]


def transformer(
    source: Any,
    tokenizer: Any = None,
    *,
    labels: Mapping[str, str] | None = None,
    template: str | None = None,
    max_tokens: int | None = None,
) -> HuggingFaceAdapter:
    """Make a Transformers model auditable.

    A classifier takes neither `labels` nor `template`. A language model is audited on its prediction of the next token,
    and needs `labels`. A float32 model in memory is changed in place: it is put in evaluation mode and, if its
    architecture supports it, computes its attention through attnaudit, which changes its output by rounding at most. A
    model in memory in another precision is copied to float32 first.

    Args:
        source: A checkpoint folder, or a model in memory.
        tokenizer: The tokenizer of a model in memory; ignored for a checkpoint folder.
        labels: Class name -> word that the model may write, each a single token, such as
            `{"positive": " good", "negative": " bad"}`. With a single label, the classes are "other" (every other
            token) and that label.
        template: The text around an instance of a language model; "{text}" by default.
        max_tokens: Truncate inputs to this many tokens. A lower limit of the model or its tokenizer still applies.

    Raises:
        ModelError, AdapterError: The model cannot be audited; the message gives the reason and the fix.
    """
    require_transformers("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder, from_model

    if isinstance(source, str | Path):
        return from_folder(Path(source), labels=labels, template=template, max_tokens=max_tokens)
    return from_model(source, tokenizer, labels=labels, template=template, max_tokens=max_tokens)
