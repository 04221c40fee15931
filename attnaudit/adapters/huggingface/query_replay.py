"""Logits under other attention weights at one query of one site.

There are three functions. `replay_full` repeats the whole forward pass and is always right. `replay_from_layer` starts
at the site's layer, and `replay_one_position` runs only the last layer, at a single position. The last two are used at
a site only if probing has shown that they give the same logits as the first.

Shapes: B rows, V variants of each row, T tokens, H heads, K keys, C classes, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.layer_states import LayerStates, map_tensors, repeat_rows, skipped_layers
from attnaudit.adapters.huggingface.layout import Layout
from attnaudit.adapters.huggingface.recorder import EagerAttention, Recorder, expand_groups
from attnaudit.adapters.huggingface.runner import Runner
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import Inputs, Intervention, Site, Trace


def replay_full(runner: Runner, inputs: Inputs, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
    """Repeat the whole pass for every variant, with the weights replaced.

    Args:
        runner: Runs the model.
        inputs: The batch.
        site: The site at which weights are replaced.
        queries: (B,) position of the query whose weights are replaced.
        weights: (B, V, H, K) weights to use instead.

    Returns:
        (B, V, C) logits.
    """
    rows, variants = weights.shape[:2]
    intervene = row_replacement(site, queries.repeat_interleave(variants), weights.flatten(0, 1))
    return runner.run(repeated(inputs, variants), intervene=intervene).logits.reshape(rows, variants, -1)


def replay_from_layer(
    runner: Runner, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor
) -> Tensor:
    """Run the site's layer and those after it, over all positions; arguments and result as in `replay_full`.

    The layers before it return what they returned in `trace`, which must come from `run(hidden=True)`.
    """
    rows, variants = weights.shape[:2]
    states, layout = trace.cache, runner.layout
    assert isinstance(states, LayerStates)
    call = layout.calls[layout.call_index(site)]
    intervene = row_replacement(site, queries.repeat_interleave(variants), weights.flatten(0, 1))
    repeated_inputs = repeated(inputs, variants)

    def output_of(layer_call: int) -> Any:
        return map_tensors(
            states.outputs[layer_call], lambda value: repeat_rows(value, rows, variants, time_first=call.time_first)
        )

    with skipped_layers(layout, call.layer_call, output_of):
        recorder = Recorder(
            layout.calls,
            runner.builder.masks(repeated_inputs),
            intervene=intervene,
            first=layout.first_call_in_layer(site),
        )
        return runner.logits(repeated_inputs, recorder).reshape(rows, variants, -1)


def replay_one_position(
    runner: Runner, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor
) -> Tensor:
    """Run only the last layer, at the positions `queries` (B,) alone; arguments and result as in `replay_from_layer`.

    The logits must be read from these positions.
    """
    rows, variants = weights.shape[:2]
    states = trace.cache
    assert isinstance(states, LayerStates)
    attention = {key: value.detach() for key, value in trace.attention.items()}
    observer = OnePositionAttention(runner.layout, site, states, attention, queries, weights)
    tokens = runner.builder.single_tokens(inputs, queries, variants)
    with _last_layer_at(runner.layout, site, states, queries, variants):
        return runner.logits(tokens, observer).reshape(rows, variants, -1)


def row_replacement(site: Site, queries: Tensor, weights: Tensor) -> Intervention:
    """Return the intervention that sets the weights (B, H, K) of the queries (B,) at one site."""

    def intervene(current: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        if current.key != site.key:
            return None
        index = queries[:, None, None, None].expand(-1, live.shape[1], 1, live.shape[3])
        return live.scatter(2, index, weights[:, :, None, :].to(live.dtype))

    return intervene


class OnePositionAttention:
    """The observer of a pass over a single position.

    Every attention in the site's layer is computed from the values of a recorded pass: with the new weights at the
    site, and with the recorded weights of that position at other sites.
    """

    def __init__(
        self,
        layout: Layout,
        site: Site,
        states: LayerStates,
        attention: Mapping[str, Tensor],
        queries: Tensor,
        weights: Tensor,
    ) -> None:
        """Prepare for one pass.

        Args:
            layout: The model's layout.
            site: The site at which weights are replaced.
            states: Layer states of the recorded pass.
            attention: Site key -> (B, H, Q, K) weights of the recorded pass.
            queries: (B,) position that is run in each row.
            weights: (B, V, H, K) new weights at the site.
        """
        self.site, self.states, self.attention = site, states, attention
        self.queries, self.weights = queries, weights
        self._order = Recorder(layout.calls, {}, first=layout.first_call_in_layer(site))

    def attend(
        self,
        eager: EagerAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor]:
        current = self._order.next_call(module).site
        weights = self.weights
        if current.key != self.site.key:
            recorded = self.attention[current.key]
            index = self.queries[:, None, None, None].expand(-1, recorded.shape[1], 1, recorded.shape[3])
            weights = recorded.gather(2, index)[:, None, :, 0].expand(-1, self.weights.shape[1], -1, -1)
        value = expand_groups(self.states.values[current.key].detach(), weights.shape[2])
        output = (weights.transpose(1, 2).to(value.dtype) @ value).transpose(1, 2)
        return output.flatten(0, 1).unsqueeze(1), weights.flatten(0, 1).unsqueeze(2)

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError("A pass over one position needs a kernel that calls the attention function.")

    def on_values(self, value: Tensor, output: Tensor) -> None:
        raise NotImplementedError("A pass over one position needs a kernel that calls the attention function.")


@contextmanager
def _last_layer_at(layout: Layout, site: Site, states: LayerStates, queries: Tensor, variants: int) -> Iterator[None]:
    """Run the last layer on its recorded states at `queries` (B,), repeated V times, and skip the layers before it."""
    layer_call = layout.calls[layout.call_index(site)].layer_call
    given = states.inputs[layer_call]
    assert given is not None
    rows = len(given)
    at_query = given.gather(1, queries[:, None, None].expand(-1, 1, given.shape[2])).repeat_interleave(variants, dim=0)

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if isinstance(kwargs.get("hidden_states"), Tensor):
            return args, {**kwargs, "hidden_states": at_query}
        return (at_query, *args[1:]), kwargs

    def output_of(call: int) -> Any:
        # What a skipped layer returns is not used, so that one position of the right shape is enough.
        return map_tensors(
            states.outputs[call], lambda value: repeat_rows(value[:, :1] if value.dim() == 3 else value, rows, variants)
        )

    with skipped_layers(layout, layer_call, output_of), temporary_hooks([_hook_last_call(layout.layers, enter)]):
        yield


def _hook_last_call(layers: Sequence[nn.Module], enter: Callable[..., Any]) -> Any:
    """Register a hook that acts only on the last layer call, even if the same module is also called earlier."""
    calls = 0
    earlier = sum(layer is layers[-1] for layer in layers) - 1

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return enter(module, args, kwargs) if calls > earlier else None

    return layers[-1].register_forward_pre_hook(hook, with_kwargs=True)
