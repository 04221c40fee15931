"""Arrays of feature vectors in .npy, .safetensors and .pt files.

No code in these files is executed: .npy files are read without pickle, .pt files with `weights_only=True`.

Shapes: n units, d features of a unit.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.errors import DataError
from attnaudit.input_files.file_contents import LARGEST_FILE, contents_of, place
from attnaudit.instances import Instance

if TYPE_CHECKING:
    from torch import Tensor

#: Names of the entries of a .safetensors or .pt file.
FEATURES, BOXES, TIMES, NAMES, RATE = "features", "boxes", "times", "names", "sampling_rate"
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitArray:
    """The contents of an array file.

    Attributes:
        features: (n, ...) numbers, float32: one row per unit.
        names: The name of each unit; None if the file has no names.
        boxes: (n, 4) x, y, width and height of each unit, as fractions of the width and the height of the picture. None
            if the file has no boxes.
        times: (n, 2) start and end of each unit in seconds; None if the file has no times.
        sampling_rate: For a waveform, the number of samples per second; None if the file does not give it.
    """

    features: Tensor
    names: tuple[str, ...] | None = None
    boxes: Tensor | None = None
    times: Tensor | None = None
    sampling_rate: int | None = None


def read_array(instance: Instance) -> UnitArray:
    """Read the array file of an instance.

    A .npy file contains only the features. A .safetensors file, or a .pt file with a dict, contains a tensor `features`
    and, optionally, tensors `boxes` and `times`. The names of the units are optional too: a .pt file has them as a list
    `names` in the dict, and a .safetensors file as a JSON list in the metadata `names`. If a file contains a single
    tensor, it is the tensor of the features.

    Raises:
        DataError: The file has changed since the data were loaded, cannot be read, or has invalid contents. The message
            names the row and the file.
    """
    where = place(instance)
    array = parse_array(contents_of(instance), Path(str(instance.file)), where)
    if array.features.dim() < 2:
        raise DataError(
            f"{where}: {instance.file}: the array has the shape {tuple(array.features.shape)}, expected (n, d): one "
            "row of d features for each of n units."
        )
    return array


def parse_array(content: bytes, path: Path, where: str) -> UnitArray:
    """Convert the contents of an array file (see `read_array`). The array may also be a waveform (n,) of n
    samples. Its samples must be floating-point numbers, because the scale of integers is unknown.

    Args:
        content: The contents.
        path: The file. Its suffix determines the format.
        where: The row and the column that name the file, for messages.

    Raises:
        DataError: The contents are invalid.
    """
    at = f"{where}: {path}"
    entries = FORMATS[path.suffix.lower()](content, at)
    tensors = [name for name in entries if name not in (BOXES, TIMES, NAMES, RATE)]
    if FEATURES in entries:
        tensors = [FEATURES]
    if len(tensors) != 1:
        found = ", ".join(map(repr, list(entries)[:8])) or "none"
        raise DataError(f"{at} has the entries {found}; expected a tensor '{FEATURES}', or a single tensor.")
    features = _numbers(entries[tensors[0]], at, tensors[0], of_waveform=True)
    if features.dim() < 1:
        raise DataError(
            f"{at}: the array is a single number; expected shape (n, d), with one row of d features for each of n "
            "units, or a waveform of shape (n,)."
        )
    if features.numel() == 0:
        raise DataError(
            f"{at}: the array has the shape {tuple(features.shape)}, so there is nothing to attend to. Expected at "
            "least one unit with one feature. Remove the row, or write the file again."
        )
    count = len(features)
    return UnitArray(
        features=features,
        names=_names(entries.get(NAMES), at, count),
        boxes=_places(entries.get(BOXES), at, BOXES, (count, 4)),
        times=_places(entries.get(TIMES), at, TIMES, (count, 2)),
        sampling_rate=_rate(entries.get(RATE), at),
    )


def _read_npy(content: bytes, at: str) -> dict[str, Any]:
    import numpy as np
    import torch

    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # the parser of the header raises errors of many types
        if "allow_pickle" in str(error):
            raise DataError(
                f"{at} contains Python objects, which could run code and are therefore not read. Expected numbers. "
                "Convert the array with array.astype('float32') and save it again."
            ) from error
        raise _unreadable(at, ".npy", "numpy.save(path, array)", error) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{at} is an .npz archive. Expected one array: write it with numpy.save.")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{at} contains {array.dtype}, expected numbers. Convert the array to float32.")
    if array.ndim == 1 and array.size and array.dtype.kind != "f":
        raise _without_scale(at, str(array.dtype))
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, which `_numbers` reports
        return {FEATURES: torch.from_numpy(np.array(array, dtype=np.float32, order="C"))}


def _read_safetensors(content: bytes, at: str) -> dict[str, Any]:
    import safetensors
    import safetensors.torch

    try:
        entries: dict[str, Any] = dict(safetensors.torch.load(content))
        (length,) = struct.unpack("<Q", content[:8])
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        if NAMES in metadata:
            entries[NAMES] = json.loads(metadata[NAMES])
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise _unreadable(at, ".safetensors", "safetensors.torch.save_file", error) from error
    return entries


def _read_pt(content: bytes, at: str) -> dict[str, Any]:
    import torch

    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises errors of many types
        raise DataError(
            f"{at} is not a .pt file with only tensors, numbers and text. Other Python objects could run code and are "
            "therefore not read. Write it with torch.save(tensor, path), or with a dict of tensors."
        ) from error
    if isinstance(loaded, Mapping):
        return {str(name): value for name, value in loaded.items()}
    return {FEATURES: loaded}


#: Suffix -> the function that converts the contents of such a file to named entries.
FORMATS: dict[str, Callable[[bytes, str], dict[str, Any]]] = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
}


def _unreadable(at: str, suffix: str, writer: str, error: Exception) -> DataError:
    first = (str(error).splitlines() or ["unknown"])[0]
    return DataError(f"{at} is not a readable {suffix} file: {first}. Write it with {writer}.")


def _without_scale(at: str, dtype: str) -> DataError:
    return DataError(
        f"{at}: the array is a waveform of {dtype}, so the scale of its samples is unknown. Expected floating-point "
        "samples from -1 to 1. Divide the samples by the largest possible one, such as "
        "(samples / 32768).astype('float32') for samples of 16 bits, and save the array again. If it is no waveform, "
        "expected shape (n, d), with one row of d features for each of n units."
    )


def _numbers(value: object, at: str, name: str, *, of_waveform: bool = False) -> Tensor:
    """Return a tensor of finite numbers as float32.

    Args:
        value: The tensor.
        at: The row and the file, for messages.
        name: The name of the entry, for messages.
        of_waveform: Whether a tensor with one dimension is a waveform.

    Raises:
        DataError: The value is not a dense tensor of real numbers, it is larger than a file may be, a number is NaN or
            infinite, or it is a waveform of integers or of truth values.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise DataError(f"{at}: '{name}' is of the type {type(value).__name__}, expected a tensor of numbers.")
    if not _is_dense(value) or value.is_complex() or value.is_quantized:
        kind = "nested" if value.is_nested else "meta" if value.is_meta else value.layout
        raise DataError(f"{at}: '{name}' is a {kind} tensor of {value.dtype}, expected a dense tensor of numbers.")
    if of_waveform and value.dim() == 1 and value.numel() and not value.is_floating_point():
        raise _without_scale(at, str(value.dtype).removeprefix("torch."))
    if value.numel() > LARGEST_FILE:  # a few stored numbers can stand for many, as after expand()
        raise DataError(f"{at}: '{name}' has {value.numel():,} numbers, expected at most {LARGEST_FILE:,}.")
    numbers = value.detach().to(torch.float32)
    invalid = ~numbers.isfinite()
    if bool(invalid.any()):
        index = tuple(int(i) for i in invalid.nonzero()[0])
        found = "NaN" if math.isnan(float(value[index])) else "infinite, or too large for float32"
        raise DataError(
            f"{at}: '{name}' at index {list(index)} is {found}, expected finite numbers. Replace the number, or remove "
            "the unit."
        )
    return numbers


def _is_dense(value: Tensor) -> bool:
    """Return whether all numbers of a tensor are in memory, and are not those of several nested tensors."""
    import torch

    return value.layout == torch.strided and not value.is_meta and not value.is_nested


def _rate(value: object, at: str) -> int | None:
    """Return the number of samples per second.

    Raises:
        DataError: It is not a positive whole number.
    """
    if value is None:
        return None
    import torch

    number: Any = value
    if isinstance(value, torch.Tensor) and _is_dense(value) and value.numel() == 1:
        number = value.item()
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole or number < 1:
        raise DataError(f"{at}: '{RATE}' is {value!r}, expected a positive whole number of samples per second.")
    return int(number)


def _names(value: object, at: str, count: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise DataError(f"{at}: '{NAMES}' is of the type {type(value).__name__}, expected a list of texts.")
    if len(value) != count:
        raise DataError(f"{at}: there are {len(value):,} names for {count:,} units. Expected one name per unit.")
    return tuple(value)


def _places(value: object, at: str, name: str, shape: tuple[int, int]) -> Tensor | None:
    """Return the boxes (n, 4) or times (n, 2) of the units.

    Raises:
        DataError: The shape is wrong, a box is not within the picture, or a time ends before it begins.
    """
    if value is None:
        return None
    places = _numbers(value, at, name)
    if tuple(places.shape) != shape:
        raise DataError(f"{at}: '{name}' has the shape {tuple(places.shape)}, expected {shape}.")
    ends = places[:, :2] + places[:, 2:] if name == BOXES else places[:, 1:]
    valid = (places >= 0).all(1) & ((ends <= 1 + _ROUNDING) if name == BOXES else (places[:, :1] <= ends)).all(1)
    if not bool(valid.all()):
        row = int((~valid).int().argmax())
        expected = (
            "x, y, width and height as fractions of the width and the height of the picture, from 0 to 1"
            if name == BOXES
            else "a start of at least 0 and an end that is not before the start, in seconds"
        )
        found = [round(number, 6) for number in places[row].tolist()]
        raise DataError(f"{at}: '{name}' of unit {row} is {found}, expected {expected}.")
    return places
