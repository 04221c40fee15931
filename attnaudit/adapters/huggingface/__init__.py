"""Any Hugging Face Transformer as a model adapter, in all its layers and heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.adapters.huggingface.checkpoint_format import require

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
    """A Transformers model as an adapter.

    source: a checkpoint folder, or a model that is built already, then with its tokenizer. A classifier needs nothing
    more. A language model is audited on the word that it writes next: labels maps class names to words of one token
    each (`{"positive": " good", "negative": " bad"}`); with a single one the classes are "other", every other word, and
    that one. template: the text around the instance, "{text}" by default. max_tokens: cut longer inputs, where that is
    less than the model takes.

    The model is set to compute its attention through attnaudit, which leaves its output as it is. Raises ModelError or
    AdapterError saying what cannot be audited, and the mend.
    """
    require("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder, from_model

    if isinstance(source, str | Path):
        return from_folder(Path(source), labels=labels, template=template, max_tokens=max_tokens)
    return from_model(source, tokenizer, labels=labels, template=template, max_tokens=max_tokens)
