"""Probe how padding changes the logits of a model, and how the rows of a batch must be padded.

Shapes: B rows, T tokens, C classes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attnaudit.adapters.huggingface.logit_comparison import TOLERANCE, close, largest_difference
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.texts.input_builder import padded_left, single_row
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import Trace
from attnaudit.errors import AdapterError


def needs_left_padding(runner: Runner) -> bool:
    """Return whether padding on the right changes the logits, but padding on the left does not.

    For a model with a decoder, the result is always False.
    """
    inputs = runner.builder.synthetic()
    with torch.no_grad():
        alone = runner.logits(single_row(inputs, 1))[0]
        if close(runner.logits(inputs)[1], alone) or runner.builder.decoder is not None:
            return False
        return close(runner.logits(padded_left(inputs))[1], alone)


def runs_without_padding(runner: Runner) -> bool:
    """Return whether the model must run without padding, because padding changes its logits.

    The result is always False for a custom module, which should not read padding, and for models that do not read
    texts.
    """
    if type(runner) is not Runner or not _is_from_transformers(runner):
        return False
    inputs = runner.builder.synthetic()
    with torch.no_grad():
        return not close(runner.logits(inputs)[1], runner.logits(single_row(inputs, 1))[0])


def require_independent_rows(runner: Runner) -> None:
    """Check that the logits of a text do not depend on another text of the same length in its batch.

    Raises:
        AdapterError: They do.
    """
    builder = runner.builder
    text = single_row(builder.synthetic(), 0)
    other = builder.perturbed(text, text.real()[0].nonzero()[:, 0].tolist())
    ids = {stream: torch.cat([text.ids[stream], other.ids[stream]]) for stream in text.ids}
    with torch.no_grad():
        together = runner.logits(replace(repeated(text, 2), ids=ids))
        alone = torch.cat([runner.logits(text), runner.logits(other)])
    if not close(together, alone):
        raise AdapterError(
            f"{runner.name}: another text of the same length in the batch changes the logits by "
            f"{largest_difference(together, alone):.2g}, so the result of an instance would depend on its batch. This "
            "architecture cannot be audited."
        )


def first_left_padded_position(runner: Runner, read_tokens: ReadTokens) -> int | None:
    """Find the first position id with which padding on the left gives the same logits as padding on the right.

    Returns:
        The position id. None if no position id gives the same logits, if the logits are read from the first token, if
        all inputs have the same length, or if the model runs without padding.
    """
    offset = runner.builder.position_offset
    if runner.builder.pads_left:
        return offset
    if read_tokens == "first" or not runner.builder.pads or runner.builder.unpadded:
        # With padding on the left, the first token of a row may be padding.
        return None
    inputs = runner.builder.synthetic()
    with torch.no_grad():
        expected = runner.logits(inputs)
        for first_position in dict.fromkeys((offset, 0)):
            candidate = runner.with_padding(pads_left=False, first_position=first_position)
            try:
                logits = candidate.logits(candidate.builder.with_decoder(padded_left(inputs)))
            except (RuntimeError, ValueError, IndexError):
                continue
            if close(logits, expected):
                return first_position
    return None


def how_padding_enters(runner: Runner, trace: Trace) -> str:
    """Return sentences that say how padding changes the logits of a custom model, and how to avoid it.

    The weights on padding are not recorded. If padding gets attention, the recorded weights of a query therefore sum to
    less than one.
    """
    if _is_from_transformers(runner):
        return "This architecture cannot be audited."
    for site in (call.site for call in runner.layout.calls):
        missing = (1 - trace.attention[site.key].sum(-1)) * trace.allowed[site.key].any(-1)
        if not site.sinks and float(missing.max()) > TOLERANCE:
            return (
                f"Attention at '{site.key}' reaches padding. Pass the attention mask to the Transformers model: "
                "encoder(input_ids, attention_mask=attention_mask)."
            )
    return (
        "Attention does not reach padding, so a later layer reads the states of padding. Leave these states out: for "
        "example, apply the attention mask before a mean over tokens, or use pack_padded_sequence() before an LSTM."
    )


def _is_from_transformers(runner: Runner) -> bool:
    """Return whether the forward() of the model is part of Transformers. A class derived from it may inherit it."""
    module: str = type(runner.model).forward.__module__
    return module.startswith("transformers.")
