"""Time the engine on a causal Transformer: a GPT-2 with the sizes of MiniLM.

In leave-one-out, the engine shares the states of prefixes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from attnaudit.instances import Dataset
from benchmarks.speed import device
from benchmarks.speed.minilm import LONGEST, MORE, MORE_LONG, SHORT, Rival, passes
from benchmarks.speed.pooled import audited, passes_of, rows_apart
from benchmarks.speed.subjects import MINILM, Subject, long_texts, minilm_as_it_ships, short_texts
from benchmarks.speed.timing import Comparison

NAME, DELETION = "causal, MiniLM size", "leave_one_out.inputs"


@cache
def causal_as_it_ships(max_position_embeddings: int = MINILM["max_position_embeddings"]) -> tuple[Any, Any]:
    """Return a GPT-2 with random weights and the sizes of MiniLM, and the tokenizer of `minilm_as_it_ships`."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    _, tokenizer = minilm_as_it_ships(max_position_embeddings=max_position_embeddings)
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=MINILM["hidden_size"],
        n_layer=MINILM["num_hidden_layers"],
        n_head=MINILM["num_attention_heads"],
        n_inner=MINILM["intermediate_size"],
        n_positions=max_position_embeddings,
        vocab_size=MINILM["vocab_size"],
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    model = GPT2ForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model.eval().requires_grad_(False), tokenizer


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of this module. If `quick` is True, they use fewer instances."""
    rival = Rival(causal_as_it_ships(), causal=True)
    short = short_texts(8 if quick else 64 * device.times(32))
    yield from passes(NAME, rival, subject(SHORT, short))
    yield _leave_one_out(rival, subject(SHORT, short_texts(3 if quick else 8 * device.times(4))))
    if not quick:
        yield from passes(NAME, rival, subject("n≈124", long_texts(8 * device.times(MORE))))
        yield _leave_one_out(rival, subject("n≈124", long_texts(device.times(4))))
        longer = Rival(causal_as_it_ships(LONGEST), causal=True)
        longest = long_texts(2 * device.times(MORE_LONG), 1024)
        yield from passes(NAME, longer, subject("n≈1,024", longest, LONGEST))


def subject(name: str, data: Dataset, positions: int = MINILM["max_position_embeddings"]) -> Subject:
    """Return a copy of the model of `causal_as_it_ships` behind an adapter.

    Args:
        name: The length of the texts, such as "n≈20".
        data: The instances.
        positions: The number of positions of the model.
    """
    from attnaudit.adapters.huggingface import transformer

    model, tokenizer = copy.deepcopy(causal_as_it_ships(positions))
    return Subject(name=name, adapter=transformer(model, tokenizer), model=model, data=data)


def _leave_one_out(rival: Rival, subject: Subject) -> Comparison:
    texts = rival.reader(subject)

    def theirs() -> Any:
        rival.passes.clear()
        return rival.leave_one_out(texts())

    return Comparison(
        name=f"{NAME}: leave-one-out by deletion, {subject.name}",
        rival="Transformers with sdpa, one by one",
        instances=len(subject.data.instances),
        ours=lambda: audited(subject, DELETION),
        theirs=theirs,
        difference=lambda ours, found: rows_apart(ours[0].vectors[f"{DELETION}.change"], found),
        tolerance=2e-5,
        our_passes=passes_of,
        their_passes=lambda: dict(rival.passes),
        target=2.0,
    )
