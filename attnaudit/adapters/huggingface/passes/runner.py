"""Forward passes of a Transformers model, in which its attention can be recorded or replaced.

Shapes: B rows, T tokens, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel
from attnaudit.adapters.huggingface.attention.fused_attention import FusedObserver
from attnaudit.adapters.huggingface.attention.layout import Layout, recorded_value_states, replaced_embeddings
from attnaudit.adapters.huggingface.attention.recorder import Observer, Recorder
from attnaudit.adapters.huggingface.attention.site_discovery import discover_layout
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.outputs.read_tokens import read_positions
from attnaudit.adapters.huggingface.passes.equal_states import FirstLinears
from attnaudit.adapters.huggingface.passes.last_layer import LastLayer
from attnaudit.adapters.huggingface.passes.layer_states import LayerStates, recorded_layer_states
from attnaudit.adapters.huggingface.texts.input_builder import InputBuilder
from attnaudit.adapters.huggingface.wrapped_models import name_of
from attnaudit.adapters.protocol import TEXT, Inputs, Intervention, Trace
from attnaudit.adapters.query_blocks import BlockIntervention
from attnaudit.adapters.site_selection import at_queries


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs one model.

    Attributes:
        head: Reads the class logits.
        kernel: Passes the attention to observers.
        builder: Builds the model's inputs.
        layout: Where the model's attention, layers and embeddings are.
        fuses: Whether the fused kernel computes the attention at sites whose weights are not needed.
        selects_queries: Whether the fused kernel also computes the attention at sites where the weights of only some
            queries are needed. These weights are then computed in addition.
        last_layer: The modules of the last layer that run only on the token that the logits are read from; None if all
            modules run on all tokens.
        first_linears: The linear layers that run only on the distinct states if they are the first ones of a pass
            without gradients; None if all linear layers run on all states.
    """

    head: Head
    kernel: Kernel
    builder: InputBuilder
    layout: Layout
    fuses: bool = False
    selects_queries: bool = False
    last_layer: LastLayer | None = None
    first_linears: FirstLinears | None = None

    @property
    def model(self) -> Any:
        return self.builder.model

    @property
    def name(self) -> str:
        """The class name of the model, for messages."""
        return name_of(self.model)

    def with_padding(self, *, pads_left: bool, first_position: int) -> Runner:
        """Return a runner with this padding side and this first position id (see `InputBuilder`)."""
        return replace(self, builder=replace(self.builder, pads_left=pads_left, first_position=first_position))

    def call(
        self,
        arguments: Mapping[str, Any],
        mask: Tensor,
        observer: Observer | None = None,
        extra: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run the model with these forward() arguments.

        Args:
            arguments: The arguments of the model's forward().
            mask: (B, T) mask of the stream that the logits are read from, True on tokens.
            observer: Receives all attention of the pass; None if the attention is not needed.
            extra: The entries of `Inputs.extra`; None if the target is the same for every row.

        Returns:
            (B, C) logits.
        """
        if observer is None and self.fuses:
            observer = FusedObserver(skips_masks=self.selects_queries)

        def run() -> Tensor:
            return class_logits(self.builder.model, self.head, self.kernel, arguments, mask, observer, extra)

        if self._text_has_padding_token(arguments, mask):
            with self.once_for_equal_states():
                return run()
        return self.shortened(mask, observer, run)

    def shortened(self, mask: Tensor, observer: Observer | None, run: Callable[[], Tensor]) -> Tensor:
        """Run a pass with `last_layer` and `first_linears`.

        Args:
            mask: As in `call`.
            observer: The observer of the pass.
            run: Runs the model and returns the logits (B, C).
        """
        last_layer = None if mask.shape[1] == 1 else self._last_layer_of_pass(mask, observer)
        with self.once_for_equal_states():
            return run() if last_layer is None else last_layer.logits(mask, run)

    def _last_layer_of_pass(self, mask: Tensor, observer: Observer | None) -> LastLayer | None:
        """Return `last_layer` for a pass, with all queries of the last attention if the pass needs them.

        A pass with gradients always needs them, because it records the states of all tokens.
        """
        last_layer = self.last_layer
        if last_layer is None or not last_layer.single_query:
            return last_layer
        single = isinstance(observer, FusedObserver)
        if isinstance(observer, Recorder):
            positions = read_positions(mask, last_layer.read_tokens)
            single = observer.uses_one_query(self.layout.calls[-1].site.key, positions)
        single = single and self.selects_queries and not torch.is_grad_enabled()
        return last_layer.without_hooked_layers() if single else replace(last_layer, single_query=False)

    def once_for_equal_states(self) -> AbstractContextManager[None]:
        """Return the context of a pass in which `first_linears` run only on the distinct states."""
        return nullcontext() if self.first_linears is None else self.first_linears.once_for_equal_states()

    def _text_has_padding_token(self, arguments: Mapping[str, Any], mask: Tensor) -> bool:
        """Return whether a text contains the padding token.

        Some models find the last token of a row by searching for the padding token. In such a text, they find another
        token.
        """
        return self.builder.decoder is None and bool(((arguments["input_ids"] == self.builder.pad_id) & mask).any())

    def logits(
        self, inputs: Inputs, observer: Observer | None = None, embeddings: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Run the model on a batch and return its logits (B, C).

        Args:
            inputs: The batch.
            observer: As in `call`.
            embeddings: As in `ModelAdapter.run`.
        """
        with replaced_embeddings(self.layout, None if embeddings is None else embeddings.get(TEXT)):
            return self.call(self.builder.arguments(inputs), self.builder.output_mask(inputs), observer, inputs.extra)

    def logits_of_model(self, model: Any, inputs: Inputs) -> Tensor:
        """Run a model on a batch as it runs outside of audits, and return its logits (B, C).

        Args:
            model: The audited model, or another copy of it.
            inputs: The batch. No token may be erased or deleted.
        """
        builder = self.builder
        return self.head.logits(model, builder.arguments(inputs), builder.output_mask(inputs), inputs.extra)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the embeddings (B, T, d) of the text."""
        return widened(self.layout.embeddings(self.builder.token_ids(inputs)))

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | BlockIntervention | None = None,
        hidden: bool = False,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
        blocks: Collection[str] = (),
        detached: bool = False,
    ) -> Trace:
        """Run the model on a batch and record its attention (see `BlockAdapter.run`).

        If `hidden` is True, or sites are read in blocks, `Trace.cache` holds the `LayerStates` that `replay` and
        `attention_rows` need.
        """
        if detached and not self.fuses:
            assert intervene is None
            intervene, detached = (lambda _site, weights, _allowed: weights.detach()), False
        recorder = self.recorder(
            inputs, intervene=intervene, sites=sites, queries=queries, blocks=blocks, detached=detached
        )
        states: dict[str, Tensor] = {}
        cache = LayerStates(values=recorder.values, calls=recorder.calls_in_blocks) if hidden or blocks else None
        with ExitStack() as stack:
            if cache is not None:
                stack.enter_context(recorded_value_states(self.layout, states))
                stack.enter_context(recorded_layer_states(self.layout, cache))
            logits = self.logits(inputs, recorder, embeddings)
        recorder.require_complete()
        for key in recorder.calls_in_blocks.keys() - set(blocks):
            del recorder.calls_in_blocks[key]
        return Trace(
            logits=logits,
            attention=recorder.attention,
            allowed=recorder.allowed,
            hidden=states,
            cache=cache,
            queries=recorder.queries,
            blocks=frozenset(recorder.calls_in_blocks),
        )

    def recorder(
        self,
        inputs: Inputs,
        *,
        intervene: Intervention | BlockIntervention | None = None,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
        blocks: Collection[str] = (),
        detached: bool = False,
        first: int = 0,
    ) -> Recorder:
        """Return a recorder for a pass over a batch.

        Args:
            inputs: The batch.
            intervene: As in `BlockAdapter.run`.
            sites: As in `BlockAdapter.run`.
            queries: As in `BlockAdapter.run`. Without `selects_queries`, all queries are recorded.
            blocks: As in `BlockAdapter.run`.
            detached: As in `BlockAdapter.run`. The runner must use the fused kernel, and `sites` must be empty.
            first: Index of the first attention call of the pass, if it skips earlier calls.
        """
        if queries and not self.selects_queries:
            intervene = None if intervene is None else at_queries(intervene, queries)
            queries = None
        fused, selected = self.fused_except(sites), self._queries_by_layer(sites, queries or {})
        if blocks and sites is not None and not self.fuses:
            # Without the fused kernel, the weights of all other sites would stay in memory.
            others = {call.site.key for call in self.layout.calls if call.site.key not in sites}
            blocks = {*blocks, *(others - selected.keys())}
        keys = {call.site.key for call in self.layout.calls[first:]}
        return Recorder(
            self.layout.calls,
            self.builder.token_masks(inputs),
            intervene=intervene,
            first=first,
            fused=fused,
            queries=selected,
            blocks=blocks,
            fuses_blocks=self.fuses,
            detached=detached,
            skips_masks=self.selects_queries and keys <= {*fused, *selected, *blocks},
        )

    def _queries_by_layer(self, sites: Collection[str] | None, queries: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `queries`, with added entries that name the same positions at the other sites in the same layers.

        A replay needs the weights at these sites. No entry is added for a site in `sites`, where all queries are
        recorded.
        """
        by_layer: dict[int, list[Tensor]] = {}
        for call in self.layout.calls:
            if call.site.key in queries:
                by_layer.setdefault(call.layer_call, []).append(queries[call.site.key])
        selected = dict(queries)
        for call in self.layout.calls:
            if sites is not None and call.site.key not in sites and call.layer_call in by_layer:
                selected.setdefault(call.site.key, torch.cat(by_layer[call.layer_call], dim=1))
        return selected

    def fused_except(self, sites: Collection[str] | None) -> frozenset[str]:
        """Return the keys of the sites that the fused kernel computes if only the weights at `sites` are needed.

        Other sites in the layers of `sites` are not included: their weights are recorded, because a replay reads them.

        Args:
            sites: The keys of the sites; None for all sites.

        Returns:
            The keys of the sites in other layers; an empty set if the model does not use the fused kernel.
        """
        if sites is None or not self.fuses:
            return frozenset()
        calls = self.layout.calls
        layers = {call.layer_call for call in calls if call.site.key in sites}
        return frozenset(
            call.site.key for call in calls if call.site.key not in sites and call.layer_call not in layers
        )


def prepare_runner(head: Head, kernel: Kernel, builder: InputBuilder) -> Runner:
    """Find the layout of a model by running it on synthetic tokens, and return a runner for it.

    Raises:
        AdapterError: Some attention of the model cannot be observed, or its token embedding is not found.
    """
    inputs = builder.synthetic()

    def forward() -> Tensor:
        return class_logits(
            builder.model, head, kernel, builder.arguments(inputs), builder.output_mask(inputs), extra=inputs.extra
        )

    layout = discover_layout(builder.model, inputs.ids[TEXT], forward, encoder_decoder=builder.decoder is not None)
    return Runner(head=head, kernel=kernel, builder=builder, layout=layout)


def class_logits(
    model: Any,
    head: Head,
    kernel: Kernel,
    arguments: Mapping[str, Any],
    mask: Tensor,
    observer: Observer | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Run one forward pass and return the class logits (B, C). All attention of the pass is passed to `observer`.

    Args:
        model: A Transformers model.
        head: Reads the class logits.
        kernel: Passes the attention to the observer.
        arguments: The arguments of the model's forward().
        mask: (B, T) mask of the stream that the logits are read from, True on tokens.
        observer: Receives all attention of the pass. If it is None, an observer that an enclosing `with` block has set
            stays active.
        extra: As in `Runner.call`.
    """
    with kernel.observe(model, observer):
        return head.logits(model, arguments, mask, extra or {})
