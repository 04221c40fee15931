"""Checkpoint folders of Transformers models, read offline and without running anything that is in them."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnaudit.errors import ModelError, nearest

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
INDEX = "model.safetensors.index.json"
_AGAIN = "Copy the whole folder again."
#: Any of these means that the folder has a tokenizer.
_TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "merges.txt", "*.tiktoken", "bpe.codes", "tekken.json")
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
#: What reading a JSON file of another shape raises.
_MALFORMED = (TypeError, KeyError, IndexError, AttributeError, RecursionError)
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder that has been looked at. task: "classifier", "causal" or "encoder-decoder". dtype: of most weights.
    requested: the attention kernel that config.json asks for, "" for none."""

    folder: Path
    task: str
    dtype: torch.dtype
    requested: str


def examine(folder: Path) -> Checkpoint:
    """Look at the files. Raises ModelError naming the file, what is wrong with it and the mend."""
    folder = Path(folder)
    raw = read_config(folder)
    refuse_unauditable(folder, raw)
    _config(folder)
    names = raw.get("architectures") or [""]
    architecture = str(names[0])
    return Checkpoint(
        folder=folder,
        task=task_of(folder, architecture),
        dtype=dtype_of(folder),
        requested=str(raw.get("_attn_implementation") or raw.get("attn_implementation") or ""),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json."""
    path = folder / CONFIG
    if (folder / ADAPTER).is_file():
        raise ModelError(
            f"{folder / ADAPTER}: the folder holds a PEFT adapter, which is no model of its own. Merge it into its "
            "base model (`merge_and_unload()`), save that and audit its folder."
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}). {_AGAIN}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: holds a {type(raw).__name__}, expected a table. {_AGAIN}")
    return raw


def refuse_unauditable(folder: Path, raw: dict[str, Any]) -> None:
    """Raises ModelError for what config.json alone rules out."""
    from transformers import CONFIG_MAPPING

    path = folder / CONFIG
    if raw.get("auto_map"):
        raise ModelError(
            f"{path}: 'auto_map' asks for code that comes with the checkpoint, which is never run. Build the model in "
            "conftest.py and register it with attnaudit.adapters.huggingface.transformer(model, tokenizer)."
        )
    if raw.get("quantization_config"):
        said = raw["quantization_config"]
        method = said.get("quant_method", "an unknown method") if isinstance(said, dict) else said
        raise ModelError(
            f"{path}: the checkpoint is quantised ({method}), and attention is audited in float32. Audit the "
            "checkpoint that it was made from."
        )
    model_type = raw.get("model_type")
    if not model_type or not isinstance(model_type, str):
        raise ModelError(f"{path}: no 'model_type', so it is not known what the model is. {_AGAIN}")
    if model_type not in CONFIG_MAPPING:
        raise ModelError(
            f"{path}: this Transformers knows no model_type '{model_type}'. {nearest(str(model_type), CONFIG_MAPPING)} "
            "Install the Transformers that wrote the checkpoint."
        )


def task_of(where: object, architecture: str) -> str:
    """What a model class does. Raises ModelError for one that is not audited."""
    if architecture.endswith("ForSequenceClassification"):
        return "classifier"
    from transformers.models.auto import modeling_auto as auto

    if architecture in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return "encoder-decoder"
    if architecture in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "causal"
    raise ModelError(
        f"{where}: {architecture or 'a model of no named architecture'} has no classification head, and is no language "
        "model that is asked for its next word. Fine-tune it as a sequence classifier first, for example with "
        "`attnaudit train --base`."
    )


def dtype_of(folder: Path) -> torch.dtype:
    """The type of most of the weights. Raises ModelError where they are missing, pickled or cut short."""
    found: Counter[str] = Counter()
    for path in weights(folder):
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            tensors = [
                (str(entry["dtype"]), int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except (OSError, struct.error, ValueError, MemoryError, OverflowError, *_MALFORMED) as error:
            raise ModelError(f"{path}: not a whole safetensors file ({error}). {_AGAIN}") from error
        end = max((stop for _, _, stop in tensors), default=0)
        size = path.stat().st_size
        if size != 8 + length + end:
            raise ModelError(
                f"{path}: not a whole safetensors file ({size} bytes, expected {8 + length + end}). {_AGAIN}"
            )
        for dtype, start, stop in tensors:
            found[dtype] += stop - start
    most = found.most_common(1)[0][0] if found else "F32"
    if most not in _TYPES:
        raise ModelError(
            f"{folder}: most of its weights are of type {most}, a quantised form, and attention is audited in float32. "
            "Audit the checkpoint that it was made from."
        )
    return _TYPES[most]


def weights(folder: Path) -> list[Path]:
    """The safetensors files of the model."""
    whole, index = folder / "model.safetensors", folder / INDEX
    if whole.is_file():
        return [whole]
    if index.is_file():
        try:
            found = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            names = sorted({Path(name).name for name in found})
        except (OSError, ValueError, *_MALFORMED) as error:
            raise ModelError(f"{index}: not a safetensors index ({error}). {_AGAIN}") from error
        lacking = [name for name in names if not (folder / name).is_file()]
        if lacking:
            raise ModelError(f"{folder}: {', '.join(lacking)} is missing, which {INDEX} names. {_AGAIN}")
        return [folder / name for name in names]
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder}: its weights are pickled ({pickles[0]}), and a pickle can run any code, so it is never read. "
            "Save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)."
        )
    raise ModelError(f"{folder}: no model.safetensors. {_AGAIN}")


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in the folder."""
    from transformers import AutoTokenizer

    mend = "Save the tokenizer beside the model: tokenizer.save_pretrained(folder)."
    if not any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS):
        raise ModelError(f"{folder}: no tokenizer (tokenizer.json, or the vocabulary it is made from). {mend}")
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{folder}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}). {mend}"
        ) from error


def read_model(checkpoint: Checkpoint, dtype: torch.dtype, implementation: str | None) -> Any:
    """The model in a given type. implementation: its attention kernel; None: its own choice.

    Raises ModelError where a weight would be made up."""
    import transformers

    kind = {
        "classifier": transformers.AutoModelForSequenceClassification,
        "causal": transformers.AutoModelForCausalLM,
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    }[checkpoint.task]
    config = _config(checkpoint.folder)
    if implementation is not None:
        # As an argument it would give way to what config.json asks for.
        config._attn_implementation = implementation
    try:
        with quiet():
            model, report = kind.from_pretrained(
                str(checkpoint.folder),
                config=config,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
    except Exception as error:
        raise ModelError(
            f"{checkpoint.folder}: the model cannot be loaded ({type(error).__name__}: {first_line(error)}). {_AGAIN}"
        ) from error
    made_up = sorted(report["missing_keys"]) + sorted(str(m) for m in report["mismatched_keys"])
    if made_up:
        raise ModelError(
            f"{checkpoint.folder}: the checkpoint has no weights for {', '.join(made_up[:4])}"
            f"{' and others' if len(made_up) > 4 else ''}, which {type(model).__name__} needs: random ones would be "
            "audited. Train the model's head and save it again."
        )
    return model.eval()


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        with quiet():
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{folder / CONFIG}: Transformers cannot read it ({type(error).__name__}: {first_line(error)}). {_AGAIN}"
        ) from error
    # Some architectures cannot be run without.
    config.return_dict = True
    return config


def first_line(error: Exception) -> str:
    """The first sentence of a message that may be long."""
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


@contextmanager
def quiet() -> Iterator[None]:
    """Transformers says nothing while it loads: what matters is raised."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
