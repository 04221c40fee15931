"""The configuration of a Transformers model as text. It distinguishes models that have equal parameters."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.targets import CLASS

#: Keys of config.json that do not change what the model computes in an audit. Data types are left out, because the hash
#: of the parameters covers them, and the architecture, because only saved models name it and the types of the modules
#: distinguish it.
_WITHOUT_EFFECT = ("transformers_version", "dtype", "torch_dtype", "architectures")
#: Entries of tokenizer.json that change when the tokenizer is called. The text encoder sets its own limit.
_CHANGED_BY_CALLS = ("truncation", "padding")
#: Attributes of a tokenizer that are not in tokenizer.json and change what the model reads: which end of a long text is
#: cut off, which inputs the model gets, and whether special tokens in a text are split.
_READ_BY_CALLS = ("truncation_side", "model_input_names", "split_special_tokens")
#: Names of arguments of a tokenizer's class that say where it was loaded from, or that other entries contain already.
_NOT_AN_ARGUMENT = re.compile(
    r"^_|_(token|file|dir|class|template|map)$|^(name_or_path|is_local|local_files_only|backend|model_max_length|verbose)$"
)


def configuration_text(config: Any, text_encoder: TextEncoder, head: Head) -> str:
    """Return the configuration, the tokenizer, the prompt and the label tokens of a model as JSON.

    Args:
        config: The Transformers configuration of the model.
        text_encoder: Encodes texts with the model's tokenizer.
        head: Reads the class logits.
    """
    content = {
        "config": cleaned(json.loads(config.to_json_string(use_diff=False))),
        "tokenizer": _tokenizer(text_encoder.tokenizer),
        "limit": text_encoder.limit,
        "template": text_encoder.template,
        "classes": list(head.classes),
        "label_tokens": getattr(head, "token_ids", None),
    }
    if head.target != CLASS:
        content["target"] = asdict(head.target)
    if text_encoder.query_first:
        content["query_first"] = True
    return json.dumps(content, sort_keys=True)


def cleaned(value: Any) -> Any:
    """Return JSON without the entries in `_WITHOUT_EFFECT` and without private ones, such as the checkpoint path."""
    if isinstance(value, dict):
        return {
            key: cleaned(one)
            for key, one in value.items()
            if not str(key).startswith("_") and key not in _WITHOUT_EFFECT
        }
    return [cleaned(one) for one in value] if isinstance(value, list) else value


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Return the settings of a tokenizer that determine what the model reads.

    These are its class, its special tokens, the settings in `_READ_BY_CALLS`, and the contents of tokenizer.json. If
    there is no such file, they are the vocabulary and the arguments of the class.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: dict[str, Any] = {"vocabulary": tokenizer.get_vocab(), "arguments": _arguments(tokenizer)}
    else:
        rules = {key: value for key, value in json.loads(backend.to_str()).items() if key not in _CHANGED_BY_CALLS}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    settings = {name: getattr(tokenizer, name, None) for name in _READ_BY_CALLS}
    return {"class": type(tokenizer).__name__, "special": special, **settings, **rules}


def _arguments(tokenizer: Any) -> dict[str, Any]:
    """Return the arguments of a tokenizer's class that are numbers, strings or flags, such as `do_lower_case`."""
    return {
        name: value
        for name, value in tokenizer.init_kwargs.items()
        if isinstance(value, (str, int, float)) and not _NOT_AN_ARGUMENT.search(name)
    }
