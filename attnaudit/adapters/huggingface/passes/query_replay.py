"""Replay: compute the logits after the attention weights of one query at one site are replaced.

There are four functions. `replay_full` repeats the whole forward pass and always gives the correct logits.
`replay_from_layer` starts at the site's layer. `replay_after_position` runs the site's layer only at the position of
the query, and later layers at all positions. `replay_one_position` runs only the last layer, at a single position. At
each site, the last three functions are used only if probing has shown that they give the same logits as `replay_full`.

Shapes: B rows, V different weights for each row, T tokens, H heads, K keys, C classes, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.function_call import FunctionCall
from attnaudit.adapters.huggingface.attention.layout import Layout
from attnaudit.adapters.huggingface.attention.recorder import FunctionObserver, Recorder
from attnaudit.adapters.huggingface.attention.weighted_values import expand_groups
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.adapters.huggingface.passes.layer_states import LayerStates, map_tensors, repeat_rows, skipped_layers
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TEXT, Inputs, Intervention, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention
from attnaudit.adapters.site_selection import at_query


def replay_full(runner: Runner, inputs: Inputs, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
    """Replay weights by repeating the whole forward pass.

    Args:
        runner: Runs the model.
        inputs: The batch.
        site: The site at which weights are replaced.
        queries: (B,) position, in each row, of the query whose weights are replaced.
        weights: (B, V, H, K) new weights of the query.

    Returns:
        (B, V, C) logits.
    """
    rows, variants = weights.shape[:2]
    trace = runner.run(
        repeated(inputs, variants),
        intervene=row_replacement(site, weights.flatten(0, 1)),
        sites=(site.key,),
        queries={site.key: queries.repeat_interleave(variants)[:, None]},
    )
    return trace.logits.reshape(rows, variants, -1)


def replay_from_layer(
    runner: Runner, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor
) -> Tensor:
    """Replay weights by running only the site's layer and all later layers, at all positions.

    Earlier layers return the outputs that are recorded in `trace`. The trace must come from `run(hidden=True)`. The
    other arguments and the result are the same as in `replay_full`.
    """
    rows, variants = weights.shape[:2]
    logits = run_from_layer(
        runner,
        inputs,
        trace,
        site,
        variants,
        row_replacement(site, weights.flatten(0, 1)),
        sites=(site.key,),
        queries={site.key: queries.repeat_interleave(variants)[:, None]},
    )
    return logits.reshape(rows, variants, -1)


def run_from_layer(
    runner: Runner,
    inputs: Inputs,
    trace: Trace,
    site: Site,
    variants: int,
    intervene: Intervention | BlockIntervention,
    *,
    sites: Collection[str],
    queries: Mapping[str, Tensor] | None = None,
    blocks: Collection[str] = (),
) -> Tensor:
    """Run a site's layer and all later layers under an intervention. Earlier layers return their recorded outputs.

    Args:
        runner: Runs the model.
        inputs: The batch.
        trace: The trace of `run(inputs, hidden=True)`.
        site: A site in the first layer that runs.
        variants: How often each row is repeated, with its copies next to each other.
        intervene: The intervention on the repeated rows.
        sites: As in `BlockAdapter.run`.
        queries: As in `BlockAdapter.run`, for the repeated rows.
        blocks: As in `BlockAdapter.run`.

    Returns:
        (B·V, C) logits.
    """
    states, layout = trace.cache, runner.layout
    assert isinstance(states, LayerStates)
    call = layout.calls[layout.call_index(site)]
    repeated_inputs = repeated(inputs, variants)
    rows = len(inputs.ids[TEXT])

    def output_of(layer_call: int) -> Any:
        return map_tensors(
            states.outputs[layer_call], lambda value: repeat_rows(value, rows, variants, time_first=call.time_first)
        )

    with skipped_layers(layout, range(call.layer_call), output_of):
        recorder = runner.recorder(
            repeated_inputs,
            intervene=intervene,
            sites=sites,
            queries=queries,
            blocks=blocks,
            first=layout.first_call_in_layer(site),
        )
        return runner.logits(repeated_inputs, recorder)


def replay_after_position(
    runner: Runner, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor
) -> Tensor:
    """Replay weights by running the site's layer only at the position of the query, and later layers at all positions.

    In the output of the site's layer, only the state at this position differs from the recorded output. The layer must
    not be the last one. The arguments and the result are the same as in `replay_from_layer`.
    """
    rows, variants = weights.shape[:2]
    states, layout = trace.cache, runner.layout
    assert isinstance(states, LayerStates)
    layer_call = layout.calls[layout.call_index(site)].layer_call
    changed: list[Tensor] = []

    def keep_changed(_module: nn.Module, _args: object, output: Any) -> None:
        changed.append(_states_of(output))

    observer = OnePositionAttention(layout, site, trace, queries, weights)
    tokens = runner.builder.single_tokens(inputs, queries, variants)
    with (
        _layer_at(layout, site, states, queries, variants),
        temporary_hooks(_hooks_at_call(layout, layer_call, after=keep_changed)),
    ):
        runner.logits(tokens, observer)
    (state,) = changed
    repeated_inputs = repeated(inputs, variants)
    index = queries.repeat_interleave(variants)[:, None, None].to(state.device)

    def output_of(call: int) -> Any:
        output = map_tensors(states.outputs[call], lambda value: repeat_rows(value, rows, variants))
        if call < layer_call:
            return output
        whole = _states_of(output)
        whole = whole.scatter(1, index.expand(-1, 1, whole.shape[2]), state)
        return whole if isinstance(output, Tensor) else type(output)((whole, *output[1:]))

    later = [number for number, call in enumerate(layout.calls) if call.layer_call > layer_call]
    with skipped_layers(layout, range(layer_call + 1), output_of):
        recorder = runner.recorder(repeated_inputs, sites=(), first=later[0])
        return runner.logits(repeated_inputs, recorder).reshape(rows, variants, -1)


def replay_one_position(
    runner: Runner, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor
) -> Tensor:
    """Replay weights by running only the last layer, and in each row only the position in `queries` (B,).

    The site must be in the last layer, and the model must read its logits from these positions. The arguments and the
    result are the same as in `replay_from_layer`.
    """
    rows, variants = weights.shape[:2]
    states = trace.cache
    assert isinstance(states, LayerStates)
    observer = OnePositionAttention(runner.layout, site, trace, queries, weights)
    tokens = runner.builder.single_tokens(inputs, queries, variants)
    with _layer_at(runner.layout, site, states, queries, variants):
        return runner.logits(tokens, observer).reshape(rows, variants, -1)


def row_replacement(site: Site, weights: Tensor) -> Intervention:
    """Return an intervention that replaces the weights of a query at a site.

    The pass must request the attention of only this query at the site.

    Args:
        site: The site.
        weights: (B, H, K) new weights of the query.
    """

    def intervene(current: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return weights[:, :, None, :].to(live.dtype) if current.key == site.key else None

    return intervene


class OnePositionAttention(FunctionObserver):
    """An observer for `replay_one_position`. It computes the attention of the last layer at a single position.

    The values come from a recorded pass over all positions. At the site whose weights are replaced, the output is their
    weighted sum under the new weights. At other sites of the layer, it is their weighted sum under the weights of this
    position in the recorded pass.
    """

    def __init__(
        self,
        layout: Layout,
        site: Site,
        trace: Trace,
        queries: Tensor,
        weights: Tensor,
    ) -> None:
        """Create an observer for one pass.

        Args:
            layout: The model's layout.
            site: The site at which weights are replaced.
            trace: The recorded pass, with its layer states.
            queries: (B,) the single position in each row.
            weights: (B, V, H, K) new weights at the site.
        """
        assert isinstance(trace.cache, LayerStates)
        self.site, self.trace, self.states = site, trace, trace.cache
        self.queries, self.weights = queries, weights
        self._order = Recorder(layout.calls, {}, first=layout.first_call_in_layer(site))

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        current = self._order.next_call(call.module).site
        weights = self.weights
        if current.key != self.site.key:
            recorded = at_query(self.trace, self.trace.attention[current.key].detach(), current.key, self.queries)
            weights = recorded[:, None].expand(-1, self.weights.shape[1], -1, -1)
        value = expand_groups(self.states.values[current.key].detach(), weights.shape[2])
        wide = widened(value)
        output = (weights.transpose(1, 2).to(wide) @ wide).transpose(1, 2).to(value.dtype)
        return output.flatten(0, 1).unsqueeze(1), weights.flatten(0, 1).unsqueeze(2)


@contextmanager
def _layer_at(layout: Layout, site: Site, states: LayerStates, queries: Tensor, variants: int) -> Iterator[None]:
    """Inside the context, run only a site's layer, and in each row only the position in `queries` (B,).

    The layer reads its recorded input at this position, repeated V times. All other layers are skipped.
    """
    layer_call = layout.calls[layout.call_index(site)].layer_call
    given = states.inputs[layer_call]
    assert given is not None
    rows = len(given)
    index = queries[:, None, None].to(given.device).expand(-1, 1, given.shape[2])
    at_query = given.gather(1, index).repeat_interleave(variants, dim=0)

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if isinstance(kwargs.get("hidden_states"), Tensor):
            return args, {**kwargs, "hidden_states": at_query}
        return (at_query, *args[1:]), kwargs

    def output_of(call: int) -> Any:
        # Nothing reads the values that a skipped layer returns. Those of the first position have the right shape.
        return map_tensors(
            states.outputs[call], lambda value: repeat_rows(value[:, :1] if value.dim() == 3 else value, rows, variants)
        )

    others = set(range(len(layout.layers))) - {layer_call}
    with skipped_layers(layout, others, output_of), temporary_hooks(_hooks_at_call(layout, layer_call, before=enter)):
        yield


def _hooks_at_call(
    layout: Layout,
    layer_call: int,
    *,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> list[Any]:
    """Register hooks that run only at one layer call. Layers that share their weights are the same module.

    Args:
        layout: The model's layout.
        layer_call: Index of the call.
        before: A forward pre-hook that takes keyword arguments; None for no such hook.
        after: A forward hook; None for no such hook.
    """
    begun = ended = 0

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal begun
        begun += 1
        return before(module, args, kwargs) if before is not None and begun == layer_call + 1 else None

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        nonlocal ended
        ended += 1
        return after(module, args, output) if after is not None and ended == layer_call + 1 else None

    layers = layout.distinct_layers
    return [
        *(layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers),
        *(layer.register_forward_hook(leave) for layer in layers),
    ]


def _states_of(output: Any) -> Tensor:
    """Return the hidden states (B, T, m) in what a layer returns: a tensor, or a tuple that begins with it."""
    states: Tensor = output if isinstance(output, Tensor) else output[0]
    return states
