"""Modules around a Transformers model: containers that compute the same logits, and custom modules.

Shapes: B rows, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.errors import ModelError

#: A function that runs a module on the arguments of a Transformers model, and returns the logits (B, C).
ReadLogits = Callable[[nn.Module, Mapping[str, Any]], Tensor]
#: The arguments that tokenizers return.
_OF_TOKENIZERS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
EXAMPLE = "logits=lambda model, inputs: model(inputs['input_ids'], inputs['attention_mask'])"


class CustomModel(nn.Module):
    """A custom module around a Transformers model, with the interface of a Transformers classifier.

    Attributes:
        module: The custom module.
        backbone: The Transformers model inside the custom module.
        read_logits: Runs the module and returns the logits; None to call the module with the arguments that it accepts.
    """

    def __init__(self, module: nn.Module, backbone: Any, read_logits: ReadLogits | None) -> None:
        super().__init__()
        self.module = module
        # The tuple keeps torch from registering the backbone a second time: it already is a submodule of `module`.
        self._backbone = (backbone,)
        self.read_logits = read_logits

    @property
    def backbone(self) -> Any:
        return self._backbone[0]

    @property
    def config(self) -> Any:
        return self.backbone.config

    def forward(self, **arguments: Any) -> Any:
        with _differentiable(self.backbone):
            if self.read_logits is not None:
                return self.read_logits(self.module, arguments)
            return self.module(**arguments)

    def get_input_embeddings(self) -> Any:
        return self.backbone.get_input_embeddings()

    def get_output_embeddings(self) -> None:
        """Return None: the custom module may use the logits of all tokens."""

    def set_attn_implementation(self, name: str) -> None:
        self.backbone.set_attn_implementation(name)


@contextmanager
def _differentiable(backbone: nn.Module) -> Iterator[None]:
    """Inside the context, keep gradients enabled in the Transformers model even if the custom module disables them.

    Modules with a frozen Transformers model often run it inside `torch.no_grad()`. If gradients are disabled when the
    context starts, they stay disabled.
    """
    if not torch.is_grad_enabled():
        yield
        return
    before: list[bool] = []

    def enter(_module: nn.Module, _args: object) -> None:
        before.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)

    def leave(_module: nn.Module, _args: object, _output: object) -> None:
        torch.set_grad_enabled(before.pop())

    handles = [backbone.register_forward_pre_hook(enter), backbone.register_forward_hook(leave, always_call=True)]
    with temporary_hooks(handles):
        yield


def inner_models(model: nn.Module) -> dict[str, Any]:
    """Return the Transformers models inside a Transformers model, as a dict: name of the submodule -> the model."""
    from transformers import PreTrainedModel

    outer = backbone_of(model)
    return {name: one for name, one in outer.named_modules() if one is not outer and isinstance(one, PreTrainedModel)}


def is_transformers_model(model: nn.Module) -> bool:
    """Return whether a model is an instance of Transformers' `PreTrainedModel`."""
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)


def backbone_of(model: Any) -> Any:
    """Return the Transformers model inside a `CustomModel`; any other model is returned unchanged."""
    return model.backbone if isinstance(model, CustomModel) else model


def name_of(model: nn.Module) -> str:
    """Return the class name of a model. For a `CustomModel`, it is the class name of the custom module."""
    return type(model.module if isinstance(model, CustomModel) else model).__name__


def accepted_arguments(model: nn.Module) -> tuple[frozenset[str], bool]:
    """Return the names of the arguments that a model's forward() accepts, and whether it also accepts **kwargs.

    A `CustomModel` accepts the arguments of its backbone if its module accepts **kwargs, or if it has `read_logits`.
    Otherwise it accepts the arguments of its module. If its backbone does not name `input_ids`, a `CustomModel` with
    `read_logits` also accepts the arguments that tokenizers return.
    """
    if isinstance(model, CustomModel):
        names, others = accepted_arguments(model.module)
        if others or model.read_logits is not None:
            names = accepted_arguments(model.backbone)[0]
        return names if model.read_logits is None or "input_ids" in names else names | _OF_TOKENIZERS, False
    parameters = inspect.signature(model.forward).parameters.values()
    names = frozenset(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return names, any(one.kind == one.VAR_KEYWORD for one in parameters)


def unwrapped(model: Any, name: str) -> tuple[Any, list[str]]:
    """Remove containers around a model, if these containers do not change its logits.

    The containers are those of torch.compile, DataParallel and PEFT. A PEFT adapter that changes weights or layers
    stays active.

    Args:
        model: A model in memory.
        name: The class name of the model, for messages.

    Returns:
        The model inside, and the names of the containers, the outermost first.

    Raises:
        ModelError: The model has a PEFT adapter that adds virtual tokens, or a part of the model is compiled.
    """
    removed = []
    inner = model
    while isinstance(inner, nn.Module):
        kind = type(inner).__name__
        if hasattr(inner, "_orig_mod"):
            removed.append("torch.compile")
            inner = inner._orig_mod
        elif isinstance(inner, nn.DataParallel) or kind == "DistributedDataParallel":
            removed.append(kind)
            inner = inner.module
        elif hasattr(inner, "peft_config") and hasattr(inner, "base_model") and kind.startswith("Peft"):
            removed.append(f"PEFT {_peft_method(inner, name)}")
            wrapped: Any = inner.base_model
            inner = wrapped.model
        else:
            break
    for one in inner.modules() if isinstance(inner, nn.Module) else ():
        _peft_method(one, name)
    if isinstance(inner, nn.Module) and any(hasattr(one, "_orig_mod") for one in inner.modules()):
        raise ModelError(
            f"{name}: a module inside it is compiled by torch.compile, so its attention cannot be observed. Pass the "
            "model as it was before this part was compiled."
        )
    if isinstance(inner, nn.Module) and any(getattr(one, "_compiled_call_impl", None) for one in inner.modules()):
        removed.append("compile()")
        for one in inner.modules():
            one._compiled_call_impl = None
    for one in inner.modules() if isinstance(inner, nn.Module) else ():
        original = getattr(one.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
        if original is not None:
            removed += [] if "compile(forward)" in removed else ["compile(forward)"]
            one.__dict__["forward"] = original
    return inner, removed


def _peft_method(module: nn.Module, name: str) -> str:
    """Return the method of a PEFT container; "adapter" if it is unknown, or if the module is no such container.

    Raises:
        ModelError: The method adds virtual tokens.
    """
    peft = getattr(module, "active_peft_config", None)
    method = str(getattr(getattr(peft, "peft_type", None), "value", "adapter"))
    if getattr(peft, "is_prompt_learning", False):
        raise ModelError(
            f"{name}: the PEFT method {method} adds virtual tokens. They receive attention but are not part of the "
            "text, so the model cannot be audited. Train an adapter that changes weights, such as LoRA."
        )
    return method


def custom_model(module: nn.Module, read_logits: ReadLogits | None) -> CustomModel:
    """Give a custom module around a Transformers model the interface of a Transformers classifier.

    Raises:
        ModelError: The module contains no Transformers model, or several, or its arguments are unknown.
    """
    from transformers import PreTrainedModel

    name = type(module).__name__
    found = _outermost(module, PreTrainedModel)
    if len(found) != 1:
        held = ", ".join(type(one).__name__ for one in found) or "none"
        raise ModelError(
            f"transformer({name}): expected a checkpoint folder, a Transformers model, or a module that contains "
            f"exactly one Transformers model, but this module contains {held}. For other models, write a custom "
            "adapter: see docs/adapters.md."
        )
    model = CustomModel(module, found[0], read_logits)
    if not accepted_arguments(model)[0] & {"input_ids", "pixel_values", "input_values"}:
        raise ModelError(
            f"transformer({name}): its forward() has none of the arguments input_ids (texts), pixel_values (pictures) "
            "and input_values (recordings), so it is unclear how to call it. Pass a function that returns the "
            f"logits: {EXAMPLE}."
        )
    return model


def quantisation_of(model: Any) -> str:
    """Return the method by which a model in memory is quantised, such as "bitsandbytes"; "" if it is unquantised.

    When Transformers loads a GGUF file, it converts the packed weights to floating-point numbers, unless it can compute
    with the packed weights themselves. A converted model is unquantised, although its configuration names the method.
    """
    settings = getattr(model.config, "quantization_config", None)
    if settings is not None or getattr(model, "is_quantized", False):
        table = settings if isinstance(settings, dict) else vars(settings) if settings is not None else {}
        method = table.get("quant_method", "method unknown")
        method = str(getattr(method, "value", method))
        packed = any(one.dtype == torch.uint8 for one in (*model.parameters(), *model.buffers()))
        return "" if method == "gguf" and not packed else method
    quantised = next((one for one in model.modules() if ".quantized" in type(one).__module__), None)
    return "" if quantised is None else f"torch.ao, {type(quantised).__name__}"


def _outermost(module: nn.Module, kind: type) -> list[nn.Module]:
    """Return the modules of a kind that are not inside another module of the same kind."""
    if isinstance(module, kind):
        return [module]
    found = [inner for child in module.children() for inner in _outermost(child, kind)]
    return list(dict.fromkeys(found))


def logits_of(output: Any, classes: int, name: str) -> Tensor:
    """Return the logits (B, C) in the output of a model: a tensor, a field `logits`, or the only such entry of a tuple.

    Logits in half precision are returned as float32.

    Args:
        output: What forward() returned.
        classes: C, the number of classes.
        name: The class name of the model, for messages.

    Raises:
        ModelError: The output contains no logits of this shape, or several tensors that may be the logits.
    """
    widths = ((1,), (2,)) if classes == 2 else ((classes,),)
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    elif hasattr(output, "logits"):  # also a named tuple
        output = output.logits
    elif isinstance(output, Sequence):
        tensors = [one for one in output if isinstance(one, Tensor) and one.shape[1:] in widths]
        if len({id(one) for one in tensors}) > 1:
            raise ModelError(
                f"{name}: its forward() returned {len(tensors)} tensors that may be the logits (B, {classes}). "
                f"Pass a function that returns the right one, such as {EXAMPLE}[1]."
            )
        output = tensors[0] if tensors else output
    if not isinstance(output, Tensor) or output.shape[1:] not in widths:
        found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ModelError(
            f"{name}: its forward() returned {found}; expected logits of shape (B, {classes}), one per class. Pass a "
            f"function that returns such logits: {EXAMPLE}."
        )
    return widened(output)
