"""The forward and backward passes of one batch that do not depend on a reading, each run at most once.

Shapes: B instances, T tokens (padded), V variants, C classes, d and m features.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TEXT, Inputs, Intervention, ModelAdapter, SharingAdapter, Trace
from attnaudit.instances import Instance
from attnaudit.progress import ProgressCallback

#: How tokens are taken away: their ids are removed and the rest encoded again, or become the model's mask id.
Operator = Literal["deletion", "mask"]
#: What statistics are taken over.
Unit = Literal["tokens", "words"]
#: Variants whose lengths differ by less are run together, ordered by the first token that they lack.
BAND = 4
#: (variants × tokens) of erased texts that are laid out together: they grow with the square of a text's length.
LAID_OUT = 2**24
#: Seconds after which a batch says how far it is.
PATIENCE = 5.0
ERASING = "texts with tokens erased"


def probabilities(logits: Tensor) -> Tensor:
    """(..., C) logits -> (..., max(C, 2)) class probabilities in float64; one logit is a sigmoid for class 1."""
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.cat([torch.sigmoid(-wide), torch.sigmoid(wide)], dim=-1)
    return torch.softmax(wide, dim=-1)


@contextmanager
def differentiable(device: torch.device) -> Iterator[None]:
    """Gradients are kept. cuDNN refuses the backward pass of a recurrent network in evaluation mode."""
    if device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), torch.enable_grad():
            yield
    else:
        with torch.enable_grad():
            yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """float32 is float32: neither TF32 nor autocast, whatever the process has set. That is put back at the end."""
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    flags = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    torch.set_float32_matmul_precision("highest")
    try:
        with cudnn.flags(**flags, allow_tf32=False), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class Batch:
    """One batch and everything that all measures share about it.

    seed: of the audit. gradients: keep the graph of the clean pass. budget: most tokens (rows × length) in one forward
    pass of variants. counts: what was run, by kind. unit: "words" puts the tokens of a word together; a word stands at
    the position of its first token. progress: told by measures that take long over something else than the batch, and
    by batches that take long.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        instances: Sequence[Instance],
        positions: Sequence[int],
        *,
        seed: int,
        gradients: bool,
        budget: int,
        counts: Counter[str],
        unit: Unit = "tokens",
        progress: ProgressCallback | None = None,
    ) -> None:
        self.adapter = adapter
        self.instances = instances
        self.positions = positions
        self.seed = seed
        self.gradients = gradients
        self.budget = budget
        self.counts = counts
        self.unit = unit
        self.progress = progress
        self.started = time.monotonic()
        self.inputs: Inputs = adapter.collate(instances)

    def tell(self, done: int, total: int, doing: str) -> None:
        """How far something within the batch is: said where the batch takes long."""
        if self.progress is not None and time.monotonic() - self.started > PATIENCE:
            self.progress(done, total, doing)

    # -- tokens and units -----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.inputs.ids[TEXT].device

    @cached_property
    def real_tokens(self) -> Tensor:
        """(B, T) True on tokens that are neither padding nor special."""
        return self.inputs.real()

    @cached_property
    def real(self) -> Tensor:
        """(B, T) True at the first token of each unit, which is every real token where the units are tokens."""
        if self.unit == "tokens" or TEXT not in self.inputs.words:
            return self.real_tokens
        words = self.inputs.words[TEXT]
        before = torch.cat([torch.full_like(words[:, :1], -2), words[:, :-1]], dim=1)
        return self.real_tokens & (words != before)

    @cached_property
    def members(self) -> Tensor:
        """(B, T) at which position the unit of each real token stands; its own position elsewhere."""
        place = torch.arange(self.real.shape[1], device=self.device).expand_as(self.real)
        first = torch.where(self.real, place, -1).cummax(1).values
        return torch.where(self.real_tokens, first, place)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) number of units."""
        return self.real.sum(1)

    def together(self, values: Tensor) -> Tensor:
        """(B, T) values of tokens -> (B, T) their sums by unit, zero elsewhere."""
        if self.real is self.real_tokens:
            return values * self.real
        return torch.zeros_like(values).scatter_add(1, self.members, values * self.real_tokens) * self.real

    def tokens_of(self, units: Tensor, rows: Tensor | None = None) -> Tensor:
        """(V, T) which units -> (V, T) their tokens. rows (V,): of the batch; row v by default."""
        if rows is None:
            return units.gather(1, self.members) & self.real_tokens
        return units.gather(1, self.members[rows]) & self.real_tokens[rows]

    # -- the clean pass -------------------------------------------------------------------------------------------

    @cached_property
    def embeddings(self) -> dict[str, Tensor]:
        """stream -> (B, T, d) leaves."""
        with torch.no_grad():
            embedded = self.adapter.embed(self.inputs)
        return {name: value.detach().requires_grad_(self.gradients) for name, value in embedded.items()}

    def _count_forward(self, rows: int) -> None:
        self.counts["forward"] += 1
        self.counts["forward_rows"] += rows

    @cached_property
    def trace(self) -> Trace:
        """The clean pass, with its graph when a measure differentiates."""
        self._count_forward(len(self.instances))
        if not self.gradients:
            with torch.no_grad():
                return self.adapter.run(self.inputs, embeddings=self.embeddings, hidden=True)
        with differentiable(self.device):
            return self.adapter.run(self.inputs, embeddings=self.embeddings, hidden=True)

    @property
    def decoder_condition(self) -> Tensor | None:
        """(B, q) what a pooled model's decoder reads beside the context, detached."""
        return None if self.trace.decoder_condition is None else self.trace.decoder_condition.detach()

    @cached_property
    def logits(self) -> Tensor:
        """(B, C) float64, detached."""
        return self.trace.logits.detach().double()

    @cached_property
    def probabilities(self) -> Tensor:
        """(B, C) float64; a sigmoid output is expanded to two classes."""
        return probabilities(self.logits)

    @cached_property
    def predicted(self) -> Tensor:
        """(B,) index of the predicted class."""
        return self.probabilities.argmax(-1)

    # -- gradients of the predicted class's probability (PROTOCOL: the default target f) ----------------------------

    def target(self, logits: Tensor) -> Tensor:
        """Sum over the batch of the predicted class's probability."""
        total: Tensor = probabilities(logits).gather(1, self.predicted[:, None]).sum()
        return total

    def slopes_of(self, trace: Trace) -> dict[str, Tensor]:
        """∂f/∂x in float64 for x the embeddings (under "") and the states of each site (under its key)."""
        self.counts["backward"] += 1
        at = {"": self.embeddings[TEXT], **trace.hidden}
        found = torch.autograd.grad(self.target(trace.logits), list(at.values()), retain_graph=True, allow_unused=True)
        return {
            name: torch.zeros_like(x, dtype=torch.float64) if slope is None else slope.double()
            for (name, x), slope in zip(at.items(), found, strict=True)
        }

    @cached_property
    def slopes(self) -> dict[str, Tensor]:
        """As `slopes_of` the clean pass, attention part of the graph."""
        with differentiable(self.device):
            return self.slopes_of(self.trace)

    @cached_property
    def slopes_detached(self) -> dict[str, Tensor]:
        """The same with attention held constant."""
        with differentiable(self.device):
            self._count_forward(len(self.instances))
            trace = self.adapter.run(
                self.inputs, embeddings=self.embeddings, intervene=lambda _s, w, _a: w.detach(), hidden=True
            )
            return self.slopes_of(trace)

    @cached_property
    def attention_slopes(self) -> dict[str, Tensor]:
        """site key -> (B, H, Q, K) ∂f/∂α of the clean pass, float64."""
        with differentiable(self.device):
            self.counts["backward"] += 1
            at = self.trace.attention
            found = torch.autograd.grad(
                self.target(self.trace.logits), list(at.values()), retain_graph=True, allow_unused=True
            )
        return {
            name: torch.zeros_like(weights, dtype=torch.float64) if slope is None else slope.double()
            for (name, weights), slope in zip(at.items(), found, strict=True)
        }

    # -- other attentions -----------------------------------------------------------------------------------------

    def run_variants(self, variants: int, intervene: Callable[[slice], Intervention]) -> Tensor:
        """(B, V, C) float64 logits under V interventions. `intervene(part)` gives the intervention for those variants;
        its rows are b·len(part) + v."""
        rows, width = self.inputs.mask[TEXT].shape
        step = max(1, self.budget // max(1, rows * width))
        found = []
        with torch.no_grad():
            for start in range(0, variants, step):
                part = slice(start, min(variants, start + step))
                count = part.stop - part.start
                self._count_forward(rows * count)
                logits = self.adapter.run(repeated(self.inputs, count), intervene=intervene(part)).logits
                found.append(logits.double().reshape(rows, count, -1))
                self.tell(part.stop, variants, "other attentions")
        return torch.cat(found, dim=1)

    # -- erasure --------------------------------------------------------------------------------------------------

    def can_erase(self, operator: Operator) -> bool:
        """Whether the adapter declares what the operator takes."""
        capabilities = self.adapter.capabilities
        return capabilities.mask if operator == "mask" else capabilities.deletion

    def _nothing(self, *shape: int) -> Tensor:
        classes = self.probabilities.shape[-1]
        return torch.full((*shape, classes), torch.nan, dtype=torch.float64, device=self.device)

    def _one_gone(self, operator: Operator) -> Tensor:
        found = self._nothing(*self.real.shape)
        every = (self.real & (self.lengths > 1)[:, None]).nonzero()
        done = 0
        for part in torch.split(every, max(1, LAID_OUT // self.real.shape[1])):
            rows, gone = part.unbind(1)
            keep = self.real[rows]
            keep[torch.arange(len(rows), device=self.device), gone] = False
            found[rows, gone] = self._run_erased(rows, keep, operator, before=done, total=len(every))
            done += len(rows)
        return found

    @cached_property
    def deleted(self) -> Tensor:
        """(B, T, C) class probabilities with each unit deleted and the rest encoded again.

        NaN at other positions, and for instances with a single unit: there would be nothing left to read."""
        return self._one_gone("deletion")

    @cached_property
    def substituted(self) -> Tensor:
        """(B, T, C) as `deleted`, with the mask id put in place of the unit's tokens."""
        return self._one_gone("mask")

    def erased(self, rows: Tensor, keep: Tensor, operator: Operator) -> Tensor:
        """(V,) rows of the batch, (V, T) which units stay -> (V, C) float64 class probabilities without the rest.

        Special tokens always stay. Equal variants run once, and those that lack a single unit are read from `deleted`
        or `substituted`. NaN where no unit stays: there is nothing left to decide from."""
        found = self._nothing(len(rows))
        keep = keep & self.real[rows]
        gone = self.real[rows] & ~keep
        single = (gone.sum(1) == 1) & keep.any(1)
        if bool(single.any()):
            alone = self.substituted if operator == "mask" else self.deleted
            found[single] = alone[rows[single], gone[single].int().argmax(1)]
        left = (keep.any(1) & ~single).nonzero()[:, 0]
        if len(left):
            table = torch.cat([rows[left, None], keep[left].long()], dim=1).cpu().numpy()
            unique, where = np.unique(table, axis=0, return_inverse=True)
            variants = torch.from_numpy(unique).to(self.device)
            output = self._run_erased(variants[:, 0], variants[:, 1:].bool(), operator)
            found[left] = output[torch.from_numpy(where.reshape(-1)).to(self.device)]
        return found

    def _run_erased(
        self, rows: Tensor, keep: Tensor, operator: Operator, *, before: int = 0, total: int | None = None
    ) -> Tensor:
        """As `erased`, every variant run, long ones first so that a pass holds variants of about one length.

        before, total: how many were run before these, and of how many these are."""
        total = total or len(rows)
        if operator == "deletion" and self.adapter.capabilities.shares_states:
            return self._resumed(rows, keep, before, total)
        found = self._nothing(len(rows))
        mask, special = self.inputs.mask[TEXT][rows], self.inputs.special[TEXT][rows]
        stays = (self.tokens_of(keep, rows) | special) & mask
        widths, order = (stays if operator == "deletion" else mask).sum(1).sort(descending=True, stable=True)
        start = 0
        with torch.no_grad():
            while start < len(rows):
                part = order[start : start + max(1, self.budget // max(1, int(widths[start])))]
                self._count_forward(len(part))
                if operator == "deletion":
                    variants = self.adapter.keep(self.inputs, TEXT, rows[part], stays[part])
                else:
                    variants = self.adapter.substitute(self.inputs, TEXT, rows[part], mask[part] & ~stays[part])
                found[part] = probabilities(self.adapter.run(variants).logits)
                start += len(part)
                self.tell(before + start, total, ERASING)
        return found

    @cached_property
    def shared(self) -> object:
        """What a recurrent adapter shares among the variants and the influences of this batch."""
        self._count_forward(len(self.instances))
        with torch.no_grad():
            return cast(SharingAdapter, self.adapter).share(self.inputs)

    def _resumed(self, rows: Tensor, keep: Tensor, before: int, total: int) -> Tensor:
        """As `_run_erased` by deletion, from shared states."""
        found = self._nothing(len(rows))
        adapter = cast(SharingAdapter, self.adapter)
        mask, special = self.inputs.mask[TEXT][rows], self.inputs.special[TEXT][rows]
        stays = (self.tokens_of(keep, rows) | special) & mask
        gone = (mask & ~stays).int().argmax(1)
        order = (stays.sum(1) // BAND * -mask.shape[1] + gone).argsort(stable=True)
        with torch.no_grad():
            widths = adapter.variant_cost(self.inputs, self.shared, rows[order], stays[order])
            for part in self._within_budget(order, widths.tolist()):
                self.counts["logits_without"] += 1
                self.counts["resumed_rows"] += len(part)
                logits = adapter.logits_without(self.inputs, self.shared, rows[part], stays[part])
                found[part] = probabilities(logits)
                before += len(part)
                self.tell(before, total, ERASING)
        return found

    def _within_budget(self, order: Tensor, widths: Sequence[int]) -> Iterator[Tensor]:
        """`order` in parts of which each, all as wide as its widest, stays within the budget's tokens."""
        start = widest = 0
        for stop, width in enumerate(widths):
            widest = max(widest, width)
            if stop > start and widest * (stop + 1 - start) > self.budget:
                yield order[start:stop]
                start, widest = stop, width
        if len(order):
            yield order[start:]
