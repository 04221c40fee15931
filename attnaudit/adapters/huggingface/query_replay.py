"""Replay: compute the logits after the attention weights of one query at one site are replaced.

There are three functions. `replay_full` repeats the whole forward pass and always gives the correct logits.
`replay_from_layer` starts at the site's layer. `replay_one_position` runs only the last layer, at a single position. At
each site, the last two functions are used only if probing has shown that they give the same logits as `replay_full`.

Shapes: B rows, V different weights for each row, T tokens, H heads, K keys, C classes, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.function_call import FunctionCall
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.adapters.huggingface.layer_states import LayerStates, map_tensors, repeat_rows, skipped_layers
from attnaudit.adapters.huggingface.layout import Layout
from attnaudit.adapters.huggingface.recorder import FunctionObserver, Recorder, expand_groups
from attnaudit.adapters.huggingface.runner import Runner
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import Inputs, Intervention, Site, Trace
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
    states, layout = trace.cache, runner.layout
    assert isinstance(states, LayerStates)
    call = layout.calls[layout.call_index(site)]
    repeated_inputs = repeated(inputs, variants)

    def output_of(layer_call: int) -> Any:
        return map_tensors(
            states.outputs[layer_call], lambda value: repeat_rows(value, rows, variants, time_first=call.time_first)
        )

    with skipped_layers(layout, call.layer_call, output_of):
        recorder = runner.recorder(
            repeated_inputs,
            intervene=row_replacement(site, weights.flatten(0, 1)),
            sites=(site.key,),
            queries={site.key: queries.repeat_interleave(variants)[:, None]},
            first=layout.first_call_in_layer(site),
        )
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
    with _last_layer_at(runner.layout, site, states, queries, variants):
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
def _last_layer_at(layout: Layout, site: Site, states: LayerStates, queries: Tensor, variants: int) -> Iterator[None]:
    """Inside the context, run only the last layer, and in each row only the position in `queries` (B,).

    The last layer reads its recorded input at this position, repeated V times. Earlier layers are skipped.
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

    with skipped_layers(layout, layer_call, output_of), temporary_hooks([_hook_last_call(layout.layers, enter)]):
        yield


def _hook_last_call(layers: Sequence[nn.Module], enter: Callable[..., Any]) -> Any:
    """Register a forward pre-hook that calls `enter` only at the last layer call.

    If layers share their weights, the module of the last layer is also called earlier in a pass.
    """
    calls = 0
    earlier = sum(layer is layers[-1] for layer in layers) - 1

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return enter(module, args, kwargs) if calls > earlier else None

    return layers[-1].register_forward_pre_hook(hook, with_kwargs=True)
