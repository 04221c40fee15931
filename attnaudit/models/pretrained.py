"""Transformers encoders: taken offline from a folder with a new classification head, and written as a folder again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.checkpoint_files import quiet
from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.models.base_encoders import Base

CARD: Final = "training.json"
CONFIG: Final = "config.json"
#: The folder inside --out in which everything is first written.
UNFINISHED: Final = ".attnaudit-unfinished"
_OF_CALLS: Final = ("local_files_only", "is_local", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of")


class Pretrained(msgspec.Struct, frozen=True, kw_only=True):
    """model: with a new head for `classes`, in float32 on the CPU. longest: tokens that it can read. new: names of the
    parameters that do not come from the base."""

    model: Any
    tokenizer: Any
    classes: tuple[str, ...]
    longest: int
    new: tuple[str, ...]


def load(base: Base, classes: Sequence[str]) -> Pretrained:
    """The encoder of `base` with a new, random head, whatever head it had. No code of the folder's own is run.

    Raises ModelError that names the folder, what Transformers found wrong with it and the mend.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    folder = str(base.folder)
    with _explained(base, "config.json"):
        config = AutoConfig.from_pretrained(
            folder,
            **offline,
            num_labels=len(classes),
            id2label=dict(enumerate(classes)),
            label2id={name: index for index, name in enumerate(classes)},
            problem_type="single_label_classification",
        )
    with _explained(base, "the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **offline)
    if tokenizer.pad_token_id is None:
        raise ModelError(
            f"--base {base.name}: its tokenizer has no padding token, which batches need. Set one "
            "(`tokenizer.pad_token = ...`) and save the tokenizer again."
        )
    with _explained(base, "the weights"):
        encoder, found = AutoModel.from_pretrained(
            folder, **offline, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    with _explained(base, "a classification head"):
        model = AutoModelForSequenceClassification.from_config(
            config,
            dtype=torch.float32,
            attn_implementation="eager",  # with dropout on a CPU the fastest to train
        )
    new = _take_over(base, model, encoder, set(found["missing_keys"]))
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"--base {base.name}: the tokenizer knows {len(tokenizer)} tokens, but the model embeds "
            f"{model.get_input_embeddings().num_embeddings}. Give the folder whose tokenizer belongs to the model."
        )
    return Pretrained(
        model=model, tokenizer=tokenizer, classes=tuple(classes), longest=_longest(model, tokenizer), new=new
    )


@contextlib.contextmanager
def _explained(base: Base, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())
        said = said if len(said) <= 300 else said[:297] + "..."
        raise ModelError(
            f"--base {base.name}: Transformers cannot load {what}: {type(error).__name__}: {said} Expected an encoder "
            "that Transformers knows, whole and with its tokenizer; code from the folder is never run."
        ) from error


def _take_over(base: Base, model: Any, encoder: Any, missing: set[str]) -> tuple[str, ...]:
    """Put the encoder's weights into `model`. Returns the names of the parameters that stay random."""
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
    strange = [name for name in new if name.startswith(prefix) and name.removeprefix(prefix) not in missing]
    if strange or len(new) == sum(1 for _ in model.parameters()):
        raise ModelError(
            f"--base {base.name}: {type(model).__name__} is not built around {type(encoder).__name__}, so its weights "
            "cannot be taken over. Give an encoder such as BERT."
        )
    return tuple(new)


def _longest(model: nn.Module, tokenizer: Any) -> int:
    """Tokens that fit: positions up to the padding's are never given to a token (RoBERTa)."""
    limits = [int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", 0) or 10**9)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - skipped)
    return min(limits)


class Rows:
    """A data set as token ids and class indices. truncated: rows longer than `max_tokens`, which are cut.

    Raises DataError naming the first row that cannot be used.
    """

    def __init__(self, data: Dataset, labels: Sequence[int], pretrained: Pretrained, *, max_tokens: int) -> None:
        self._tokenizer = pretrained.tokenizer
        self.labels = list(labels)
        self.truncated = 0
        self.encodings: list[Mapping[str, list[int]]] = []
        for one in data.instances:
            encoding = self._tokenizer(one.text, one.query)
            if len(encoding["input_ids"]) > max_tokens:
                self.truncated += 1
                encoding = self._tokenizer(one.text, one.query, truncation=True, max_length=max_tokens)
            self._refuse_empty(one, encoding["input_ids"])
            self.encodings.append(encoding)
        self.lengths = [len(one["input_ids"]) for one in self.encodings]

    def batch(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        """What the model is called with, padded on the tokenizer's side."""
        return dict(self._tokenizer.pad([self.encodings[row] for row in chosen], return_tensors="pt"))

    def _refuse_empty(self, one: Instance, ids: Sequence[int]) -> None:
        if all(token in self._tokenizer.all_special_ids for token in ids):
            raise DataError(
                f"{one.where or one.id}: the tokenizer finds no token it knows in this text. Remove the row."
            )


def save(folder: Path, pretrained: Pretrained, card: Mapping[str, Any]) -> int:
    """Write the folder: weights and tokenizer, then config.json, and last the card, so that what is half written is no
    checkpoint. Returns its bytes. Raises ModelError when the folder cannot be written."""
    folder = Path(folder)
    tokenizer = _cleared(pretrained.tokenizer)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    try:
        (folder / UNFINISHED).mkdir(parents=True)
        new = folder / UNFINISHED
        with quiet():
            pretrained.model.save_pretrained(new)
            tokenizer.save_pretrained(new)
        names = sorted((path.name for path in new.iterdir()), key=lambda name: (name == CONFIG, name))
        whole = {**card, "files": names}
        (new / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        for path in new.iterdir():  # safetensors writes for the owner alone
            path.chmod((new / CARD).stat().st_mode)
        _remove_former(folder)
        for name in (*names, CARD):
            (new / name).replace(folder / name)
    except OSError as error:
        raise ModelError(
            f"--out {folder}: the checkpoint cannot be written ({error.strerror}). Give a folder that you may write to "
            "and that has room."
        ) from error
    finally:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return sum((folder / name).stat().st_size for name in (*names, CARD))


def _cleared(tokenizer: Any) -> Any:
    """Without what belongs to a call or to how the tokenizer was loaded, which would be stored with it."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    for name in _OF_CALLS:
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def _remove_former(folder: Path) -> None:
    """Remove the files of the checkpoint that is replaced: another tokenizer's would be read beside the new one's."""
    try:
        former = msgspec.json.decode((folder / CARD).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return
    files = former.get("files") if isinstance(former, dict) else None
    for name in [CARD, *(files if isinstance(files, list) else [])]:
        if isinstance(name, str) and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
