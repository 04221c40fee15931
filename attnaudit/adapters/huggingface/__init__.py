"""Adapters for Hugging Face Transformers models. An audit can read the attention of every layer and head.

Each folder says in its first lines what belongs there. All folders use `forward_hooks`, `half_precision` and
`wrapped_models`. `transformer_adapter` and `build` join the folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.adapters.huggingface.checkpoint_format import require_transformers
from attnaudit.errors import ModelError
from attnaudit.targets import Target

if TYPE_CHECKING:
    from attnaudit.adapters.donors import InDistribution
    from attnaudit.adapters.huggingface.precision_choice import Precision
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
    target: Target | None = None,
    query_first: bool | None = None,
    erased: str | InDistribution | None = None,
    precision: Precision | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter for a Transformers model, so that it can be audited.

    A language model needs either `labels` or `target`. With `labels`, it is audited on its prediction of the next
    token; with `target`, on the probability of a string. A classifier takes neither `labels` nor `template`.

    A model in memory is changed in place. It is put in evaluation mode. If its architecture uses Transformers'
    attention interface, attnaudit's attention function replaces the function that the model used before. This changes
    the output by rounding errors at most. If a float32 copy of the model is audited (see `precision`), the model itself
    does not change.

    Args:
        source: A checkpoint folder, or a model in memory. A model in memory may be wrapped by PEFT, torch.compile or
            DataParallel, or be a custom module that contains one Transformers model.
        tokenizer: The tokenizer of a model in memory, its image processor if it classifies pictures, or its feature
            extractor if it classifies recordings; ignored for a checkpoint folder.
        labels: Class name -> word that stands for the class, such as `{"positive": " good", "negative": " bad"}`. Each
            word must be a single token. With a single label, a second class named "other" stands for all other tokens.
        template: The prompt of a language model, in which {text} stands for the text and {query}, if present, for the
            query; "{text}" by default. If the target is a string, {answer} stands for it: "{text} {answer}" by default
            for a causal model. A masked model without {answer} in its template fills the mask token in the text.
        max_tokens: Truncate inputs to this many tokens. A lower limit of the model or its tokenizer still applies.
        classes: Class names of a classifier in memory, in the order of the logits. A custom module around a
            Transformers model needs them. By default, the names come from `id2label` in the model's configuration.
        logits: Function that runs a custom module. It is called with the module and the inputs (input_ids,
            attention_mask, ...), and returns the logits (B, C). For a tagger, it returns the logits (B, T, C) of all
            tokens. If the target is a span, it returns the pair of the start and end logits, each (B, T). By default,
            the module is called with the inputs that its forward() accepts.
        target: What is explained, such as `Target(kind="label", name="toxic")`. By default, the class of a classifier
            or of the next token, the tag of a word, or the span that answers the query.
        query_first: Whether the model reads the query before the text. By default, it does so only if the target is a
            span. A score with a query needs this argument.
        erased: What replaces an erased patch or frame: "typical" for the most typical patch of the picture, "mean" for
            the mean of the picture or the recording, "mask" for the mask embedding of the model, or an `InDistribution`
            for units of other rows. None for "typical" if the model reads pictures, and for "mean" if it reads
            recordings. Only for models that read pictures or recordings.
        precision: How a model in float16 or bfloat16 is audited: "shipped" in its own precision, "float32" as a float32
            copy. By default, it is audited in its own precision, or as a float32 copy if it reads pictures or does not
            use Transformers' attention interface.

    Raises:
        ModelError: The model cannot be loaded, or an argument does not fit it.
        AdapterError: The architecture cannot be audited.
    """
    require_transformers("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder, from_model

    if isinstance(source, str | Path):
        if classes is not None or logits is not None:
            raise ModelError(
                f"transformer({source}): the arguments classes and logits are only for a model in memory. Remove them, "
                "and write the class names to id2label in config.json."
            )
        return from_folder(
            Path(source),
            labels=labels,
            template=template,
            max_tokens=max_tokens,
            target=target,
            query_first=query_first,
            erased=erased,
            precision=precision,
        )
    return from_model(
        source,
        tokenizer,
        labels=labels,
        template=template,
        max_tokens=max_tokens,
        classes=classes,
        read_logits=logits,
        target=target,
        query_first=query_first,
        erased=erased,
        precision=precision,
    )
