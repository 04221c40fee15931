"""Read folders that contain a PEFT adapter. The adapter changes some weights of a base model in another folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnaudit.adapters.huggingface.checkpoints import checkpoint_files
from attnaudit.adapters.huggingface.half_precision import HALF_TYPES
from attnaudit.errors import ModelError

WEIGHTS = "adapter_model.safetensors"
_MERGE = "Or merge the adapter into its base model (`merge_and_unload()`), save the result, and audit that folder."
#: PEFT's name of a task -> attnaudit's name.
_TASKS = {
    "SEQ_CLS": "classifier",
    "TOKEN_CLS": "tagger",
    "QUESTION_ANS": "extractor",
    "CAUSAL_LM": "causal",
    "SEQ_2_SEQ_LM": "encoder-decoder",
}
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftFolder:
    """A folder with a PEFT adapter that has passed inspection.

    Attributes:
        folder: The folder.
        base: The folder of the base model.
        task: The task, a value of `_TASKS`.
        shapes: Name of a weight in the adapter -> its shape.
    """

    folder: Path
    base: Path
    task: str
    shapes: dict[str, tuple[int, ...]]

    @property
    def own_weights(self) -> frozenset[str]:
        """The names of the adapter's weights, without the prefix that PEFT adds.

        The adapter may replace a weight completely, such as the weight of the head. Without the prefix, the name of
        such a weight is the same as in the base model.
        """
        return frozenset(name.removeprefix(_PREFIX) for name in self.shapes)

    @property
    def classes(self) -> int | None:
        """The number of classes of the head in the adapter; None if the adapter has no head."""
        heads = ("score.weight", "classifier.weight", "classifier.out_proj.weight")
        return next((shape[0] for name, shape in self.shapes.items() if name.endswith(heads)), None)


def examine_peft(folder: Path) -> PeftFolder:
    """Inspect the files of a folder with a PEFT adapter, without loading a model.

    Raises:
        ModelError: PEFT is missing, or the adapter or its base model cannot be read. The message names the fix.
    """
    try:
        import peft  # noqa: F401
    except ImportError:
        raise ModelError(
            f"{folder}: the folder contains a PEFT adapter, but PEFT is not installed. Install it: pip install peft. "
            f"{_MERGE}"
        ) from None
    from safetensors import SafetensorError, safe_open

    path = folder / checkpoint_files.PEFT_CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        base, task = str(settings["base_model_name_or_path"]), str(settings["task_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: this is not the configuration of a PEFT adapter ({error}). Save the adapter again."
        ) from error
    if task not in _TASKS:
        raise ModelError(
            f"{path}: the task_type of the adapter is {task}; expected one of {', '.join(_TASKS)}. See "
            "docs/transformers.md#wrapped-and-custom-models."
        )
    candidates = (Path(base), folder / base)
    found = next((one for one in candidates if (one / checkpoint_files.CONFIG).is_file()), None)
    if found is None:
        raise ModelError(
            f"{path}: the base model '{base}' is not a folder on this machine, and attnaudit downloads nothing. Write "
            f"the path of the model's folder to base_model_name_or_path. {_MERGE}"
        )
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{folder}: the folder has no {WEIGHTS}. Save the adapter with save_pretrained(folder), as safetensors."
        )
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{folder / WEIGHTS}: this is not a complete safetensors file ({error}). Copy it again."
        ) from error
    return PeftFolder(folder=folder, base=found, task=_TASKS[task], shapes=shapes)


def read_peft_model(peft_folder: PeftFolder) -> tuple[Any, Any]:
    """Load the base model with its adapter, and the tokenizer.

    A base model in half precision keeps its type. PEFT computes the adapter itself in float32.

    Raises:
        ModelError: The base model, the adapter or the tokenizer cannot be loaded, or the adapter lacks weights.
    """
    from peft import PeftModel, get_peft_model_state_dict

    base, folder = peft_folder.base, peft_folder.folder
    raw = checkpoint_files.read_config(base)
    checkpoint_files.refuse_unauditable(base, raw)
    checkpoint = checkpoint_files.Checkpoint(
        folder=base,
        task=peft_folder.task,
        architecture=checkpoint_files.architecture_in(raw),
        dtype=checkpoint_files.dtype_of(base),
        requested_kernel="",
        added_later=peft_folder.own_weights,
        classes=peft_folder.classes,
    )
    own = any(next(folder.glob(pattern), None) for pattern in checkpoint_files.TOKENIZER_FILES)
    tokenizer = checkpoint_files.read_tokenizer(folder if own else base)
    dtype = checkpoint.dtype if checkpoint.dtype in HALF_TYPES else torch.float32
    model = checkpoint_files.read_model(checkpoint, dtype, None)
    try:
        with checkpoint_files.quiet():
            wrapped = PeftModel.from_pretrained(model, str(folder))
    except Exception as error:
        raise ModelError(
            f"{folder}: the adapter cannot be loaded into {base} ({type(error).__name__}: "
            f"{checkpoint_files.first_line(error)}). Check that the adapter was trained with this base model."
        ) from error
    missing = sorted(set(get_peft_model_state_dict(wrapped)) - set(peft_folder.shapes))
    if missing:
        raise ModelError(f"{folder / WEIGHTS}: it lacks weights for {', '.join(missing[:4])}. Save the adapter again.")
    return wrapped.eval(), tokenizer
