"""Outputs for masked units with fixed attention, for models in which a state depends only on its own token.

The encoder runs twice: on the unchanged batch, and with all units masked. In a variant, each masked unit contributes
its state from the second run, and every other unit its state from the first run.

Shapes: B instances, T tokens (padded), V variants, H heads, C classes, m features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters import protocol
from attnaudit.adapters.optional_methods import substituted
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.batches.attention_reading import AttentionReading
from attnaudit.engine.batches.batch import ERASED
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.batches.logits import mean_over_draws


def masked_from_states(reading: AttentionReading, rows: Tensor, keep: Tensor, most: int) -> Tensor:
    """Return the logits of texts with masked units, with the attention of the clean pass.

    Args:
        reading: The batch under a reading with a single row per head. The adapter must declare `unitwise`.
        rows: (V,) for each variant, the position of its original instance in the batch.
        keep: (V, T) True at the units that are kept; the others are masked.
        most: The largest number of attention weights in memory at once.

    Returns:
        (V, C) logits, float64.
    """
    output = reading.logits.new_full((len(rows), reading.logits.shape[-1]), torch.nan)
    tokens = reading.batch.tokens_of_units(keep, rows) | ~reading.batch.real_tokens[rows]
    condition = reading.batch.decoder_condition
    weights = reading.at_query(reading.batch.trace.attention[reading.site.key].detach())
    draws = reading.adapter.capabilities.draws
    by_draw = [_states_and_masked_states(reading, draw) for draw in range(draws)]
    step = max(1, most // (2 * keep.shape[1] * reading.site.heads))
    with torch.no_grad():
        for row in sorted(set(rows.tolist())):
            for chunk in torch.split((rows == row).nonzero()[:, 0], step):
                kept = tokens[chunk][:, None]
                both = torch.cat([weights[row] * kept, weights[row] * ~kept], dim=-1)[None]  # (1, V, H, 2T)
                of_row = None if condition is None else condition[row : row + 1]
                drawn = []
                for states in by_draw:
                    reading.batch.count("decode", "reweighted_rows", len(chunk))
                    logits = protocol.decode_logits(reading.adapter, states[row : row + 1], both, of_row)[0].double()
                    refuse_not_finite(logits, reading.instances, ERASED, rows=rows[chunk])
                    drawn.append(logits)
                output[chunk] = mean_over_draws(drawn)
    return output


def _states_and_masked_states(reading: AttentionReading, draw: int) -> Tensor:
    """Return the states of the tokens, followed by their states if all units are masked, (B, 2T, m).

    They are computed once per batch, reading and draw (see `DrawingAdapter`).
    """
    name = f"masked states {draw}"
    known = reading.memo.get(name)
    reading.use(name)
    if known is None:
        everything = torch.arange(len(reading.instances), device=reading.device)
        with torch.no_grad(), reading.sharing(name):
            reading.batch.count_forward(len(reading.instances))
            masked = substituted(reading.adapter, reading.inputs, TEXT, everything, reading.batch.real_tokens, draw)
            states = reading.adapter.run(masked, hidden=True).hidden[reading.site.key]
        known = reading.memo[name] = torch.cat([reading.hidden.detach(), states], dim=1)
    assert isinstance(known, Tensor)
    return known
