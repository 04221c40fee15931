"""Adapters for Hugging Face Transformers models, with every layer and head as an attention site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.adapters.huggingface.checkpoint_format import require_transformers
from attnaudit.errors import ModelError

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
    classes: Sequence[str] | None = None,
    logits: Callable[[Any, Mapping[str, Any]], Any] | None = None,
) -> HuggingFaceAdapter:
    """Make a Transformers model auditable.

    A language model is audited on its prediction of the next token. It needs `labels`. A classifier takes neither
    `labels` nor `template`.

    A float32 model in memory is changed in place. It is put in evaluation mode. If its architecture uses Transformers'
    attention interface, it also computes its attention through attnaudit from then on, which changes its output by
    rounding errors at most. A model in memory in another precision is not changed: the audit uses a float32 copy.

    Args:
        source: A checkpoint folder, or a model in memory. A model in memory may be wrapped by PEFT, torch.compile or
            DataParallel, or be a custom module that contains one Transformers model.
        tokenizer: The tokenizer of a model in memory; ignored for a checkpoint folder.
        labels: Class name -> word that stands for the class, such as `{"positive": " good", "negative": " bad"}`. Each
            word must be a single token. With a single label, there is a second class, "other", for all other tokens.
        template: The prompt of a language model, in which {text} stands for the text and {query}, if present, for the
            query; "{text}" by default.
        max_tokens: Truncate inputs to this many tokens. A lower limit of the model or its tokenizer still applies.
        classes: Class names in the order of the logits, for a classifier in memory whose configuration does not name
            them, such as a custom module around a Transformers model.
        logits: Runs a custom module: called with the module and the inputs (input_ids, attention_mask, ...), it returns
            the logits (B, C). By default, the module is called with the inputs that its forward() names.

    Raises:
        ModelError: The model cannot be loaded, or an argument does not fit it.
        AdapterError: The architecture cannot be audited.
    """
    require_transformers("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder, from_model

    if isinstance(source, str | Path):
        if classes is not None or logits is not None:
            raise ModelError(
                f"transformer({source}): classes and logits are for a model in memory. Write id2label into config.json."
            )
        return from_folder(Path(source), labels=labels, template=template, max_tokens=max_tokens)
    return from_model(
        source, tokenizer, labels=labels, template=template, max_tokens=max_tokens, classes=classes, read_logits=logits
    )
