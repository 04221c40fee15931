"""The adapter for Transformers models. Every attention layer of the model is one attention site.

Shapes: B rows, T tokens of the text, V variants, H heads, K keys, C classes, d and m features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnaudit.adapters.dispatched_models import value_of
from attnaudit.adapters.donors import Donors
from attnaudit.adapters.huggingface.attention.weighted_values import expand_groups
from attnaudit.adapters.huggingface.forward_hooks import frozen_parameters
from attnaudit.adapters.huggingface.half_precision import in_float32, widened
from attnaudit.adapters.huggingface.outputs.read_tokens import read_positions, require_other_end
from attnaudit.adapters.huggingface.outputs.target_heads import OneLogitHead
from attnaudit.adapters.huggingface.outputs.target_reference import reference_logits
from attnaudit.adapters.huggingface.passes import prefix_cache, query_replay
from attnaudit.adapters.huggingface.passes.layer_states import LayerStates
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.passes.unpadded import without_padding
from attnaudit.adapters.huggingface.probes import original_model
from attnaudit.adapters.huggingface.probes.facts import Facts
from attnaudit.adapters.huggingface.probes.original_model import OriginalModel
from attnaudit.adapters.huggingface.probes.repeated_runs import require_same_results
from attnaudit.adapters.huggingface.probes.replay_probe import ReplayForms
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TEXT, Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention, too_large_to_hold
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.precision import FLOAT32
from attnaudit.targets import SOURCES


class HuggingFaceAdapter:
    """A Transformers classifier or language model.

    Use `attnaudit.adapters.huggingface.transformer` to build one.

    Attributes:
        runner: Runs the model.
        facts: The results of probing the model.
        original: The model before it was prepared for the audit.
        family: The family of the model, such as "transformer, bert". The key `validated_on` of a policy names families.
        configuration: Everything that determines the logits besides the parameters, as JSON: the model's configuration,
            its tokenizer, the prompt and the label tokens.
        description: One line for reports: the class of the model, the numbers of layers and heads, the kernel, whether
            the model runs without padding, and the precision if it is not float32.
    """

    def __init__(self, runner: Runner, facts: Facts, original: OriginalModel, *, precision: str = FLOAT32) -> None:
        runner = without_padding(runner) if facts.unpadded else runner
        padded = runner.with_padding(pads_left=facts.pads_left, first_position=facts.first_position)
        self.runner = replace(
            padded,
            fuses=facts.fuses,
            selects_queries=facts.selects_queries,
            last_layer=facts.last_layer,
            first_linears=facts.first_linears,
        )
        self.facts = facts
        self.original = original
        self.model = runner.model
        target = runner.head.target
        last = SOURCES if runner.builder.text_encoder.takes_passages else target.family
        last = runner.builder.reads or last
        self.family = ", ".join(filter(None, ("transformer", self.model.config.model_type, last)))
        self.description = f"{runner.name}, {_describe_size(self.sites())}"
        self.description += "" if runner.kernel.calls_attention_function else ", attention read at its softmax"
        self.description += ", run without padding" if facts.unpadded else ""
        self.description += f", {precision}" if precision != FLOAT32 else ""
        layout, builder = runner.layout, runner.builder
        self.configuration = builder.configuration(runner.head)
        self._capabilities = Capabilities(
            classes=runner.head.classes,
            target=target,
            labels=runner.head.names if isinstance(runner.head, OneLogitHead) and target.kind == "label" else (),
            decides=target.decides,
            replays=True,
            resumes=True,
            batches_gradients=facts.batches_gradients,
            value_vectors=len(layout.output_projections) == len(layout.calls),
            shares_states=facts.shares_prefixes,
            deletion=builder.deletes and not target.at_tokens,
            mask=builder.masks,
            query=builder.text_encoder.takes_query,
            passages=builder.text_encoder.takes_passages,
            max_tokens=builder.text_encoder.limit,
            left_padding=facts.left_padding,
            selects_sites=facts.fuses,
            selects_queries=facts.selects_queries,
            query_blocks=facts.query_blocks,
            reading=_default_reading(runner, facts),
            unseen_mixers=facts.unseen_mixers,
            erasure=builder.erasure,
            unit_name=builder.names[0],
            row_name=builder.names[1],
            draws=builder.draws,
            precision=precision,
        )
        self._replay_forms: dict[str, ReplayForms] = {}
        #: The number of open contexts of `in_float32`.
        self._contexts = 0

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._capabilities, precision=FLOAT32) if self._contexts else self._capabilities

    @property
    def donors(self) -> Donors | None:
        """The rows whose units replace erased units; None if something else replaces them."""
        found: Donors | None = getattr(self.runner.builder, "donors", None)
        return found

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.model,)

    def sites(self) -> tuple[Site, ...]:
        return self.runner.layout.sites

    # -- inputs ---------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        inputs = self.runner.builder.collate(instances)
        self._refuse_padding_token_at_end(inputs, instances)
        return inputs

    @property
    def input_device(self) -> torch.device:
        return self.runner.builder.device

    @property
    def encodes_on_cpu(self) -> bool:
        # `encode_on_cpu` must not replace a method `collate` of the user.
        replaced = type(self).collate is not HuggingFaceAdapter.collate or "collate" in vars(self)
        return self.runner.builder.encodes_on_cpu and not replaced

    def encode_on_cpu(self, instances: Sequence[Instance]) -> Inputs:
        inputs = self.runner.builder.encode_on_cpu(instances)
        self._refuse_padding_token_at_end(inputs, instances)
        return inputs

    def _refuse_padding_token_at_end(self, inputs: Inputs, instances: Sequence[Instance]) -> None:
        """Raise DataError if a row ends in the padding token, and the model would skip it."""
        if self.facts.skips_padding_token:
            require_other_end(inputs, self.runner.builder.pad_id, [one.where or one.id for one in instances])

    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        return self.runner.builder.select_rows(inputs, rows)

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return self.runner.builder.delete(inputs, stream, drop)

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return self.runner.builder.keep(inputs, stream, rows, keep)

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return self.runner.builder.substitute(inputs, stream, rows, replaced)

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        return self.runner.builder.substitute_draw(inputs, stream, rows, replaced, draw)

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {TEXT: self.runner.embed(inputs)}

    # -- passes ---------------------------------------------------------------------------------------------------

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
        return self.runner.run(
            inputs,
            embeddings=embeddings,
            intervene=intervene,
            hidden=hidden,
            sites=sites,
            queries=queries,
            blocks=blocks,
            detached=detached,
        )

    def attention_rows(self, trace: Trace, site: Site, first: int, stop: int) -> tuple[Tensor, Tensor]:
        assert isinstance(trace.cache, LayerStates)
        with torch.no_grad():
            _output, weights, allowed = trace.cache.calls[site.key].rows(first, stop)
        return weights, allowed

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """Replay weights by the fastest method that gives the correct logits (see `TransformerAdapter.replay`)."""
        forms = self.replay_forms(site)
        has_states = isinstance(trace.cache, LayerStates)
        with frozen_parameters(self.model) if torch.is_grad_enabled() else nullcontext():
            if has_states and forms.one_position and self._reads(inputs, queries):
                return query_replay.replay_one_position(self.runner, inputs, trace, site, queries, weights)
            if has_states and forms.after_position:
                return query_replay.replay_after_position(self.runner, inputs, trace, site, queries, weights)
            if has_states and forms.from_layer:
                return query_replay.replay_from_layer(self.runner, inputs, trace, site, queries, weights)
            return query_replay.replay_full(self.runner, inputs, site, queries, weights)

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        one_position = self.replay_forms(site).one_position and self._reads(inputs, queries)
        return 1 if one_position else inputs.mask[TEXT].shape[1]

    def resume(
        self,
        inputs: Inputs,
        trace: Trace,
        site: Site,
        variants: int,
        intervene: BlockIntervention,
        *,
        blocks: Collection[str] = (),
    ) -> Tensor:
        runner, sites = self.runner, (site.key,)
        if isinstance(trace.cache, LayerStates) and self.replay_forms(site).from_layer:
            return query_replay.run_from_layer(
                runner, inputs, trace, site, variants, intervene, sites=sites, blocks=blocks
            )
        return runner.run(repeated(inputs, variants), intervene=intervene, sites=sites, blocks=blocks).logits

    def replay_forms(self, site: Site) -> ReplayForms:
        """Return which shortcuts of `replay` give the correct logits at a site.

        A shortcut is probed when it is first asked for. Later calls for the site return the same object.
        """
        if site.key not in self._replay_forms:
            self._replay_forms[site.key] = ReplayForms(self.runner, site, self.facts.read_tokens)
        return self._replay_forms[site.key]

    def read_positions(self, inputs: Inputs) -> Tensor:
        """Return the position (B,) of the token that the logits are read from.

        This is the first token unless `facts.read_tokens` is "last". The result is meaningful only if the logits are
        read from a single token.
        """
        return read_positions(self.runner.builder.output_mask(inputs), self.facts.read_tokens)

    def _reads(self, inputs: Inputs, queries: Tensor) -> bool:
        return bool((queries == self.read_positions(inputs)).all())

    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        """Return the value vectors (B, H, K, m) after the output projection (see `TransformerAdapter.value_vectors`).

        They are f(x) in Kobayashi et al. 2020, eq. 3. The bias of the output projection is not included, because it
        belongs to no single head.

        Raises:
            AdapterError: The output projection was not found, or the trace does not come from `run(hidden=True)` with
                this site.
        """
        projection = self.runner.layout.output_projections.get(site.key)
        values = trace.cache.values if isinstance(trace.cache, LayerStates) else {}
        if projection is None or site.key not in values:
            raise AdapterError(
                f"value_vectors: the output projection at '{site.key}' was not found, or the trace has no hidden "
                "states of this site. Call value_vectors() only if capabilities.value_vectors is True. Get the trace "
                "from run(hidden=True), and include this site in its argument `sites`."
            )
        value = expand_groups(values[site.key][:, :, keys], site.heads)
        matrix = _matrix_of(projection, value.new_zeros(1, 1, site.heads * value.shape[-1]))
        value = widened(value).to(matrix.device)
        return torch.einsum("bhkd,hdm->bhkm", value, widened(matrix).view(site.heads, value.shape[-1], -1)).to(
            self.runner.builder.device
        )

    # -- texts with some tokens removed ----------------------------------------------------------------------------

    def share(self, inputs: Inputs) -> prefix_cache.SharedStates:
        sites = [site.key for site in self.sites()]
        in_blocks = bool(too_large_to_hold(self, inputs, len(inputs.ids[TEXT]), sites))
        return prefix_cache.share(self.runner, inputs, in_blocks=in_blocks)

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        assert isinstance(shared, prefix_cache.SharedStates)
        return prefix_cache.variant_cost(inputs, shared, rows, keep)

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        assert isinstance(shared, prefix_cache.SharedStates)
        return prefix_cache.logits_without(self.runner, inputs, shared, rows, keep)

    # -- what a Transformer does not have --------------------------------------------------------------------------

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        raise AdapterError(
            "decode(): a Transformer has no decoder that computes the logits from one attention-weighted sum of "
            "hidden states. Use replay()."
        )

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        raise AdapterError(
            "decoder_weights(): the layers after the attention of a Transformer are not linear. Use replay()."
        )

    # -- the target ------------------------------------------------------------------------------------------------

    def target_logits(self, instances: Sequence[Instance]) -> Tensor:
        """Return the logits (B, C) of the target from the raw outputs of the model (see `TargetAdapter`)."""
        rows = []
        builder = self.runner.builder
        with torch.no_grad():
            for instance in instances:
                inputs = builder.collate([instance])
                task = "" if builder.target is None else builder.target.task
                rows.append(reference_logits(self.model, self.runner.head, builder.arguments(inputs), inputs, task))
        return torch.cat(rows).to(builder.device)

    # -- the original model ----------------------------------------------------------------------------------------

    def compare_with_original(self, inputs: Inputs) -> str:
        """Describe how far the audited logits are from those of the original model.

        See `ConvertedModelAdapter.compare_with_original`.
        """
        converted = self._capabilities.precision == FLOAT32
        with torch.no_grad(), self.in_float32():
            return original_model.compare_with_original(self.runner, self.original, inputs, converted=converted)

    # -- repeated runs ---------------------------------------------------------------------------------------------

    def require_same_results(self) -> None:
        """Run the same texts many times (see `RepeatedAdapter.require_same_results`)."""
        with self.in_float32() if self.capabilities.precision != FLOAT32 else nullcontext():
            require_same_results(self.runner)

    # -- half precision --------------------------------------------------------------------------------------------

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        self._contexts += 1
        try:
            with in_float32(self.model):
                yield
        finally:
            self._contexts -= 1

    def compare_with_float32(self, inputs: Inputs) -> str:
        """Describe how far the results in half precision are from those in float32.

        See `HalfPrecisionAdapter.compare_with_float32`.
        """
        with torch.no_grad():
            return original_model.compare_with_float32(self.runner, self.original, inputs)


def _matrix_of(projection: nn.Module, state: Tensor) -> Tensor:
    """Return the matrix (H·d, m) of an output projection. `state` (1, 1, H·d) is one of its inputs."""
    if isinstance(projection, nn.Linear):
        return value_of(projection, "weight").T
    if type(projection).__name__ == "Conv1D":
        return value_of(projection, "weight")
    # A linear layer with an adapter, such as LoRA, has no single weight.
    units = torch.eye(state.shape[-1], dtype=state.dtype, device=state.device)
    matrix: Tensor = projection(units[None])[0] - projection(torch.zeros_like(state))[0]
    return matrix


def _describe_size(sites: Sequence[Site]) -> str:
    """Describe the numbers of layers and heads, as in "6 layers × 12 heads".

    If there are several stacks, such as an encoder and a decoder, the result has one phrase per stack.
    """
    stacks: dict[str, list[Site]] = {}
    for site in sites:
        stacks.setdefault(site.key.partition(".")[0], []).append(site)
    phrases = []
    for name, members in stacks.items():
        heads = "/".join(str(count) for count in sorted({site.heads for site in members}))
        layers = f"{name} layers" if len(stacks) > 1 else "layers"
        phrases.append(f"{len(members)} {layers} × {heads} heads")
    return " + ".join(phrases)


def _default_reading(runner: Runner, facts: Facts) -> str:
    """Choose the default reading, which says whose attention to the tokens is shown.

    Usually, this is the attention of the token that the output head reads. If the head reads all tokens, it is the mean
    over all of them. In an encoder-decoder model, it is the cross-attention of the last token of the decoder. If the
    target differs by row, it is the mean over the tokens from which the target is read.
    """
    if runner.head.target.differs_by_row:
        stack = "" if runner.builder.decoder is None else ",stack=cross"
        return f"target@layer=-1,heads=mean{stack}"
    if runner.builder.decoder is not None:
        return "last@layer=-1,heads=mean,stack=cross"
    if runner.layout.causal or facts.read_tokens == "last":
        return "last@layer=-1,heads=mean"
    return "mean@layer=-1,heads=mean" if facts.read_tokens == "all" else "cls@layer=-1,heads=mean"
