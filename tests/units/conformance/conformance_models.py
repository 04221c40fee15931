"""A small Transformer in plain torch that implements the whole adapter protocol.

Its parts are methods, so that a test can break one of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters import Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.adapters.padding import delete_positions, keep_positions, pad, repeated, substitute_positions
from attnaudit.adapters.protocol import TEXT
from attnaudit.instances import Instance
from tests.small_models import TEXTS

QUERY = "query"
PAD, MASK, START, END = 0, 1, 2, 3
WIDTH, HEADS, VOCABULARY, LONGEST = 8, 2, 60, 64

INSTANCES = [
    Instance(id=f"{i}", text=text, query=TEXTS[-i]) for i, text in enumerate([*TEXTS, f"{TEXTS[2]} {TEXTS[3]}"])
]
PLAIN = [replace(one, query=None) for one in INSTANCES]


def pieces(text: str) -> tuple[list[str], list[int]]:
    """Split a text into pieces of at most four letters, each with the number of its word."""
    found = [
        (("##" if start else "") + word[start : start + 4], number)
        for number, word in enumerate(text.split())
        for start in range(0, len(word), 4)
    ]
    return [piece for piece, _ in found], [number for _, number in found]


def number(piece: str) -> int:
    return 4 + zlib.crc32(piece.encode()) % (VOCABULARY - 4)


class Block(nn.Module):
    """One attention and one feed-forward part, each with a layer norm before it and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.sink = nn.Parameter(torch.randn(HEADS))


class Model(nn.Module):
    def __init__(self, blocks: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.decide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)


def heads(values: Tensor) -> Tensor:
    return values.unflatten(-1, (HEADS, -1)).transpose(1, 2)


@dataclass
class Parts:
    """The values that a pass has collected so far."""

    attention: dict[str, Tensor]
    allowed: dict[str, Tensor]
    hidden: dict[str, Tensor]
    before: dict[str, dict[str, Tensor]]


class SmallTransformer:
    """Two layers of two heads over the text.

    Args:
        causal: Whether tokens attend only to earlier tokens; the prediction is then read at the last token.
        window: The largest distance at which a token attends to another; None for no limit.
        sinks: Whether a learned score takes weight from the tokens.
        cross: Whether a third layer lets a query text attend to the text, and gives the prediction.
        declared: Capabilities to change.
    """

    def __init__(
        self,
        *,
        causal: bool = False,
        window: int | None = None,
        sinks: bool = False,
        cross: bool = False,
        **declared: Any,
    ) -> None:
        self.causal, self.window, self.sinks, self.cross = causal, window, sinks, cross
        self.model = Model(3 if cross else 2, seed=0)
        reading = "mean@layer=-1,heads=mean,stack=cross" if cross else "last@layer=-1" if causal else "cls@layer=-1"
        self._capabilities = Capabilities(
            **{
                "classes": ("negative", "positive"),
                "replays": True,
                "resumes": True,
                "value_vectors": True,
                "mask": True,
                "query": cross,
                "max_tokens": LONGEST,
                "left_padding": True,
                "reading": reading,
                **declared,
            }
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.model,)

    # -- inputs ---------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        streams = {TEXT: [one.text for one in instances]}
        if self.cross:
            streams[QUERY] = [one.query or "" for one in instances]
        made = {name: [self.encoded(text) for text in texts] for name, texts in streams.items()}

        def padded(part: int, value: Any) -> dict[str, Tensor]:
            cpu = torch.device("cpu")
            return {name: pad([row[part] for row in rows], value=value, device=cpu)[0] for name, rows in made.items()}

        ids = padded(0, PAD)
        return Inputs(
            ids=ids,
            mask={name: value != PAD for name, value in ids.items()},
            special=padded(1, False),
            words=padded(2, -1),
            tokens={name: [row[3] for row in rows] for name, rows in made.items()},
            extra={"truncated": torch.zeros(len(instances), dtype=torch.bool)},
        )

    def encoded(self, text: str) -> tuple[list[int], list[bool], list[int], list[str]]:
        found, words = pieces(text)
        found, words = found[: LONGEST - 2], words[: LONGEST - 2]
        ids = [START, *map(number, found), END]
        special = [True, *[False] * len(found), True]
        return ids, special, [-1, *words, -1], ["[start]", *found, "[end]"]

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {name: self.model.words(ids) for name, ids in inputs.ids.items()}

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return delete_positions(inputs, stream, drop, pad_id=PAD)

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return keep_positions(inputs, stream, rows, keep, pad_id=PAD)

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return substitute_positions(inputs, stream, rows, replaced, mask_id=MASK)

    # -- the pass -------------------------------------------------------------------------------------------------

    def sites(self) -> tuple[Site, ...]:
        own = [
            Site(key=f"layer {n}", layer=n, kind="self", heads=HEADS, query=TEXT, sinks=self.sinks) for n in range(2)
        ]
        return (*own, Site(key="cross", kind="cross", heads=HEADS, query=QUERY)) if self.cross else tuple(own)

    def positions(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(1) - 1).clamp_min(0)

    def allowed(self, inputs: Inputs, site: Site) -> Tensor:
        """Return the allowed mask of a site, (B, 1, Q, K)."""
        queries, keys = inputs.mask[site.query or TEXT], inputs.mask[site.keys]
        allowed = queries[:, :, None] & keys[:, None, :]
        if site.kind == "self":
            at = self.positions(keys)
            distance = at[:, :, None] - at[:, None, :]
            if self.causal:
                allowed = allowed & (distance >= 0)
            if self.window is not None:
                allowed = allowed & (distance.abs() <= self.window)
        return allowed[:, None]

    def weights(self, block: Block, scores: Tensor, allowed: Tensor) -> Tensor:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        if self.sinks:
            sink = block.sink[None, :, None, None].expand(*scores.shape[:3], 1)
            return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] * allowed
        return scores.softmax(-1) * allowed

    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weights that are applied to the values, and the weights for the trace."""
        replaced = None if intervene is None else intervene(site, weights, allowed)
        weights = weights if replaced is None else replaced
        return weights, weights

    def attend(
        self, n: int, streams: dict[str, Tensor], inputs: Inputs, intervene: Intervention | None, parts: Parts
    ) -> None:
        """Run one block, which updates the stream of its queries."""
        site, block = self.sites()[n], self.model.blocks[n]
        stream = site.query or TEXT
        parts.before[site.key] = dict(streams)
        states = block.norms[0](streams[site.keys])
        asked = states if site.query == site.keys else block.norms[2](streams[stream])
        allowed = self.allowed(inputs, site)
        scores = 2 * heads(block.query(asked)) @ heads(block.key(states)).transpose(-1, -2)
        weights, shown = self.used(site, self.weights(block, scores, allowed), allowed, intervene)
        mixed = (weights @ heads(block.value(states))).transpose(1, 2).flatten(2)
        moved = self.residual(streams[stream]) + block.output(mixed)
        streams[stream] = moved + block.feed(block.norms[1](moved))
        parts.attention[site.key], parts.allowed[site.key], parts.hidden[site.key] = shown, allowed, states

    def residual(self, states: Tensor) -> Tensor:
        return states

    def decide(self, streams: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        mask = inputs.mask[QUERY if self.cross else TEXT]
        states = self.model.norm(streams[QUERY if self.cross else TEXT])
        if self.cross:
            return self.model.decide((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        first = mask.int().argmax(1)
        read = first + mask.sum(1) - 1 if self.causal else first
        return self.model.decide(states[torch.arange(len(states)), read])

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        given = self.embed(inputs) if embeddings is None else embeddings
        streams = {name: value + self.model.places(self.positions(inputs.mask[name])) for name, value in given.items()}
        parts = Parts({}, {}, {}, {})
        for n in range(len(self.sites())):
            self.attend(n, streams, inputs, intervene, parts)
        logits = self.decide(streams, inputs)
        return Trace(
            logits=logits,
            attention=parts.attention,
            allowed=parts.allowed,
            hidden=parts.hidden if hidden else {},
            cache=parts.before,
        )

    # -- faster paths ---------------------------------------------------------------------------------------------

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        times = weights.shape[1]

        def many(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.repeat_interleave(times, 0) for name, value in values.items()}

        whole = trace.attention[site.key].repeat_interleave(times, 0)
        at = queries.repeat_interleave(times)[:, None, None, None].expand(-1, HEADS, 1, whole.shape[-1])
        whole = whole.scatter(2, at, weights.flatten(0, 1)[:, :, None])
        inputs = replace(inputs, ids=many(inputs.ids), mask=many(inputs.mask), special=many(inputs.special))
        streams = many(trace.cache[site.key])  # type: ignore[index]
        keys = [one.key for one in self.sites()]
        for n in range(keys.index(site.key), len(keys)):
            put = (lambda s, _w, _a: whole if s.key == site.key else None) if n == keys.index(site.key) else None
            self.attend(n, streams, inputs, self.later(put, trace, times), Parts({}, {}, {}, {}))
        return self.decide(streams, inputs).unflatten(0, (-1, times))

    def resume(
        self,
        inputs: Inputs,
        trace: Trace,
        site: Site,
        variants: int,
        intervene: Intervention,
        *,
        blocks: Collection[str] = (),
    ) -> Tensor:
        copies = repeated(inputs, variants)
        streams = {name: value.repeat_interleave(variants, 0) for name, value in trace.cache[site.key].items()}  # type: ignore[index]
        keys = [one.key for one in self.sites()]
        for n in range(keys.index(site.key), len(keys)):
            self.attend(n, streams, copies, intervene, Parts({}, {}, {}, {}))
        return self.decide(streams, copies)

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        return inputs.mask[TEXT].shape[1]

    def later(self, put: Intervention | None, trace: Trace, times: int) -> Intervention | None:
        """Return the replacements that replay makes from a site onwards."""
        return put

    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        block = self.model.blocks[[one.key for one in self.sites()].index(site.key)]
        parts = block.output.weight.unflatten(1, (HEADS, -1))
        return torch.einsum("bhkd,mhd->bhkm", heads(block.value(trace.hidden[site.key][:, keys])), parts)

    def decode(self, hidden: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


SOUND: dict[str, Callable[[], SmallTransformer]] = {
    "both ways": SmallTransformer,
    "causal": lambda: SmallTransformer(causal=True),
    "within a window": lambda: SmallTransformer(window=3),
    "with sinks": lambda: SmallTransformer(sinks=True),
    "cross": lambda: SmallTransformer(cross=True),
}
