"""Read checkpoint folders of Transformers models, without a network and without running code from the folder."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnaudit.adapters.huggingface.checkpoints.other_tasks import other_task
from attnaudit.errors import ModelError, nearest, refuse_pointer

CONFIG = "config.json"
PEFT_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"
_COPY_AGAIN = "Copy the whole folder again."
#: A folder with any of these files has a tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "merges.txt", "*.tiktoken", "bpe.codes", "tekken.json")
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
#: Exceptions that are raised if JSON does not have the expected structure.
_WRONG_STRUCTURE = (TypeError, KeyError, IndexError, AttributeError, RecursionError)
#: Names of saved weights that a model can ignore without a change in its output: buffers that older versions of
#: Transformers saved, and the pooler of a base model, if the classifier has its own pooler.
_UNUSED = re.compile(r"(^|\.)(position_ids|inv_freq|masked_bias|num_batches_tracked)$|(^|\.)pooler\.")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint folder that has passed inspection.

    Attributes:
        folder: The folder.
        task: The task of the model class (see `task_of`).
        architecture: Name of the model class in config.json.
        dtype: Data type of the weights. If they have several types, this is the type with the most bytes.
        requested_kernel: Attention kernel that config.json requests; "" if it requests none.
        added_later: Names of weights that the folder may lack, because they come from a PEFT adapter. If the
            set is not empty, the folder may also contain weights of a head that the model does not use.
        classes: Number of classes of the head in a PEFT adapter; None to use the number in config.json.
    """

    folder: Path
    task: str
    architecture: str
    dtype: torch.dtype
    requested_kernel: str
    added_later: frozenset[str] = frozenset()
    classes: int | None = None


def examine(folder: Path) -> Checkpoint:
    """Inspect the files of a checkpoint folder without loading the model.

    Raises:
        ModelError: The model cannot be audited. The message names the file, the problem and the fix.
    """
    folder = Path(folder)
    raw = read_config(folder)
    refuse_unauditable(folder, raw)
    _load_config(folder)
    architecture = architecture_in(raw)
    return Checkpoint(
        folder=folder,
        task=task_of(folder, architecture),
        architecture=architecture,
        dtype=dtype_of(folder),
        requested_kernel=str(raw.get("_attn_implementation") or raw.get("attn_implementation") or ""),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json.

    Raises:
        ModelError: The file cannot be read, or is not a JSON object.
    """
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_COPY_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}). {_COPY_AGAIN}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: contains a {type(raw).__name__}; expected a JSON object. {_COPY_AGAIN}")
    return raw


def architecture_in(raw: dict[str, Any]) -> str:
    """Return the name of the model class in the contents of config.json; "" if they name none."""
    return str((raw.get("architectures") or [""])[0])


def refuse_unauditable(folder: Path, raw: dict[str, Any]) -> None:
    """Check, from the contents of config.json, that the model can be audited.

    Raises:
        ModelError: The model needs its own code, is quantised, or has a missing or unknown `model_type`.
    """
    from transformers import CONFIG_MAPPING

    path = folder / CONFIG
    if raw.get("auto_map"):
        raise ModelError(
            f"{path}: 'auto_map' asks for Python code that comes with the checkpoint, and attnaudit never runs such "
            "code. Build the model in conftest.py and register it with "
            "attnaudit.adapters.huggingface.transformer(model, tokenizer)."
        )
    quantization = raw.get("quantization_config")
    if quantization:
        is_table = isinstance(quantization, dict)
        method = quantization.get("quant_method", "method unknown") if is_table else quantization
        raise ModelError(
            f"{path}: the checkpoint is quantised ({method}), and quantised models cannot be audited. Audit the "
            "unquantised checkpoint instead."
        )
    model_type = raw.get("model_type")
    if not model_type or not isinstance(model_type, str):
        raise ModelError(f"{path}: 'model_type', which names the architecture, is missing. {_COPY_AGAIN}")
    if model_type not in CONFIG_MAPPING:
        raise ModelError(
            f"{path}: the installed version of Transformers does not know the model_type '{model_type}'. "
            f"{nearest(str(model_type), CONFIG_MAPPING)} If the name is correct, install the version of Transformers "
            "that wrote the checkpoint."
        )


def task_of(where: object, architecture: str) -> str:
    """Return the task of a model class.

    It is "classifier", "tagger", "extractor" (of the span that answers a question), "causal", "encoder-decoder",
    "masked", "image classifier" or "audio classifier".

    Args:
        where: The folder or the name of the model, for messages.
        architecture: Name of the model class, such as "BertForSequenceClassification".

    Raises:
        ModelError: Models of this class cannot be audited.
    """
    from transformers.models.auto import modeling_auto as auto

    if architecture in auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.values():
        return "audio classifier"
    if architecture.endswith("ForSequenceClassification"):
        return "classifier"
    if architecture.endswith("ForTokenClassification"):
        return "tagger"
    if architecture.endswith("ForQuestionAnswering"):
        return "extractor"
    if architecture.endswith(("ForImageClassification", "ForImageClassificationWithTeacher")):
        return "image classifier"
    if architecture in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return "encoder-decoder"
    if architecture in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "causal"
    if architecture in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
        return "masked"
    raise ModelError(other_task(where, architecture))


def dtype_of(folder: Path) -> torch.dtype:
    """Return the data type of the weights. If they have several types, return the type with the most bytes.

    Raises:
        ModelError: Weights are missing, pickled, incomplete or quantised.
    """
    bytes_per_type: Counter[str] = Counter()
    for path in weight_files(folder):
        refuse_pointer(path, "the weights of the model", ModelError)
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            tensors = [
                (str(entry["dtype"]), int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except (OSError, struct.error, ValueError, MemoryError, OverflowError, *_WRONG_STRUCTURE) as error:
            raise ModelError(f"{path}: this is not a complete safetensors file ({error}). {_COPY_AGAIN}") from error
        expected = 8 + length + max((stop for _, _, stop in tensors), default=0)
        size = path.stat().st_size
        if size != expected:
            raise ModelError(
                f"{path}: this is not a complete safetensors file ({size} bytes; expected {expected}). {_COPY_AGAIN}"
            )
        for dtype, start, stop in tensors:
            bytes_per_type[dtype] += stop - start
    most = bytes_per_type.most_common(1)[0][0] if bytes_per_type else "F32"
    if most not in _DTYPES:
        raise ModelError(
            f"{folder}: most of its weights are of the quantised type {most}, and quantised models cannot be "
            "audited. "
            "Audit the unquantised checkpoint instead."
        )
    return _DTYPES[most]


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model.

    Raises:
        ModelError: A file is missing, the index is invalid, or the weights are pickled.
    """
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            names = sorted({Path(name).name for name in files})
        except (OSError, ValueError, *_WRONG_STRUCTURE) as error:
            raise ModelError(f"{index}: not a safetensors index ({error}). {_COPY_AGAIN}") from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder}: {INDEX} names {', '.join(missing)}, which is missing. {_COPY_AGAIN}")
        return [folder / name for name in names]
    pickles = sorted(p.name for pattern in _PICKLED_WEIGHTS for p in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder}: its weights are pickled ({pickles[0]}). Loading a pickle can run any code, so attnaudit never "
            "loads one. Save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)."
        )
    raise ModelError(f"{folder}: no model.safetensors. {_COPY_AGAIN}")


def read_tokenizer(folder: Path) -> Any:
    """Load the tokenizer in a folder.

    Raises:
        ModelError: The folder has no tokenizer, or it cannot be loaded.
    """
    from transformers import AutoTokenizer

    fix = "Save the tokenizer next to the model: tokenizer.save_pretrained(folder)."
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise ModelError(f"{folder}: the folder has no tokenizer (neither tokenizer.json nor a vocabulary file). {fix}")
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{folder}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}). {fix}"
        ) from error


def read_model(checkpoint: Checkpoint, dtype: torch.dtype, implementation: str | None) -> Any:
    """Load the model of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        dtype: Data type in which to load the weights.
        implementation: Attention kernel; None for the kernel that Transformers chooses.

    Returns:
        The model in evaluation mode, on the CPU.

    Raises:
        ModelError: The model cannot be loaded, the checkpoint lacks weights that the model needs, or it has weights
            of another shape or weights that the model does not use.
    """
    import transformers

    model_class = {
        "classifier": transformers.AutoModelForSequenceClassification,
        "tagger": transformers.AutoModelForTokenClassification,
        "extractor": transformers.AutoModelForQuestionAnswering,
        "masked": transformers.AutoModelForMaskedLM,
        "causal": transformers.AutoModelForCausalLM,
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
        "image classifier": transformers.AutoModelForImageClassification,
        "audio classifier": transformers.AutoModelForAudioClassification,
    }[checkpoint.task]
    config = _load_config(checkpoint.folder)
    model_class = _loading_class(model_class, checkpoint, config)
    if checkpoint.classes not in (None, config.num_labels):
        config.num_labels = checkpoint.classes
    # If the kernel were an argument of from_pretrained(), the kernel in config.json would override it.
    config._attn_implementation = implementation
    try:
        with quiet():
            model, report = model_class.from_pretrained(
                str(checkpoint.folder),
                config=config,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
    except Exception as error:
        # Damaged and incomplete files of weights were found before.
        advice = (
            "Install the missing package."
            if isinstance(error, ImportError)
            else f"Check that {CONFIG} belongs to these weights. If it does, load the model with the version of "
            "Transformers that wrote the folder, and save it again with save_pretrained()."
        )
        raise ModelError(
            f"{checkpoint.folder}: the model cannot be loaded ({type(error).__name__}: {first_line(error)}). {advice}"
        ) from error
    wrong = [
        f"{name} has the shape {list(saved)}, but the model needs {list(needed)}"
        for name, saved, needed in sorted(report["mismatched_keys"])
        if name not in checkpoint.added_later
    ]
    if wrong:
        raise ModelError(
            f"{checkpoint.folder}: the weights do not fit {CONFIG}: {'; '.join(wrong[:2])}"
            f"{f' ({len(wrong) - 2} more)' if len(wrong) > 2 else ''}. Correct {CONFIG}, for example the sizes or the "
            "number of classes (id2label), or copy the file that belongs to these weights."
        )
    missing = sorted(set(report["missing_keys"]) - checkpoint.added_later)
    if missing:
        raise ModelError(
            f"{checkpoint.folder}: the checkpoint has no weights for "
            f"{', '.join(missing[:4])}{' and others' if len(missing) > 4 else ''}, which {type(model).__name__} needs, "
            "so the audit would use random ones. Train the missing part, usually the model's head, and save the model "
            "again."
        )
    unexpected = unexpected_weights(model, report["unexpected_keys"])
    if checkpoint.added_later:
        unexpected = [name for name in unexpected if name.startswith(f"{model.base_model_prefix}.")]
    if unexpected:
        raise ModelError(
            f"{checkpoint.folder}: the checkpoint has weights for {', '.join(unexpected[:4])}"
            f"{f' and {len(unexpected) - 4} others' if len(unexpected) > 4 else ''}, but {type(model).__name__} has no "
            "such weights, so only a part of the trained model would be audited. Correct 'architectures' and the sizes "
            f"in {CONFIG}, such as the number of layers. If the model does not need these weights, save it again with "
            "save_pretrained(), which leaves them out."
        )
    return model.eval()


def _loading_class(automatic: Any, checkpoint: Checkpoint, config: Any) -> Any:
    """Return the class that loads a model.

    Transformers' automatic choice knows the configurations of whole models. A folder may hold a part of a model only,
    such as the language model of one that also reads pictures. The class in config.json then loads it.

    Args:
        automatic: The class of Transformers that chooses the model class.
        checkpoint: The checkpoint.
        config: Its configuration.

    Raises:
        ModelError: The configuration is not that of the model class.
    """
    import transformers

    if type(config) in automatic._model_mapping:
        return automatic
    named = getattr(transformers, checkpoint.architecture, None)
    if named is not None and named.config_class is type(config):
        return named
    raise ModelError(
        f"{checkpoint.folder / CONFIG}: 'architectures' names {checkpoint.architecture}, but 'model_type' "
        f"({config.model_type}) is that of another model. Save the model again with save_pretrained(), which writes "
        "both."
    )


def unexpected_weights(model: Any, names: Iterable[str]) -> list[str]:
    """Return the sorted names of saved weights that the loaded model lacks, but that the saved model may have used.

    Two kinds of saved weights are harmless, and are not returned. The first are buffers that older versions of
    Transformers saved and that the model now computes, such as position ids and causal masks. The second is the pooler
    of a base model, if the classifier has its own pooler.

    Args:
        model: The model.
        names: Names of saved weights that match no parameter or persistent buffer of the model. Transformers has
            already removed the names that the architecture declares as harmless.
    """
    computed = {name for name, _ in model.named_buffers()}
    return sorted(name for name in names if name not in computed and not _UNUSED.search(name))


def _load_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        with quiet():
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{folder / CONFIG}: Transformers cannot read it ({type(error).__name__}: {first_line(error)}). "
            f"{_COPY_AGAIN}"
        ) from error
    # Some architectures fail without this setting.
    config.return_dict = True
    return config


def first_line(error: Exception) -> str:
    """Return the first line of an error message, at most 300 characters."""
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the progress bars of Transformers, and its log messages below errors, inside the context."""
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
