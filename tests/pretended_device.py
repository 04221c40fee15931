"""A CUDA device where there is none: tensors lie on the CPU and remember where they would be.

    with pretended_device() as device:
        measure(adapter, data, needs, model="m", seed=0, device="cuda")
    assert not device.mixes

What a real device refuses (an operation on tensors of two devices, NumPy on one that is not on the CPU) is noted in
`mixes` with the line that did it. Numbers are those of the CPU. Inside `vmap` nothing is noted. What would wait for a
real device, because the program reads numbers from it, is counted in `reads` by the line that did it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).parents[1]
#: These take indices from the CPU too, but no data from there.
INDEXING = {"__getitem__", "__setitem__", "index_put_"}
#: The lengths of packed rows stay on the CPU.
PACKED = {"_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru"}
#: These exist to bring tensors of two devices together, or only compare what they are.
ANYWHERE = {"copy_", "set_", "result_type", "is_same_size", "_has_compatible_shallow_copy_type"}


#: These return numbers, or results whose shapes depend on numbers, so the program waits for them.
READING = {"cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "unique", "equal"}


class OnDevice(Tensor):
    """Where a tensor would be: its class says so."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class PretendedDevice(TorchFunctionMode):
    """mixes: "operation at file:line" of what a device would have refused. operations: how many it would have done.
    reads: "operation at file:line" -> how often the program would have waited for numbers of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.mixes: list[str] = []
        self.operations = 0
        self.reads: Counter[str] = Counter()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", str(function))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [one for one in tensors if isinstance(one, OnDevice)]
        self.operations += bool(there)
        if there and (name in READING or (name == "__getitem__" and _by_flags(args[1]))):
            self.reads[self._place(name)] += 1
        if name == "__get__":
            name = getattr(getattr(function, "__self__", None), "__name__", "")
            if name in ("device", "is_cuda") and there:
                return torch.device("cuda", 0) if name == "device" else True
        elif name == "__set__":
            return function(*args, **kwargs)
        elif name == "to":
            return _moved(*args, **kwargs)
        elif name == "cpu":
            return _back(function(*args, **kwargs))
        elif name == "pin_memory":
            return args[0]
        elif name == "numpy" and there:
            self._note("numpy")
        elif there and name not in ANYWHERE:
            self._compare(name, args, tensors)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "meta":
            made = function(*args, **{**kwargs, "device": "cpu"})
            return _on_device(made) if torch.device(device).type == "cuda" else _back(made)
        made = function(*args, **kwargs)
        if name in ("_pack_padded_sequence", "_pad_packed_sequence"):
            return (_on_device(made[0]) if there else made[0]), made[1]
        return _on_device(made) if there else made

    def _compare(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        here = [one for one in tensors if _here(one) and one.dim()]
        if name in PACKED:
            here = [one for one in here if one.dtype != torch.int64 or one.dim() > 1]
        if name in INDEXING:
            here = [one for one in (args[0], *args[2:]) if _here(one) and one.dim()]
        if here:
            self._note(name)

    def _note(self, name: str) -> None:
        self.mixes.append(self._place(name))

    def _place(self, name: str) -> str:
        places = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
        path, line = [(path, line) for path, line in places if ROOT in path.parents and path != Path(__file__)][-1]
        return f"{name} at {path.relative_to(ROOT).as_posix()}:{line}"


def _by_flags(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Tensor.to: another tensor, a device or a dtype, in place or by name."""
    there, kind = isinstance(tensor, OnDevice), tensor.dtype
    for one in (*args, *kwargs.values()):
        if isinstance(one, Tensor):
            there, kind = isinstance(one, OnDevice), one.dtype
        elif isinstance(one, torch.dtype):
            kind = one
        elif isinstance(one, str | torch.device):
            there = torch.device(one).type == "cuda"
    found = tensor.to(kind, copy=there != isinstance(tensor, OnDevice))
    return _on_device(found) if there else _back(found)


def _wrapped(tensor: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _on_device(made: Any) -> Any:
    """Every tensor in it, as one that is there."""
    return tree_map(lambda one: one.as_subclass(OnDevice) if _here(one) else one, made)


def _here(one: Any) -> bool:
    return isinstance(one, Tensor) and not isinstance(one, OnDevice) and not _wrapped(one)


def _back(made: Any) -> Any:
    return tree_map(lambda one: one.as_subclass(Tensor) if isinstance(one, OnDevice) else one, made)


@contextmanager
def pretended_device() -> Iterator[PretendedDevice]:
    """torch finds one CUDA device. `Module.to` makes new parameters, since old ones would keep their class."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with pytest.MonkeyPatch.context() as patch, PretendedDevice() as device:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "device_count", lambda: 1)
            yield device
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
