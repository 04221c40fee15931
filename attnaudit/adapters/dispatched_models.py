"""Models that accelerate has dispatched: distributed over several devices, or with weights that it has offloaded.

accelerate attaches hooks to the modules of such a model. Before a module runs, its hook moves the inputs to the device
of the module, and loads offloaded weights. Between passes, offloaded weights are on torch's meta device. Importing this
module does not import accelerate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.errors import AuditError


def _hooks(module: nn.Module) -> Iterator[Any]:
    """Yield the hooks of accelerate that move data to the device of a module. Its submodules have their own hooks."""
    # Looking into `__dict__` is much faster than `getattr`, and is done for all modules whenever a batch is built.
    pending = [module.__dict__["_hf_hook"]] if "_hf_hook" in module.__dict__ else []
    while pending:
        hook = pending.pop()
        pending += getattr(hook, "hooks", ())
        if hasattr(hook, "execution_device"):
            yield hook


def is_dispatched(model: nn.Module) -> bool:
    """Return whether a model has hooks of accelerate that move data between devices."""
    return any(True for module in model.modules() for _ in _hooks(module))


def device_of(module: nn.Module) -> torch.device | None:
    """Return the device on which a module computes; None if it has neither a hook nor parameters of its own."""
    for hook in _hooks(module):
        if hook.execution_device is not None:
            return torch.device(hook.execution_device)
    return next((one.device for one in module.parameters() if not one.is_meta), None)


def stored_value(model: nn.Module, name: str) -> Tensor | None:
    """Return the value of an offloaded parameter or buffer; None if accelerate has not stored it.

    Args:
        model: The model.
        name: The name of the parameter or buffer in the model.
    """
    parts = name.split(".")
    for count in reversed(range(len(parts))):
        module = model.get_submodule(".".join(parts[:count]))
        for hook in _hooks(module):
            weights: Mapping[str, Tensor] | None = getattr(hook, "weights_map", None)
            try:
                if weights is not None:
                    return weights[".".join(parts[count:])]
            except KeyError:
                continue
    return None


def value_of(module: nn.Module, name: str) -> Tensor:
    """Return a parameter of a module, on the device on which the module computes.

    An offloaded parameter is returned without gradients.

    Args:
        module: The module.
        name: The name of the parameter in the module, such as "weight".

    Raises:
        ValueError: The parameter has no value.
    """
    parameter: Tensor = getattr(module, name)
    if not parameter.is_meta:
        return parameter
    value = stored_value(module, name)
    if value is None:
        raise ValueError(f"{type(module).__name__}.{name} has no value.")
    return value.to(device_of(module), parameter.dtype)


def place(modules: Sequence[nn.Module], device: str, option: str) -> None:
    """Put modules in evaluation mode and move them to a device. Dispatched models stay where they are.

    Args:
        modules: The modules of an adapter.
        device: The name of the device.
        option: The option that names the device, for the message.

    Raises:
        AuditError: A dispatched model has its embeddings on another device.
    """
    for module in modules:
        if any(part.training for part in module.modules()):
            module.eval()
        if is_dispatched(module):
            require_same_device(module, device, option)
        elif not _is_on(module, device):
            module.to(device)


def _is_on(module: nn.Module, device: str) -> bool:
    """Return whether all parameters and buffers of a module are on a device."""
    wanted = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as in the devices of parameters
    # For all modules, these dictionaries are read much faster than the iterators of PyTorch.
    stored = (tensors for part in module.modules() for tensors in (part._parameters, part._buffers))
    return all(one.device == wanted for tensors in stored for one in tensors.values() if one is not None)


def require_same_device(model: nn.Module, device: str, option: str) -> None:
    """Check that a device is the one on which a dispatched model reads its inputs. All other models are accepted.

    Raises:
        AuditError: The model reads its inputs on another device.
    """
    if not is_dispatched(model):
        return
    own, wanted = input_device(model), torch.device(device)
    if own.type == wanted.type and wanted.index in (None, own.index):
        return
    raise AuditError(
        f"{option} {device}: accelerate has distributed {type(model).__name__} over several devices or offloaded its "
        f"weights, so it cannot be moved. It reads its inputs on {own}. Use {option} {own}, or load the model without "
        "device_map."
    )


def input_device(model: nn.Module) -> torch.device:
    """Return the device of a model's inputs: that of its embeddings, or of its first module with parameters."""
    if not is_dispatched(model):
        return next(model.parameters()).device
    model_api: Any = model
    try:
        embeddings = model_api.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # a model without input embeddings, such as one of pictures
        embeddings = None
    modules = [embeddings, *model.modules()] if isinstance(embeddings, nn.Module) else list(model.modules())
    found = (device_of(module) for module in modules)
    return next((device for device in found if device is not None), torch.device("cpu"))
