"""From a checkpoint folder, or a model that has been built already, to an adapter."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnaudit.adapters.huggingface import attention_interface, checkpoint_files, language_model_settings
from attnaudit.adapters.huggingface.decoder_inputs import Decoding
from attnaudit.adapters.huggingface.kernels import Interface, Kernel, Shipped
from attnaudit.adapters.huggingface.output_heads import Classifier, Head, NextToken, label_words
from attnaudit.adapters.huggingface.softmax_hook import Fallback
from attnaudit.adapters.huggingface.tokenization import Reader, check_template, longest
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter, Parts
from attnaudit.errors import AdapterError, AuditError, ModelError

#: Kernels that run on any machine; a checkpoint that asks for another is compared with the first.
_ANYWHERE = ("sdpa", "eager")


def from_folder(
    folder: Path, *, labels: Mapping[str, str] | None = None, template: str | None = None, max_tokens: int | None = None
) -> HuggingFaceAdapter:
    """As `attnaudit.adapters.huggingface.transformer`."""
    checkpoint = checkpoint_files.examine(folder)
    tokenizer = checkpoint_files.read_tokenizer(checkpoint.folder)
    note, wanted = "", None
    if checkpoint.requested and checkpoint.requested not in _ANYWHERE:
        note, wanted = f"{checkpoint.requested}, which the checkpoint asks for, is not compared", _ANYWHERE[0]
    model = checkpoint_files.read_model(checkpoint, torch.float32, wanted)
    own = attention_interface.implementation(model)
    shipped = Shipped(
        implementation=own,
        dtype=checkpoint.dtype,
        again=lambda dtype, implementation: checkpoint_files.read_model(checkpoint, dtype, implementation),
        note=note,
    )
    if not attention_interface.honoured(model) and own != "eager":
        model = checkpoint_files.read_model(checkpoint, torch.float32, "eager")
    return _built(
        model,
        tokenizer,
        checkpoint.task,
        shipped,
        labels=labels,
        template=template,
        max_tokens=max_tokens,
        where=folder,
    )


def from_model(
    model: Any,
    tokenizer: Any,
    *,
    labels: Mapping[str, str] | None = None,
    template: str | None = None,
    max_tokens: int | None = None,
) -> HuggingFaceAdapter:
    """As `attnaudit.adapters.huggingface.transformer`."""
    name = type(model).__name__
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ModelError(
            f"transformer({name}): expected a checkpoint folder, or a Transformers model with its tokenizer."
        )
    if tokenizer is None:
        raise ModelError(
            f"transformer({name}): a model that is built already needs its tokenizer as the second argument."
        )
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None) is not None:
        raise ModelError(f"{name}: the model is quantised, and attention is audited in float32. Give it unquantised.")
    places = {str(p.device) for p in model.parameters()}
    if len(places) != 1 or "meta" in places or len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise ModelError(
            f"{name}: its weights are spread over {', '.join(sorted(places))}. Load it on one device, without "
            "device_map."
        )
    own, dtype = attention_interface.implementation(model), next(model.parameters()).dtype
    note = ""
    if own not in _ANYWHERE:
        note, own = f"{own}, which the model uses, is not compared", _ANYWHERE[0]
    if not attention_interface.honoured(model) and own != "eager":
        raise ModelError(
            f"{name}: its attention can be seen in its eager form only. Build it with attn_implementation='eager'."
        )
    original = model
    if dtype != torch.float32:
        model = copy.deepcopy(model).float()
    shipped = Shipped(
        implementation=own,
        dtype=dtype,
        again=None if original is model else lambda wanted, _i: copy.deepcopy(original).to(wanted),
        note=note,
    )
    bases = [c.__name__ for c in type(model).__mro__]
    task = "classifier" if labels is None else "encoder-decoder" if model.config.is_encoder_decoder else "causal"
    for base in bases:
        try:
            task = checkpoint_files.task_of(name, base)
            break
        except ModelError:
            continue
    return _built(model, tokenizer, task, shipped, labels=labels, template=template, max_tokens=max_tokens, where=name)


def _built(
    model: Any,
    tokenizer: Any,
    task: str,
    shipped: Shipped,
    *,
    labels: Mapping[str, str] | None,
    template: str | None,
    max_tokens: int | None,
    where: object,
) -> HuggingFaceAdapter:
    if getattr(model.config, "attention_type", None) == "block_sparse":
        raise ModelError(
            f"{where}: the model attends to blocks in long texts and to all tokens in short ones, so its weights are "
            "not of one kind. Audit it with attention_type 'original_full' in config.json, if that is how it is used."
        )
    head = _head(model, tokenizer, task, labels, template, where)
    _fits(model, tokenizer, where)
    kernel: Kernel = Fallback()
    if attention_interface.honoured(model):
        attention_interface.register()
        model.set_attn_implementation(attention_interface.NAME)
        kernel = Interface()
    offset = _offset(model)
    limit = longest(tokenizer, model.config, offset)
    if max_tokens is not None:
        limit = max_tokens if limit is None else min(limit, max_tokens)
    if task != "classifier" and template is None:
        template = "{text}"
    if template is not None:
        check_template(template)
    parts = Parts(
        model=model,
        tokenizer=tokenizer,
        head=head,
        reader=Reader(tokenizer, limit=limit, template=template),
        kernel=kernel,
        shipped=shipped,
        pad_id=_padding(model, tokenizer),
        decoding=Decoding(model.config, writes=task != "classifier") if model.config.is_encoder_decoder else None,
        offset=offset,
    )
    try:
        return HuggingFaceAdapter(parts)
    except AuditError:
        raise
    except Exception as error:
        raise AdapterError(
            f"{where}: the model cannot be run on made-up tokens as it would be in an audit "
            f"({type(error).__name__}: {checkpoint_files.first_line(error)}). The architecture is not audited."
        ) from error


def _head(
    model: Any, tokenizer: Any, task: str, labels: Mapping[str, str] | None, template: str | None, where: object
) -> Head:
    if task != "classifier":
        if not labels:
            raise ModelError(
                f"{where}: {type(model).__name__} is a language model, and is audited on the word it writes next. Say "
                f"which words stand for the classes, in a file {language_model_settings.FILE} in the folder:\n"
                f"{language_model_settings.EXAMPLE}"
            )
        return NextToken(label_words(tokenizer, labels))
    if labels is not None or template is not None:
        raise ModelError(
            f"{where}: labels and template are for language models, and {type(model).__name__} is a classifier. Leave "
            "them out; its classes are those of id2label in config.json."
        )
    config = model.config
    problem = getattr(config, "problem_type", None)
    if problem in ("multi_label_classification", "regression") or config.num_labels < 2:
        kind = {"multi_label_classification": "multi-label"}.get(str(problem), "regression")
        raise ModelError(
            f"{where}: the model's task is {kind} ({config.num_labels} outputs, problem_type {problem}); expected one "
            "label per input and at least two classes. Wrap one output as a two-class model in an adapter of your own."
        )
    names = [str(config.id2label.get(n, config.id2label.get(str(n), f"LABEL_{n}"))) for n in range(config.num_labels)]
    if len(set(names)) != len(names):
        raise ModelError(f"{where}: id2label in config.json is {names}. Give every class a name of its own.")
    return Classifier(tuple(names))


def _fits(model: Any, tokenizer: Any, where: object) -> None:
    """Raises ModelError for a tokenizer with more entries than the model has embeddings."""
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
        size = None
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if size is not None and highest >= size:
        raise ModelError(
            f"{where}: the tokenizer gives ids up to {highest}, and the model has embeddings for {size}. Save the "
            "tokenizer that the model was trained with into the folder."
        )


def _padding(model: Any, tokenizer: Any) -> int:
    """The id that padding gets. A classifier that looks for the last token among the ids is told of it."""
    config = model.config.get_text_config()
    size = int(config.vocab_size)
    end = config.eos_token_id
    candidates = [config.pad_token_id, tokenizer.pad_token_id, *(end if isinstance(end, list) else [end]), 0]
    chosen = next(int(c) for c in candidates if c is not None and 0 <= int(c) < size)
    if config.pad_token_id != chosen:
        config.pad_token_id = chosen
    return chosen


def _offset(model: nn.Module) -> int:
    """Position ids that a model keeps for padding, as RoBERTa and its like do."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0
