"""Load a pretrained Transformers encoder offline with a new classification head, and save the fine-tuned model."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import quiet
from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.models.base_encoders import Base

CARD: Final = "training.json"
CONFIG: Final = "config.json"
#: The folder inside --out to which all files are first written. When all are complete, they are moved into --out.
TEMPORARY_FOLDER: Final = ".attnaudit-unfinished"
#: Settings that Transformers saves with a tokenizer, although they only describe a single call or the loading.
_CALL_SETTINGS: Final = (
    "local_files_only",
    "is_local",
    "max_length",
    "stride",
    "truncation_strategy",
    "pad_to_multiple_of",
)
_LONGEST_CAUSE: Final = 300


class Pretrained(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder with a new classification head.

    Attributes:
        model: The Transformers model, in float32 on the CPU.
        tokenizer: The tokenizer of the model.
        classes: Class names, in the order of the logits.
        max_tokens: Largest number of tokens that the model can read, including special tokens.
        new_parameters: Names of the parameters with random initial values, such as those of the head.
    """

    model: Any
    tokenizer: Any
    classes: tuple[str, ...]
    max_tokens: int
    new_parameters: tuple[str, ...]


def load(base: Base, classes: Sequence[str]) -> Pretrained:
    """Load an encoder with a new, randomly initialised classification head.

    A classification head in the folder is not used. Code from the folder is never run.

    Args:
        base: The encoder.
        classes: Class names, in the order of the logits.

    Raises:
        ModelError: The encoder cannot be loaded. The message names the encoder and the reason that Transformers gives.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    folder = str(base.folder)
    with _explain_errors(base, "config.json"):
        config = AutoConfig.from_pretrained(
            folder,
            **offline,
            num_labels=len(classes),
            id2label=dict(enumerate(classes)),
            label2id={name: index for index, name in enumerate(classes)},
            problem_type="single_label_classification",
        )
    with _explain_errors(base, "the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **offline)
    if tokenizer.pad_token_id is None:
        raise ModelError(
            f"--base {base.name}: its tokenizer has no padding token, which batches need. Set one "
            "(`tokenizer.pad_token = ...`) and save the tokenizer again."
        )
    with _explain_errors(base, "the weights"):
        encoder, loading_info = AutoModel.from_pretrained(
            folder, **offline, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    with _explain_errors(base, "a classification head"):
        model = AutoModelForSequenceClassification.from_config(
            config,
            dtype=torch.float32,
            attn_implementation="eager",  # the fastest to train with dropout on a CPU
        )
    new_parameters = _copy_encoder(base, model, encoder, set(loading_info["missing_keys"]))
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"--base {base.name}: the tokenizer has {len(tokenizer)} tokens, but the model embeds only "
            f"{model.get_input_embeddings().num_embeddings}. Give the folder whose tokenizer belongs to the model."
        )
    return Pretrained(
        model=model,
        tokenizer=tokenizer,
        classes=tuple(classes),
        max_tokens=_max_tokens(model, tokenizer),
        new_parameters=new_parameters,
    )


@contextlib.contextmanager
def _explain_errors(base: Base, what: str) -> Iterator[None]:
    """Convert any error inside the context to a ModelError that names the encoder and what cannot be loaded."""
    try:
        yield
    except Exception as error:
        cause = " ".join(str(error).split())
        cause = cause if len(cause) <= _LONGEST_CAUSE else cause[: _LONGEST_CAUSE - 3] + "..."
        raise ModelError(
            f"--base {base.name}: Transformers cannot load {what}: {type(error).__name__}: {cause} Expected a complete "
            "encoder of a type that Transformers supports, with its tokenizer; code from the folder is never run."
        ) from error


def _copy_encoder(base: Base, model: Any, encoder: Any, missing: set[str]) -> tuple[str, ...]:
    """Copy the encoder's weights into the model.

    Args:
        base: The encoder as the user gave it, for messages.
        model: The model with a classification head.
        encoder: The loaded encoder.
        missing: Names of the encoder's tensors that the weight file does not contain.

    Returns:
        Names of the model's parameters that are not copied and therefore keep their random values.

    Raises:
        ModelError: The weight file lacks tensors of the encoder that are not part of the pooler, or the parameters of
            the encoder do not match those of the model.
    """
    lacking = sorted(name for name in missing if "pooler" not in name)
    if lacking:
        raise ModelError(
            f"--base {base.name}: the weight file lacks {len(lacking)} of the encoder's tensors, such as "
            f"'{lacking[0]}'. Give a folder whose config.json and weights belong together."
        )
    prefix = model.base_model_prefix + "."
    pretrained = {prefix + name: tensor for name, tensor in encoder.state_dict().items() if name not in missing}
    model.load_state_dict(pretrained, strict=False)
    new = [name for name, _ in model.named_parameters() if name not in pretrained]
    unmatched = [name for name in new if name.startswith(prefix) and name.removeprefix(prefix) not in missing]
    if unmatched or len(new) == sum(1 for _ in model.parameters()):
        raise ModelError(
            f"--base {base.name}: {type(model).__name__} is not built around {type(encoder).__name__}, so the "
            "encoder's weights cannot be used. Give an encoder such as BERT."
        )
    return tuple(new)


def _max_tokens(model: nn.Module, tokenizer: Any) -> int:
    """Return the largest number of tokens that the model can read.

    In models such as RoBERTa, the positions up to and including the padding index are unused.
    """
    limits = [int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", 0) or 10**9)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - unused)
    return min(limits)


class TokenizedRows:
    """A data set as token ids and class indices.

    Args:
        data: The rows.
        labels: Class index of each row.
        pretrained: The model whose tokenizer is used.
        max_tokens: Largest number of tokens of a row. Longer rows are truncated.

    Attributes:
        truncated: Number of rows that were truncated.

    Raises:
        DataError: The tokenizer knows no token of a row. The message names the first such row.
    """

    def __init__(self, data: Dataset, labels: Sequence[int], pretrained: Pretrained, *, max_tokens: int) -> None:
        self._tokenizer = pretrained.tokenizer
        self.labels = list(labels)
        self.truncated = 0
        self.encodings: list[Mapping[str, list[int]]] = []
        for instance in data.instances:
            encoding = self._tokenizer(instance.text, instance.query)
            if len(encoding["input_ids"]) > max_tokens:
                self.truncated += 1
                encoding = self._tokenizer(instance.text, instance.query, truncation=True, max_length=max_tokens)
            self._refuse_empty(instance, encoding["input_ids"])
            self.encodings.append(encoding)
        self.lengths = [len(encoding["input_ids"]) for encoding in self.encodings]

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the model's inputs for these rows, each (B, T). The tokenizer determines the side of the padding."""
        return dict(self._tokenizer.pad([self.encodings[row] for row in rows], return_tensors="pt"))

    def _refuse_empty(self, instance: Instance, ids: Sequence[int]) -> None:
        if all(token in self._tokenizer.all_special_ids for token in ids):
            raise DataError(
                f"{instance.where or instance.id}: the tokenizer finds no token that it knows in this text. Remove the "
                "row."
            )


def save(folder: Path, pretrained: Pretrained, card: Mapping[str, Any]) -> int:
    """Write the model, its tokenizer and the card as a checkpoint folder.

    config.json and the card are written last, so an incomplete folder is not mistaken for a checkpoint.

    Args:
        folder: The folder to write. A checkpoint in it is replaced.
        pretrained: The model and its tokenizer.
        card: The contents of `training.json`. The names of the files are added to them.

    Returns:
        Size of the checkpoint in bytes.

    Raises:
        ModelError: The folder cannot be written.
    """
    folder = Path(folder)
    temporary = folder / TEMPORARY_FOLDER
    tokenizer = _without_call_settings(pretrained.tokenizer)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with quiet():
            pretrained.model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        names = sorted((path.name for path in temporary.iterdir()), key=lambda name: (name == CONFIG, name))
        full_card = {**card, "files": names}
        (temporary / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(full_card), indent=1) + b"\n")
        for path in temporary.iterdir():  # safetensors makes its file readable by the owner only
            path.chmod((temporary / CARD).stat().st_mode)
        _remove_former(folder)
        for name in (*names, CARD):
            (temporary / name).replace(folder / name)
    except OSError as error:
        raise ModelError(
            f"--out {folder}: the checkpoint cannot be written ({error.strerror}). Give a folder that you may write to "
            "and that has free space."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sum((folder / name).stat().st_size for name in (*names, CARD))


def _without_call_settings(tokenizer: Any) -> Any:
    """Remove the settings of earlier calls from a tokenizer, so that they are not saved. Return the tokenizer."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    for name in _CALL_SETTINGS:
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def _remove_former(folder: Path) -> None:
    """Delete the files of a former checkpoint, so that none of them is loaded with the new one.

    The card of the former checkpoint lists its files. If the card cannot be read, no file is deleted.
    """
    try:
        former = msgspec.json.decode((folder / CARD).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return
    files = former.get("files") if isinstance(former, dict) else None
    for name in [CARD, *(files if isinstance(files, list) else [])]:
        if isinstance(name, str) and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
