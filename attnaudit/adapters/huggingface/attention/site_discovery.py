"""Find the attention sites of a model by running it on synthetic tokens.

Shapes: B rows, T tokens, H heads, Q queries, K keys, m features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.blockwise_attention import FORBIDDEN
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall
from attnaudit.adapters.huggingface.attention.layout import DECODER, Layout, embedding_output, value_states
from attnaudit.adapters.huggingface.attention.recorder import AttentionCall, observing
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.logit_comparison import TOLERANCE, attempt, largest_difference
from attnaudit.adapters.huggingface.wrapped_models import CustomModel, backbone_of, name_of
from attnaudit.adapters.protocol import TEXT, Site, SiteKind
from attnaudit.errors import AdapterError

_ONE_TEXT_PER_ROW = (
    "The module must pass the ids of its input, with one text per row, to its Transformers model unchanged. If it puts "
    "several texts of one input into separate rows, write a custom adapter: see docs/adapters.md."
)
#: What to change in attention code that is not part of Transformers.
_OBSERVABLE = (
    " To make attention of your own observable, give its module a class name that contains 'Attention', and compute "
    "the weights with torch.softmax(), in the shape (B, H, Q, K) or (B·H, Q, K)."
)


@dataclass(slots=True)
class SeenAttention:
    """One attention call that was observed in a discovery pass.

    Attributes:
        module: The attention module.
        shape: Shape of the weights, normally (B, H, Q, K).
        sinks: True if the weights of at least one query in the first row sum to less than one.
        causal: True if no query in the first row puts weight on a later key. Always False if Q and K differ.
        output: (B, Q, H, d) outputs of the heads, d features each; None if they were not observed.
        cross: Whether the keys belong to another stream.
        layer_call: Index of the surrounding layer call; -1 if there is none.
        time_first: Whether the module takes states of shape (T, B, m).
        features_first: Whether the module takes states of shape (B, m, T).
    """

    module: nn.Module
    shape: tuple[int, ...]
    sinks: bool
    causal: bool
    output: Tensor | None
    cross: bool = False
    layer_call: int = -1
    time_first: bool = False
    features_first: bool = False


@dataclass(slots=True)
class DiscoveryObserver:
    """An observer that collects all attention calls of a discovery pass.

    Attributes:
        seen: The attention calls so far.
        states: Id of an attention module -> the result of `value_states` for its latest call.
        layer_call: Index of the layer call that is running now; -1 outside of layers.
        skips_masks: As in `Observer`.
        latest: The latest call of an attention function.
    """

    seen: list[SeenAttention] = field(default_factory=list)
    states: dict[int, tuple[Tensor | None, bool]] = field(default_factory=dict)
    layer_call: int = -1
    skips_masks: bool = False
    latest: FunctionCall | None = None

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        call.learn()
        output, weights = call.eager()
        is_same_site, self.latest = call.continues(self.latest), call
        if is_same_site:
            # The output projection is applied to the outputs of both calls.
            self.seen[-1].output = None
        else:
            self._add(call.module, weights, output)
        return output, weights

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        self._add(module, weights.masked_fill(scores <= FORBIDDEN, 0.0), None)
        return weights

    def on_values(self, value: Tensor, output: Tensor) -> None:
        self.seen[-1].output = output.transpose(1, 2)

    def _add(self, module: nn.Module, weights: Tensor, output: Tensor | None) -> None:
        if torch.is_autocast_enabled(weights.device.type):
            raise AdapterError(
                "The model runs in torch.autocast(), so the precision of its weights is not that of its attention, and "
                "it cannot be audited. Pass the model without autocast (after accelerate, "
                "`accelerator.unwrap_model(model, keep_fp32_wrapper=False)`). To audit it in half precision, convert "
                "it: model.to(torch.bfloat16)."
            )
        shape = tuple(weights.shape)
        square = len(shape) == 4 and shape[2] == shape[3]
        states, cross = self.states.get(id(module), (None, False))
        rows, width = (shape[0], shape[-1]) if len(shape) == 4 else (0, 0)
        of_states = () if states is None else tuple(states.shape)
        self.seen.append(
            SeenAttention(
                module=module,
                shape=shape,
                # The first row has no padding, which would distort its sums.
                sinks=bool((weights[0].sum(-1) < 1 - 1e-3).any()),
                causal=square and not bool(weights[0].triu(1).any()),
                output=output,
                cross=cross,
                layer_call=self.layer_call,
                time_first=of_states[:2] == (width, rows) != (rows, width),
                features_first=len(of_states) == 3 and (of_states[0], of_states[2]) == (rows, width) != of_states[:2],
            )
        )


def discover_layout(
    model: nn.Module,
    ids: Tensor,
    forward: Callable[[], object],
    *,
    encoder_decoder: bool,
    embedding: nn.Module | None = None,
) -> Layout:
    """Find the layout of a model by running it twice.

    Args:
        model: The model.
        ids: (B, T) token ids of the text, with B and T different and no padding in the first row.
        forward: Runs the model once on these ids, with its attention observable.
        encoder_decoder: Whether the model has an encoder and a decoder.
        embedding: The module that returns the embeddings; None to search for the module that embeds the ids.

    Raises:
        AdapterError: Some attention of the model cannot be observed or does not have the expected shape, no embedding
            of the ids is found, or a custom module runs its Transformers model several times.
    """
    observer, embeddings = _first_pass(model, ids, forward)
    found = (embeddings[0] if embeddings else None) if embedding is None else (embedding, False)
    if not observer.seen:
        raise AdapterError(
            f"{name_of(model)}: no attention weights were found when the model was run on synthetic tokens. The "
            "architecture has none, or computes them where attnaudit cannot observe them, so it cannot be audited."
            f"{'' if type(model).__module__.startswith('transformers.') else _OBSERVABLE}"
        )
    names = {module: name for name, module in model.named_modules()}
    layer_of = {id(one.module): _surrounding_layer(model, names[one.module]) for one in observer.seen}
    observer, layers, projections = _second_pass(model, forward, layer_of)
    if found is None:
        advice = _ONE_TEXT_PER_ROW if isinstance(model, CustomModel) else "This architecture cannot be audited."
        if any(type(module).__module__.startswith("peft.") for module in model.modules()):
            advice = "Merge the PEFT adapter into the model (`merge_and_unload()`), and audit the result."
        raise AdapterError(
            f"{name_of(model)}: no embedding module was called with the token ids, so gradients at the input "
            f"embeddings cannot be computed. {advice}"
        )
    if embedding is None:
        _require_one_embedding(model, [module for module, _ in embeddings])
    calls = _attention_calls(model, observer.seen, ids, encoder_decoder)
    self_attention = [one for one, call in zip(observer.seen, calls, strict=True) if call.site.kind == "self"]
    return Layout(
        calls=calls,
        layers=tuple(layers),
        embedding=found[0],
        embedding_time_first=found[1],
        decoder_embeddings=(tuple(m for m in model.modules() if _is_alike(m, found[0])) if encoder_decoder else ()),
        output_projections={calls[n].site.key: module for n, module in projections.items()},
        causal=all(one.causal for one in self_attention) and not encoder_decoder,
    )


def _first_pass(
    model: nn.Module, ids: Tensor, forward: Callable[[], object]
) -> tuple[DiscoveryObserver, list[tuple[nn.Module, bool]]]:
    """Run the model once, and find its attention and its embedding.

    Returns:
        The observer, and one pair for each call that embeds the ids: the module that was called, and whether the ids
        had the shape (T, B).
    """
    observer, embeddings = DiscoveryObserver(), list[tuple[nn.Module, bool]]()

    def record_embedding(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given, found = args[0] if args else None, embedding_output(output)[0]
        if not isinstance(given, Tensor) or given.dim() != 2 or not isinstance(found, Tensor):
            return
        if found.shape[:-1] != given.shape:
            return
        for time_first, expected in ((False, ids), (True, ids.T)):
            if given.shape == expected.shape and torch.equal(given, expected):
                embeddings.append((module, time_first))
                return

    handles = [m.register_forward_hook(record_embedding) for m in model.modules() if _may_embed(m)]
    with temporary_hooks(handles), observing(observer), torch.no_grad(), _one_run_of_the_encoder(model):
        forward()
    return observer, embeddings


def _require_one_embedding(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Require that a custom module embeds the ids only once, because gradients are taken at a single embedding.

    Args:
        model: The model.
        modules: The module of each call that embeds the ids.

    Raises:
        AdapterError: It embeds them several times.
    """
    if not isinstance(model, CustomModel) or len(modules) < 2:
        return
    names = {module: name for name, module in model.module.named_modules()}
    raise AdapterError(
        f"{name_of(model)}: the token ids were embedded {len(modules)} times in one forward(), by "
        f"{', '.join(names[module] for module in modules)}. Gradients are taken at one embedding, so they would miss a "
        "part of the influence of the tokens. If the embeddings are the same, compute them once and use them again. "
        "Otherwise, write a custom adapter: see docs/adapters.md."
    )


@contextmanager
def _one_run_of_the_encoder(model: nn.Module) -> Iterator[None]:
    """Require that a custom module runs its Transformers model only once inside the context.

    The module may call a part of this model instead, such as `classifier.bert`.

    Raises:
        AdapterError: It runs the model, or the part without the head, several times.
    """
    if not isinstance(model, CustomModel):
        yield
        return
    whole, part = model.backbone, model.backbone.base_model
    runs: Counter[nn.Module] = Counter()
    handles = [one.register_forward_pre_hook(lambda module, _args: runs.update([module])) for one in {whole, part}]
    with temporary_hooks(handles):
        yield
    times = runs[whole] or runs[part]
    if times > 1:
        raise AdapterError(
            f"{name_of(model)}: the encoder ran {times} times in one forward(). attnaudit audits modules that run it "
            "once, because it records and replaces the attention of one run. If all runs have the same input, run the "
            "encoder once and use its output again. Otherwise, write a custom adapter: see docs/adapters.md."
        )


def _may_embed(module: nn.Module) -> bool:
    """Return whether a module may embed ids: an `nn.Embedding`, or another module with a matrix and no modules inside.

    Quantised embeddings, as in I-BERT, are modules of the second kind. Linear layers are as well, but no model calls
    them with ids.
    """
    weight = getattr(module, "weight", None)
    is_leaf = next(module.children(), None) is None
    return isinstance(module, nn.Embedding) or (is_leaf and isinstance(weight, nn.Parameter) and weight.dim() == 2)


def _is_alike(module: nn.Module, embedding: nn.Module) -> bool:
    """Return whether a module is another `nn.Embedding` with a weight of the same shape."""
    return (
        module is not embedding
        and isinstance(module, nn.Embedding)
        and isinstance(embedding, nn.Embedding)
        and module.weight.shape == embedding.weight.shape
    )


def _surrounding_layer(model: nn.Module, name: str) -> nn.Module | None:
    """Return the member of the outermost `nn.ModuleList` that contains a module; None if no such list contains it."""
    module: nn.Module = model
    for part in name.split("."):
        parent, module = module, module.get_submodule(part)
        if isinstance(parent, nn.ModuleList):
            return module
    return None


def _second_pass(
    model: nn.Module, forward: Callable[[], object], layer_of: Mapping[int, nn.Module | None]
) -> tuple[DiscoveryObserver, list[nn.Module], dict[int, nn.Module]]:
    """Run the model again, and find the layer, the output projection and the value states of each attention call.

    Args:
        model: The model.
        forward: Runs the model once.
        layer_of: id() of an attention module -> the layer that contains the module; None if there is none.

    Returns:
        The observer; the layers in the order of their calls; and a dict, index of an attention call -> its output
        projection.
    """
    observer = DiscoveryObserver()
    layers: list[nn.Module] = []
    projections: dict[int, nn.Module] = {}

    def enter_layer(module: nn.Module, _args: object) -> None:
        layers.append(module)
        observer.layer_call = len(layers) - 1

    def leave_layer(_module: nn.Module, _args: object, _output: object) -> None:
        observer.layer_call = -1

    def record_states(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        observer.states[id(module)] = value_states(module, args, kwargs)

    def record_projection(module: nn.Module, args: tuple[Any, ...]) -> None:
        index = len(observer.seen) - 1
        output = observer.seen[index].output if index >= 0 else None
        if output is None or index in projections or not args or not isinstance(args[0], Tensor):
            return
        flat = output.reshape(*output.shape[:2], -1)
        if args[0].shape == flat.shape and torch.equal(args[0], flat):
            projections[index] = module

    attention_modules = [m for m in model.modules() if id(m) in layer_of]
    distinct_layers = {id(layer): layer for layer in layer_of.values() if layer is not None}.values()
    handles = [m.register_forward_pre_hook(record_states, with_kwargs=True) for m in attention_modules]
    handles += [layer.register_forward_pre_hook(enter_layer) for layer in distinct_layers]
    handles += [layer.register_forward_hook(leave_layer, always_call=True) for layer in distinct_layers]
    handles += [m.register_forward_pre_hook(record_projection) for m in model.modules() if _is_projection(m)]
    with temporary_hooks(handles), observing(observer), torch.no_grad():
        forward()
        wrapped = {n: _with_adapters(model, module, observer.seen[n]) for n, module in projections.items()}
    return observer, layers, wrapped


def _with_adapters(model: nn.Module, projection: nn.Module, seen: SeenAttention) -> nn.Module:
    """Return the module around a linear layer that adds something to its output, as LoRA does.

    This module takes the same states as the linear layer and is linear, too. If there is none, return the linear layer.
    """
    assert seen.output is not None
    weight: Any = projection.weight
    states = seen.output.flatten(2).to(weight.dtype)
    inputs = (states, states.flip(1), states + states.flip(1), torch.zeros_like(states))
    shape = projection(states).shape
    name = next(name for name, module in model.named_modules() if module is projection)
    found = projection
    while name := name.rpartition(".")[0]:
        around = model.get_submodule(name)
        if any(module is seen.module for module in around.modules()):
            break
        # Modules with further arguments, such as those that add the residual stream, cannot be called in this way.
        if not attempt(partial(_is_linear, around, inputs, shape)):
            break
        found = around
    return found


def _is_linear(module: nn.Module, inputs: Sequence[Tensor], shape: torch.Size) -> bool:
    """Return whether a module is linear, up to a constant, and its outputs have the given shape.

    Args:
        module: The module.
        inputs: Two inputs, their sum, and zeros, all of the same shape.
        shape: The expected shape of an output.
    """
    one, other, both, constant = map(module, inputs)
    total = one + other
    return total.shape == shape and largest_difference(both + constant, total) <= TOLERANCE * float(total.abs().max())


def _is_projection(module: nn.Module) -> bool:
    """Return whether a module is a linear layer: an `nn.Linear`, or the class Conv1D, which GPT-2 uses instead."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _attention_calls(
    model: Any, seen: Sequence[SeenAttention], ids: Tensor, encoder_decoder: bool
) -> tuple[AttentionCall, ...]:
    encoder_modules: set[int] = set()
    if encoder_decoder:
        encoder_modules = {id(m) for m in backbone_of(model).base_model.get_encoder().modules()}
    layers_per_stack: dict[str, int] = {}
    calls = []
    for one in seen:
        if len(one.shape) != 4 or one.shape[0] != len(ids):
            raise AdapterError(
                f"{name_of(model)}: the weights of its {type(one.module).__name__} have shape {one.shape}; "
                f"expected (B, H, Q, K) with B = {len(ids)}. Attention of another shape cannot be audited."
            )
        kind: SiteKind = "cross" if one.cross else "self"
        stack = "layer" if not encoder_decoder else "encoder" if id(one.module) in encoder_modules else DECODER
        query = keys = TEXT if stack != DECODER else DECODER
        if one.cross:
            stack, keys = "cross", TEXT
        if (keys == TEXT and one.shape[3] != ids.shape[1]) or (query == TEXT and one.shape[2] != ids.shape[1]):
            raise AdapterError(
                f"{name_of(model)}: {type(one.module).__name__} has {one.shape[2]} × {one.shape[3]} weights (queries × "
                f"keys) for {ids.shape[1]} tokens. An audit needs one key per token and, in self-attention, one query "
                f"per token, so {_advice_on_shape(model, one.module)}."
            )
        layer = layers_per_stack.get(stack, 0)
        layers_per_stack[stack] = layer + 1
        site = Site(
            key=f"{stack}.{layer}",
            layer=layer,
            kind=kind,
            heads=one.shape[1],
            query=query,
            keys=keys,
            sinks=one.sinks,
        )
        calls.append(
            AttentionCall(
                site=site,
                module=one.module,
                layer_call=one.layer_call,
                time_first=one.time_first,
                features_first=one.features_first,
            )
        )
    return tuple(calls)


def _advice_on_shape(model: nn.Module, attention: nn.Module) -> str:
    """Return what to do about an attention module with other numbers of queries and keys, for an error message."""
    if isinstance(model, CustomModel) and all(one is not attention for one in model.backbone.modules()):
        return (
            "this module is not audited as attention. If it pools the tokens, give its class a name without "
            "'Attention': it is then listed among the modules that mix tokens"
        )
    return "this architecture cannot be audited"
