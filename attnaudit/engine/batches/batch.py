"""One batch with the passes that do not depend on a reading: the clean pass, interventions and erasures.

A unit is a token or a word. An intervention changes the attention weights at some sites (see `Site`) while the model
runs. An erasure deletes or masks units of the text.

Shapes: B instances, T tokens (padded), V variants, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import FastPassAdapter, SharingAdapter, TransformerAdapter, substituted
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention, ErasureIntervention, too_large_to_hold
from attnaudit.adapters.site_selection import run_for
from attnaudit.engine.batches.batch_sizes import sizes_of_batches, tokens_per_pass
from attnaudit.engine.batches.clean_pass import CleanPass
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.batches.logits import mean_over_draws, probabilities
from attnaudit.engine.batches.shared_work import shared_result
from attnaudit.engine.batches.unit_masks import SharesUnitMasks

#: How tokens are erased: "deletion" removes their ids and encodes the rest again; "mask" replaces them by the mask id.
Operator = Literal["deletion", "mask"]
#: (inputs, trace, rows (v,) of the batch) -> logits (v, C) of a pass over v variants, with other weights at one query.
Replay = Callable[[Inputs, Trace, Tensor], Tensor]
#: Variants that resume from shared states are sorted by length, in bands of this many tokens. Within a band, they are
#: sorted by the first token that they lack.
LENGTH_BAND = 4
#: Largest number of tokens (variants × length) for which leave-one-out variants are laid out at once: without a limit,
#: their memory would grow with the square of a text's length.
LEAVE_ONE_OUT_TOKENS = 2**24
#: A row with more units than this is large. Masking a single unit of a large bag then takes time in proportion to its
#: features, if the adapter declares `single_masks`. The results of smaller bags do not depend on this.
LARGE_ROW = 1000
#: Number of single masks of a large row that are computed at once.
SINGLE_MASKS_AT_ONCE = 2048
#: Progress note of erasures.
ERASING = "texts with tokens erased"
#: How error messages describe the two kinds of changed passes.
ERASED, REPLACED = "with some of its tokens erased", "under replaced attention"


class Batch(SharesUnitMasks, CleanPass):
    """A batch that all measures share. Its methods run the model under interventions, or on texts with erased units.

    A variant is an instance with one of these changes. Variants run in parts that fit the token budget. Erasures that
    give the same text run only once.
    """

    def read_by(self, adapter: ModelAdapter, *, keep_graph: bool) -> Batch:
        """Return a batch of the same instances for another adapter, such as a copy. It reports no progress."""
        return Batch(
            adapter,
            self.instances,
            self.positions,
            seed=self.seed,
            keep_graph=keep_graph,
            budget=self.budget,
            pass_counts=self.pass_counts,
            unit=self.unit,
            scopes=self.scopes,
        )

    def _fast_passes(self) -> AbstractContextManager[None]:
        fast = isinstance(self.adapter, FastPassAdapter)
        return cast(FastPassAdapter, self.adapter).fast_passes() if fast else nullcontext()

    # -- interventions on attention ---------------------------------------------------------------------------------

    def run_variants(
        self,
        variants: int,
        intervene: Callable[[slice], BlockIntervention],
        *,
        given: Tensor | None = None,
        sites: Collection[str] | None = None,
    ) -> Tensor:
        """Run the model under several interventions.

        Args:
            variants: V, the number of interventions.
            intervene: A function that gets a slice of n variants and returns their intervention. These variants run
                together, in a batch of B · n rows. Row b · n + v is the v-th of the n variants of instance b.
            given: (B, V, T) numbers that the interventions are computed from. Where they are NaN, the logits may be NaN
                too.
            sites: Keys of the sites that the interventions change; None for all sites.

        Returns:
            (B, V, C) logits, float64.

        Raises:
            AdapterError: The logits are not finite. The message names the row.
        """
        rows, width = self.inputs.mask[TEXT].shape
        step = max(1, self.budget // max(1, rows * width))
        chunks = []
        with torch.no_grad():
            for start in range(0, variants, step):
                part = slice(start, min(variants, start + step))
                count = part.stop - part.start
                blocks = too_large_to_hold(self.adapter, self.inputs, rows * count, sites or ())
                logits = self._run_repeated(count, intervene(part), sites, blocks)
                chunks.append(logits.double().reshape(rows, count, -1))
                self.report_progress(part.stop, variants, "other attentions")
        output = torch.cat(chunks, dim=1)
        refuse_not_finite(output, self.instances, REPLACED, given=given)
        return output

    def _run_repeated(
        self, count: int, intervene: BlockIntervention, sites: Collection[str] | None, blocks: Collection[str]
    ) -> Tensor:
        """Return the logits (B·n, C) of n copies of each row under an intervention. See `run_variants`."""
        only = [site for site in self.adapter.sites() if sites is not None and site.key in sites]
        if len(only) == 1 and self.adapter.capabilities.replays and self.adapter.capabilities.resumes:
            adapter = cast(TransformerAdapter, self.adapter)
            self.count("resume", "resumed_rows", len(self.instances) * count)
            return adapter.resume(self.inputs, self.trace, only[0], count, intervene, blocks=blocks)
        self.count_forward(len(self.instances) * count)
        inputs = repeated(self.inputs, count)
        return run_for(self.adapter, inputs, sites, intervene=intervene, blocks=blocks).logits

    # -- erasure --------------------------------------------------------------------------------------------------

    def _undefined_logits(self, *shape: int) -> Tensor:
        """Return a (..., C) tensor of NaN."""
        return self.logits.new_full((*shape, self.logits.shape[-1]), torch.nan)

    def leave_one_out(self, operator: Operator, among: Tensor | None = None) -> Tensor:
        """Return the class probabilities of `logits_leaving_one_out`, float64."""
        return probabilities(self.logits_leaving_one_out(operator, among))

    def logits_leaving_one_out(self, operator: Operator, among: Tensor | None = None) -> Tensor:
        """Return the logits of the texts that lack exactly one unit, once for each unit.

        Args:
            operator: How units are erased.
            among: (B, T) True at the units that are left out in turn; None for all units.

        Returns:
            (B, T, C) logits, float64. They are NaN at positions where no unit starts, for units that are not left out,
            and for instances with a single unit, because no text would be left without it.
        """
        if among is not None and not bool((among == self.real).all()):
            return self._run_leave_one_out("deletion" if self.unit == "sources" else operator, among & self.real)
        by_mask = operator == "mask" and self.unit != "sources"
        return self._leave_one_out_by_mask if by_mask else self._leave_one_out_by_deletion

    @shared_result
    def _leave_one_out_by_deletion(self) -> Tensor:
        return self._run_leave_one_out("deletion", self.real)

    @shared_result
    def _leave_one_out_by_mask(self) -> Tensor:
        known = self.known_unit_masks
        return self._run_leave_one_out("mask", self.real) if known is None else known.without

    def _run_leave_one_out(self, operator: Operator, among: Tensor) -> Tensor:
        output = self._undefined_logits(*self.real.shape)
        large = self.rows_with_single_masks if operator == "mask" else []
        for row in large:
            units = among[row].nonzero()[:, 0]
            output[row, units] = self.single_masks(row, units, alone=False, held=False)
        among = among.clone()
        among[large] = False
        units = (among & (self.lengths > 1)[:, None]).nonzero()
        done = 0
        for chunk in torch.split(units, max(1, LEAVE_ONE_OUT_TOKENS // self.real.shape[1])) if len(units) else ():
            rows, erased = chunk.unbind(1)
            keep = self.real[rows]
            keep[torch.arange(len(rows), device=self.device), erased] = False
            output[rows, erased] = self._run_erasures(rows, keep, operator, done=done, total=len(units))
            done += len(rows)
        return output

    def erase(self, rows: Tensor, keep: Tensor, operator: Operator) -> Tensor:
        """Return the class probabilities (V, C) of `erased_logits`, float64."""
        return probabilities(self.erased_logits(rows, keep, operator))

    def erased_logits(self, rows: Tensor, keep: Tensor, operator: Operator) -> Tensor:
        """Return the logits of texts in which only some units are kept.

        Special tokens are always kept. Variants that are equal run only once. The results of variants that lack a
        single unit are those of `leave_one_out`, and those of single units may be those of `known_unit_masks`.

        Args:
            rows: (V,) row of the batch that each variant belongs to.
            keep: (V, T) True at the units that are kept.
            operator: How the other units are erased. Sources are always deleted.

        Returns:
            (V, C) logits, float64; NaN where no unit is kept.
        """
        operator = "deletion" if self.unit == "sources" else operator
        output = self._undefined_logits(len(rows))
        keep = keep & self.real[rows]
        erased = self.real[rows] & ~keep
        lacks_one = (erased.sum(1) == 1) & keep.any(1)
        if bool(lacks_one.any()):
            output[lacks_one] = self.logits_leaving_one_out(operator)[
                rows[lacks_one], erased[lacks_one].int().argmax(1)
            ]
        known = lacks_one
        if operator == "mask" and (masks := self.known_unit_masks) is not None:
            alone = (keep.sum(1) == 1) & erased.any(1) & ~lacks_one
            output[alone] = masks.alone[rows[alone], keep[alone].int().argmax(1)]
            known = known | alone
        others = (keep.any(1) & ~known).nonzero()[:, 0]
        if len(others):
            table = torch.cat([rows[others, None], keep[others].long()], dim=1).cpu().numpy()
            unique, inverse = np.unique(table, axis=0, return_inverse=True)
            variants = torch.from_numpy(unique).to(self.device)
            unique_output = self._run_erasures(variants[:, 0], variants[:, 1:].bool(), operator)
            output[others] = unique_output[torch.from_numpy(inverse.reshape(-1)).to(self.device)]
        return output

    def masked(
        self,
        rows: Tensor,
        keep: Tensor,
        intervene: ErasureIntervention | None = None,
        *,
        sites: Collection[str] = (),
        queries: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of texts in which only some units are kept and the others are masked.

        Sources are deleted instead. Unlike in `erase`, all variants run, even equal ones and those without a unit.

        Args:
            rows: (V,) row of the batch that each variant belongs to.
            keep: (V, T) True at the units that are kept.
            intervene: Returns the intervention on the attention of variants that run together; None for none.
            sites: Keys of the sites that the intervention changes.
            queries: (B,) position of the single query at these sites whose weights the intervention receives and may
                change; None for all queries.
            weights: (B, H, T) weights that the intervention gives to all heads of the only site; None if it does
                something else. Variants can then be computed from shared states.

        Returns:
            (V, C) logits, float64.
        """
        if self.unit == "sources":
            return self._run_erasures(rows, keep, "deletion", intervene=intervene, sites=sites)
        if weights is not None and self.adapter.capabilities.shares_masked:
            return self._run_from_shared_states(rows, keep, "mask", 0, len(rows), weights)
        return self._run_erasures(rows, keep, "mask", intervene=intervene, sites=sites, queries=queries)

    def masked_and_replayed(
        self, rows: Tensor, keep: Tensor, site: Site, queries: Tensor, replay: Replay
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of texts with masked units, and those replayed from the same passes.

        Args:
            rows: (V,) as in `masked`. The units must not be sources.
            keep: (V, T) as in `masked`.
            site: The site whose weights are replayed.
            queries: (B,) position of the query whose weights are replayed.
            replay: Computes the replayed logits (see `Replay`).

        Returns:
            (V, C) logits of the passes, and (V, C) replayed logits; both float64.
        """
        both = self._run_erasures(rows, keep, "mask", sites=(site.key,), queries=queries, replay=replay)
        return both[:, 0], both[:, 1]

    @cached_property
    def rows_with_single_masks(self) -> list[int]:
        """The rows for which `single_masks` is faster than `masked`: large bags of independent units."""
        if not self.adapter.capabilities.single_masks or self.unit != "tokens":
            return []
        return (self.lengths > LARGE_ROW).nonzero()[:, 0].tolist()

    def single_masks(self, row: int, units: Tensor, *, alone: bool, held: bool) -> Tensor:
        """Return the logits of a row in which either one unit or all units except one are masked.

        Args:
            row: One of `rows_with_single_masks`.
            units: (V,) the position of the unit, for each variant.
            alone: Whether all units except this one are masked. If not, only this one is masked.
            held: Whether the attention weights stay those of the clean pass. If not, they are computed again.

        Returns:
            (V, C) logits, float64.
        """
        adapter = cast(SharingAdapter, self.adapter)
        output = self._undefined_logits(len(units))
        with torch.no_grad():
            for chunk in torch.split(torch.arange(len(units), device=self.device), SINGLE_MASKS_AT_ONCE):
                self.count("logits_masked", "single_mask_rows", len(chunk))
                logits = adapter.logits_with_single_masks(
                    self.inputs, self.shared_states, row, units[chunk], alone=alone, held=held
                )
                output[chunk] = self._finite_logits(logits, torch.full_like(chunk, row))
        return output

    def _run_erasures(
        self,
        rows: Tensor,
        keep: Tensor,
        operator: Operator,
        *,
        intervene: ErasureIntervention | None = None,
        sites: Collection[str] = (),
        queries: Tensor | None = None,
        replay: Replay | None = None,
        done: int = 0,
        total: int | None = None,
        draw: int | None = None,
    ) -> Tensor:
        """Run every variant. The longest variants run first, so that the variants of one pass have similar lengths.

        Args:
            rows: (V,) as in `erase`.
            keep: (V, T) as in `erase`.
            operator: As in `erase`.
            intervene: As in `masked`.
            sites: As in `masked`.
            queries: As in `masked`.
            replay: Computes further logits from each pass. The result (V, 2, C) then has the logits of the
                passes, followed by the further ones.
            done: Number of variants that earlier calls have run for the same request, for progress reports.
            total: Number of variants of the whole request; V if None.
            draw: Number of the draw of masked units; None for the mean over all draws.
        """
        total = total or len(rows)
        capabilities = self.adapter.capabilities
        draws = capabilities.draws if operator == "mask" else 1
        if draw is None and draws > 1:
            each = [
                self._run_erasures(
                    rows,
                    keep,
                    operator,
                    intervene=intervene,
                    sites=sites,
                    queries=queries,
                    replay=replay,
                    done=done * draws + number * len(rows),
                    total=total * draws,
                    draw=number,
                )
                for number in range(draws)
            ]
            return mean_over_draws(each)
        shares = capabilities.shares_states if operator == "deletion" else capabilities.shares_masked
        if shares and intervene is None:
            return self._run_from_shared_states(rows, keep, operator, done, total)
        output = self._undefined_logits(len(rows), *([] if replay is None else [2]))
        mask, special = self.inputs.mask[TEXT][rows], self.inputs.special[TEXT][rows]
        stays = (self.tokens_of_units(keep, rows) | special) & mask
        widths, order = (stays if operator == "deletion" else mask).sum(1).sort(descending=True, stable=True)
        per_pass = tokens_per_pass(self.adapter, self.device.type)
        sizes = sizes_of_batches(widths.tolist(), self.budget, per_pass=per_pass)
        with torch.no_grad():
            for chunk in torch.split(order, sizes):
                self.count_forward(len(chunk))
                if operator == "deletion":
                    variants = self.adapter.keep(self.inputs, TEXT, rows[chunk], stays[chunk])
                else:
                    replaced = mask[chunk] & ~stays[chunk]
                    variants = substituted(self.adapter, self.inputs, TEXT, rows[chunk], replaced, draw or 0)
                left = stays[chunk] if operator == "deletion" else None
                intervention = None if intervene is None else intervene(rows[chunk], left)
                changed = None if queries is None else dict.fromkeys(sites, queries[rows[chunk]][:, None])
                whole = sites if queries is None and intervention is not None else ()
                blocks = too_large_to_hold(self.adapter, variants, len(chunk), whole)
                trace = run_for(
                    self.adapter,
                    variants,
                    sites,
                    queries=changed,
                    intervene=intervention,
                    hidden=replay is not None,
                    blocks=blocks,
                )
                found = self._finite_logits(trace.logits, rows[chunk])
                if replay is not None:
                    replayed = self._finite_logits(replay(variants, trace, rows[chunk]), rows[chunk])
                    found = torch.stack([found, replayed], dim=1)
                output[chunk] = found
                done += len(chunk)
                self.report_progress(done, total, ERASING)
        return output

    def _finite_logits(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the logits (V, C) of erasures in float64, given their rows (V,). Raise AdapterError if not finite."""
        refuse_not_finite(logits, self.instances, ERASED, rows=rows)
        return logits.double()

    @shared_result
    def shared_states(self) -> object:
        """The result of the adapter's `share`: states from which erasures and influences of this batch are computed."""
        self.count_forward(len(self.instances))
        with torch.no_grad():
            return cast(SharingAdapter, self.adapter).share(self.inputs)

    def _run_from_shared_states(
        self, rows: Tensor, keep: Tensor, operator: Operator, done: int, total: int, weights: Tensor | None = None
    ) -> Tensor:
        """Run the erasures as `_run_erasures` does, by resuming from the shared states.

        The weights are as in `masked`, and only for the operator "mask".
        """
        output = self._undefined_logits(len(rows))
        adapter = cast(SharingAdapter, self.adapter)
        name = "logits_without" if operator == "deletion" else "logits_masked"
        mask, special = self.inputs.mask[TEXT][rows], self.inputs.special[TEXT][rows]
        stays = (self.tokens_of_units(keep, rows) | special) & mask
        read = stays if operator == "deletion" else mask
        first_changed = (mask & ~stays).int().argmax(1)
        if operator == "mask":  # A recurrent encoder resumes from the whole or the masked text, which changes later.
            first_changed = first_changed.maximum((stays & ~special).int().argmax(1))
        order = (read.sum(1) // LENGTH_BAND * -mask.shape[1] + first_changed).argsort(stable=True)
        with torch.no_grad():
            costs = adapter.variant_cost(self.inputs, self.shared_states, rows[order], read[order])
            sizes = sizes_of_batches(costs.tolist(), self.budget, per_pass=tokens_per_pass(adapter, self.device.type))
            for chunk in torch.split(order, sizes):
                self.count(name, "resumed_rows", len(chunk))
                of_chunk = self.inputs, self.shared_states, rows[chunk], stays[chunk]
                if operator == "deletion":
                    logits = adapter.logits_without(*of_chunk)
                else:
                    logits = adapter.logits_masked(*of_chunk, None if weights is None else weights[rows[chunk]])
                output[chunk] = self._finite_logits(logits, rows[chunk])
                done += len(chunk)
                self.report_progress(done, total, ERASING)
        return output
