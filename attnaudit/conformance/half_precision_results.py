"""A check of models in half precision: apart from rounding, their results must not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor

from attnaudit.adapters.optional_methods import HalfPrecisionAdapter
from attnaudit.adapters.protocol import TEXT, Inputs, Trace
from attnaudit.adapters.site_selection import run_for
from attnaudit.conformance.batch_invariance import EXTRA_PADDING, widened
from attnaudit.conformance.contract import BrokenContractError, contract, gap
from attnaudit.conformance.sample_texts import Examples, at_tokens
from attnaudit.precision import HALF, counted_size, tolerance

ADVICE = (
    "The result for a text would depend on its batch, and rounding does not explain this. Audit a float32 copy: for a "
    "Transformers model, write precision = \"float32\" to attnaudit.toml, or pass precision='float32' to transformer()."
)


@contract("half_precision", in_float32=False)
def check_half_precision(e: Examples) -> str:
    """In half precision, the result of a row is the same, up to rounding, in every batch and in every kind of pass."""
    precision = e.capabilities.precision
    if precision not in HALF:
        raise BrokenContractError(f"precision is {precision!r}; expected 'float32' or one of {', '.join(HALF)}.")
    fresh = Examples(e.adapter, e.instances, e.thorough)
    limit = tolerance(precision)
    size = counted_size(fresh.trace.logits.abs().max().item(), limit)
    in_logits, in_weights = 0.0, 0.0
    for what, inputs, rows, trace in _other_passes(fresh):
        difference = gap(trace.logits, fresh.trace.logits[rows]) / size
        if not difference <= limit:
            raise BrokenContractError(
                f"{what}: the logits differ by {difference:.2g} times the largest logit; expected at most "
                f"{limit:.2g}, the tolerance of {precision}. {ADVICE}"
            )
        in_logits = max(in_logits, difference)
        for site in e.sites if trace.attention else ():
            for row, expected in enumerate(rows):
                found = at_tokens(trace.attention[site.key], inputs, site, row)
                apart = gap(found, _weights(fresh, site.key, expected))
                if not apart <= limit:
                    raise BrokenContractError(
                        f"{what}: the attention weights at '{site.key}' differ by {apart:.2g}; expected at most "
                        f"{limit:.2g}, the tolerance of {precision}. {ADVICE}"
                    )
                in_weights = max(in_weights, apart)
    compared = cast(HalfPrecisionAdapter, e.adapter).compare_with_float32(fresh.inputs)
    return (
        f"audited in {precision}: between batches and kinds of passes, the logits differ by at most {in_logits:.2g} "
        f"times the largest logit, and the attention weights by at most {in_weights:.2g} (tolerance {limit:.2g}); "
        f"{compared}"
    )


def _weights(e: Examples, key: str, row: int) -> Tensor:
    """Return the attention weights of a row of the examples at a site, without padding."""
    site = next(one for one in e.sites if one.key == key)
    return at_tokens(e.trace.attention[key], e.inputs, site, row)


def _other_passes(e: Examples) -> Iterator[tuple[str, Inputs, list[int], Trace]]:
    """Yield other ways to run the examples.

    Each has a description, the batch, the index of the example in each row, and the trace. A trace may lack attention
    weights.
    """
    for b, one in enumerate(e.instances):
        alone = e.adapter.collate([one])
        yield "a row alone, not in a batch", alone, [b], e.run(alone)
    everything = list(range(len(e.instances)))
    limit = e.capabilities.max_tokens
    if limit is None or e.inputs.ids[TEXT].shape[1] + EXTRA_PADDING <= limit:
        left = EXTRA_PADDING if e.padded_left else 0
        wide = widened(e.inputs, left=left, right=EXTRA_PADDING - left)
        yield f"{EXTRA_PADDING} more padding tokens", wide, everything, e.run(wide)
    reinserted = e.run(e.inputs, lambda site, _weights, _allowed: e.trace.attention[site.key])
    yield "a pass with the model's own attention weights put back", e.inputs, everything, reinserted
    if e.capabilities.selects_sites:
        yield "a pass without recorded attention", e.inputs, everything, run_for(e.adapter, e.inputs, ())
