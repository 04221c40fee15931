"""Any Transformers model as a model adapter: every layer and head is a site.

Shapes: B rows, T tokens of the text, V variants, H heads, K keys, C classes, d and m features.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface import kernels, prefix_cache, probe, query_replay
from attnaudit.adapters.huggingface.decoder_inputs import Decoding
from attnaudit.adapters.huggingface.output_heads import Head
from attnaudit.adapters.huggingface.recorder import Observer, Recorder, spread
from attnaudit.adapters.huggingface.site_discovery import DECODER, Layout, embedded, find, watched
from attnaudit.adapters.huggingface.tokenization import Reader
from attnaudit.adapters.padding import delete_positions, keep_positions, pad, repeated, substitute_positions
from attnaudit.adapters.protocol import TEXT, Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance

#: The extra entry that says which of two texts a token is of: (B, T), moves with its token.
TYPES = "token_types"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an adapter is made of. kernel: how attention is reached. decoding: of an encoder–decoder model, else None.
    shipped: what the model was before it was made ready. offset: position ids that the model keeps for itself."""

    model: Any
    tokenizer: Any
    head: Head
    reader: Reader
    kernel: kernels.Kernel
    shipped: kernels.Shipped
    pad_id: int
    decoding: Decoding | None = None
    offset: int = 0


class HuggingFaceAdapter:
    """A Transformers classifier or language model, audited in float32.

    Built by `attnaudit.adapters.huggingface.transformer`. Raises AdapterError when a pass over made-up tokens shows
    that its attention cannot be seen and replaced in full.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.model, self.tokenizer = parts.model, parts.tokenizer
        self.model.eval()
        self._accepts = set(inspect.signature(self.model.forward).parameters)
        #: Position id of a row's first token, where positions are given to the model.
        self.first_position = parts.offset
        self.written = TEXT if parts.decoding is None else DECODER
        self._forms: dict[str, tuple[bool, bool]] = {}
        #: Whether collate pads on the left, for the few models that read the last position whatever is there.
        self.pads_left = False
        self.pads_left = probe.reads_padding(self)
        made_up = probe.made_up(self)
        self.layout: Layout = find(
            self.model,
            made_up.ids[TEXT],
            lambda: self.logits(made_up),
            encoder_decoder=parts.decoding is not None,
        )
        self.read = probe.read_position(self)
        self.family = f"transformer, {self.model.config.model_type}"
        self.description = f"{type(self.model).__name__}, {self._extent()}, {parts.kernel.name}"
        probe.prove(self)
        self._capabilities = Capabilities(
            classes=parts.head.classes,
            replays=True,
            value_norms=len(self.layout.projections) == len(self.layout.places),
            shares_states=prefix_cache.proved(self),
            mask=self.tokenizer.mask_token_id is not None,
            query=parts.reader.takes_query,
            max_tokens=parts.reader.limit,
            left_padding=probe.left_padding(self),
            reading=self._reading(),
        )

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.model,)

    def sites(self) -> tuple[Site, ...]:
        return self.layout.sites

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def _extent(self) -> str:
        """Such as "6 layers × 12 heads", or by stack where there are several."""
        stacks: dict[str, list[Site]] = {}
        for site in self.sites():
            stacks.setdefault(site.key.partition(".")[0], []).append(site)
        said = []
        for name, sites in stacks.items():
            heads = "/".join(str(n) for n in sorted({s.heads for s in sites}))
            kind = f"{name} layers" if len(stacks) > 1 else "layers"
            said.append(f"{len(sites)} {kind} × {heads} heads")
        return " + ".join(said)

    def _reading(self) -> str:
        if self.parts.decoding is not None:
            return "last@layer=-1,heads=mean,stack=cross"
        if self.layout.causal or self.read == "last":
            return "last@layer=-1,heads=mean"
        return "mean@layer=-1,heads=mean" if self.read == "all" else "cls@layer=-1,heads=mean"

    # -- inputs ---------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        rows = self.parts.reader.encode(instances)
        device = self.device
        ids, mask = pad([row.ids for row in rows], value=self.parts.pad_id, device=device)
        special, _ = pad([row.special for row in rows], value=False, device=device)
        words, _ = pad([row.words for row in rows], value=-1, device=device)
        extra = {"truncated": torch.tensor([row.truncated for row in rows], device=device)}
        if "token_type_ids" in self._accepts and any(any(row.types) for row in rows):
            extra[TYPES], _ = pad([row.types or [0] * len(row.ids) for row in rows], value=0, device=device)
        inputs = Inputs(
            ids={TEXT: ids},
            mask={TEXT: mask},
            special={TEXT: special},
            tokens={TEXT: [row.tokens for row in rows]},
            words={TEXT: words},
            extra=extra,
        )
        if self.parts.decoding is not None:
            self.parts.decoding.check(inputs, [one.where or one.id for one in instances])
        return self._padded(self.with_decoder(inputs))

    def _padded(self, inputs: Inputs) -> Inputs:
        return probe.turned(inputs) if self.pads_left else inputs

    def with_decoder(self, inputs: Inputs) -> Inputs:
        """The same with what the decoder starts from: it follows from the text."""
        if self.parts.decoding is None:
            return inputs
        ids, mask = self.parts.decoding.start(self.model, inputs)
        tokens = dict(inputs.tokens)
        if tokens:
            tokens[DECODER] = [
                self.parts.reader.readable(row[there].tolist()) for row, there in zip(ids, mask, strict=True)
            ]
        return replace(
            inputs,
            ids={**inputs.ids, DECODER: ids},
            mask={**inputs.mask, DECODER: mask},
            special={**inputs.special, DECODER: mask.clone()},
            tokens=tokens,
        )

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        self._only_text(stream)
        return self._padded(
            self.with_decoder(delete_positions(inputs, stream, drop, pad_id=self.parts.pad_id, per_token=(TYPES,)))
        )

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        self._only_text(stream)
        return self._padded(
            self.with_decoder(keep_positions(inputs, stream, rows, keep, pad_id=self.parts.pad_id, per_token=(TYPES,)))
        )

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        self._only_text(stream)
        mask_id = self.tokenizer.mask_token_id
        if mask_id is None:
            raise AdapterError("substitute: the model's tokenizer has no mask token. Erase by deletion.")
        return self.with_decoder(substitute_positions(inputs, stream, rows, replaced, mask_id=mask_id))

    @staticmethod
    def _only_text(stream: str) -> None:
        if stream != TEXT:
            raise AdapterError(f"stream '{stream}': only tokens of '{TEXT}' are taken away; the decoder's follow it.")

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        embedded: Tensor = self.layout.embedding(self._ids(inputs))
        return {TEXT: embedded}

    # -- passes ---------------------------------------------------------------------------------------------------

    def _ids(self, inputs: Inputs) -> Tensor:
        # Models that look for padding among the ids must find it where the mask has it.
        return inputs.ids[TEXT].masked_fill(~inputs.mask[TEXT], self.parts.pad_id)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What the model's forward is called with."""
        mask = inputs.mask[TEXT]
        given: dict[str, Any] = {"input_ids": self._ids(inputs), "attention_mask": mask.long(), "return_dict": True}
        if "use_cache" in self._accepts:
            given["use_cache"] = False
        if TYPES in inputs.extra:
            given["token_type_ids"] = self._types(inputs)
        if "position_ids" in self._accepts and not bool(mask[:, 0].all()):
            # Padding on the left: positions are counted from the first token.
            counted = mask.long().cumsum(1) - 1 + self.first_position
            given["position_ids"] = counted.masked_fill(~mask, max(0, self.first_position - 1))
        if self.parts.decoding is not None:
            given.update(self.parts.decoding.arguments(inputs))
        return given

    def _types(self, inputs: Inputs) -> Tensor:
        types, mask = inputs.extra[TYPES], inputs.mask[TEXT]
        more = mask.shape[1] - types.shape[1]
        if more > 0 and not bool(mask[:, -more:].any()):
            return nn.functional.pad(types, (0, more))
        if more > 0 and not bool(mask[:, :more].any()):
            return nn.functional.pad(types, (more, 0))
        if more != 0:
            raise AdapterError(
                f"Inputs.extra['{TYPES}'] is {types.shape[1]} wide and the ids are {mask.shape[1]}: it is one entry "
                "per token. Move it with the tokens, as delete() and keep() do."
            )
        return types

    def masks(self, inputs: Inputs) -> dict[str, Tensor]:
        """stream -> (B, T) True on tokens, of what the model in fact runs on."""
        masks = {TEXT: inputs.mask[TEXT]}
        if self.parts.decoding is not None:
            masks[DECODER] = self.parts.decoding.mask(inputs)
        return masks

    def _forward(self, inputs: Inputs, by: Observer | None) -> Tensor:
        """(B, C) logits, every attention shown to `by` (or to the observer around, if None)."""
        return self.called_with(self.arguments(inputs), self.masks(inputs)[self.written], by)

    def called_with(self, arguments: Mapping[str, Any], written: Tensor, by: Observer | None = None) -> Tensor:
        """(B, C) logits of a pass with these arguments. written (B, T): True on the tokens that it writes."""
        with self.parts.kernel.open(self.model, by):
            return self.parts.head.logits(self.model, arguments, written)

    def accepts(self, argument: str) -> bool:
        """Whether the model's forward takes it."""
        return argument in self._accepts

    def logits(self, inputs: Inputs) -> Tensor:
        """(B, C) of a pass that nobody looks into."""
        return self._forward(inputs, None)

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        recorder = Recorder(self.layout.places, self.masks(inputs), intervene=intervene)
        states: dict[str, Tensor] = {}
        prefix = query_replay.Prefix(values=recorder.values) if hidden else None
        with ExitStack() as stack:
            if prefix is not None:
                stack.enter_context(watched(self.layout, states))
                stack.enter_context(query_replay.kept(self.layout, prefix))
            stack.enter_context(embedded(self.layout, None if embeddings is None else embeddings.get(TEXT)))
            logits = self._forward(inputs, recorder)
        recorder.finish()
        return Trace(
            logits=logits, attention=recorder.attention, allowed=recorder.allowed, hidden=states, prefix=prefix
        )

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """As TransformerAdapter.replay, by the fastest form that was found to be right for the site."""
        narrow, wide = self.forms(site)
        with query_replay.frozen(self.model):
            if (
                narrow
                and isinstance(trace.prefix, query_replay.Prefix)
                and bool((queries == self.read_at(inputs)).all())
            ):
                return self.replay_narrow(inputs, trace, site, queries, weights)
            if wide and isinstance(trace.prefix, query_replay.Prefix):
                return self.replay_wide(inputs, trace, site, queries, weights)
            return self.replay_whole(inputs, site, queries, weights)

    def replay_width(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        narrow = self.forms(site)[0] and bool((queries == self.read_at(inputs)).all())
        return 1 if narrow else inputs.mask[TEXT].shape[1]

    def share(self, inputs: Inputs) -> prefix_cache.SharedStates:
        return prefix_cache.share(self, inputs)

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        assert isinstance(shared, prefix_cache.SharedStates)
        return prefix_cache.width(inputs, shared, rows, keep)

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        assert isinstance(shared, prefix_cache.SharedStates)
        return prefix_cache.logits_without(self, inputs, shared, rows, keep)

    def forms(self, site: Site) -> tuple[bool, bool]:
        """Whether the narrow and the wide form of `replay` are right for a site: tried once, on made-up tokens."""
        if site.key not in self._forms:
            self._forms[site.key] = probe.forms(self, site)
        return self._forms[site.key]

    def read_at(self, inputs: Inputs) -> Tensor:
        """(B,) position that the logits are read from, where there is one."""
        mask = self.masks(inputs)[self.written]
        return mask.shape[1] - 1 - mask.flip(1).int().argmax(1) if self.read == "last" else mask.int().argmax(1)

    def replay_whole(self, inputs: Inputs, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """The whole pass with the intervention."""
        rows, variants = weights.shape[:2]
        put = query_replay.put_in(site, queries.repeat_interleave(variants), weights.flatten(0, 1))
        many = repeated(inputs, variants)
        return self.run(many, intervene=put).logits.reshape(rows, variants, -1)

    def replay_wide(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """From the site's layer on, over all positions."""
        rows, variants = weights.shape[:2]
        assert isinstance(trace.prefix, query_replay.Prefix)
        put = query_replay.put_in(site, queries.repeat_interleave(variants), weights.flatten(0, 1))
        many = repeated(inputs, variants)
        with query_replay.resumed(self.layout, site, trace.prefix, rows, variants) as first:
            recorder = Recorder(self.layout.places, self.masks(many), intervene=put, first=first)
            return self._forward(many, recorder).reshape(rows, variants, -1)

    def replay_narrow(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """The last layer alone, at the position that the logits are read from."""
        rows, variants = weights.shape[:2]
        assert isinstance(trace.prefix, query_replay.Prefix)
        clean = {key: value.detach() for key, value in trace.attention.items()}
        by = query_replay.AtOnePosition(self.layout, site, trace.prefix, clean, queries, weights)
        alone = self._alone(inputs, queries, variants)
        with query_replay.narrowed(self.layout, site, trace.prefix, queries, variants):
            return self._forward(alone, by).reshape(rows, variants, -1)

    def _alone(self, inputs: Inputs, queries: Tensor, variants: int) -> Inputs:
        """Each row so many times, with the token at its query and no other."""

        def at(values: Tensor) -> Tensor:
            width = values.shape[1]
            return values.gather(1, queries.clamp(max=width - 1)[:, None]).repeat_interleave(variants, dim=0)

        ids = {name: at(value) for name, value in inputs.ids.items()}
        there = {name: torch.ones_like(value, dtype=torch.bool) for name, value in ids.items()}
        extra = {TYPES: at(self._types(inputs))} if TYPES in inputs.extra else {}
        return Inputs(ids=ids, mask=there, special=there, extra=extra)

    def transformed(self, trace: Trace, site: Site) -> Tensor:
        """As TransformerAdapter.transformed (Kobayashi et al. 2020, the f(x) of equation 3), without the bias of the
        projection, which belongs to no head."""
        projection = self.layout.projections.get(site.key)
        if projection is None or not isinstance(trace.prefix, query_replay.Prefix):
            raise AdapterError(
                f"transformed: the output projection at '{site.key}' was not found, or the trace is not one of "
                "run(hidden=True). See capabilities.value_norms."
            )
        value = spread(trace.prefix.values[site.key], site.heads)
        matrix = projection.weight.T if isinstance(projection, nn.Linear) else projection.weight
        assert isinstance(matrix, Tensor)
        return torch.einsum("bhkd,hdm->bhkm", value, matrix.view(site.heads, value.shape[-1], -1))

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        raise AdapterError("decode: what follows a Transformer's attention is not a decoder of its states. Use replay.")

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        raise AdapterError("decoder_weights: what follows a Transformer's attention is not linear. Use replay.")

    # -- the model as it ships ------------------------------------------------------------------------------------

    def shipped(self, inputs: Inputs) -> str:
        """One sentence: how far the logits here are from those of the model as it ships. Raises AdapterError above
        tolerance."""
        with torch.no_grad():
            return kernels.agreement(self, inputs)
