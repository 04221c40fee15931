"""Time leave-one-out on a causal Transformer, in which the engine shares the states of prefixes.

The model is a GPT-2 with the sizes of MiniLM.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from benchmarks.speed.minilm import Rival
from benchmarks.speed.pooled import audited, passes_of, rows_apart
from benchmarks.speed.subjects import MINILM, Subject, long_texts, minilm_as_it_ships, short_texts
from benchmarks.speed.timing import Comparison

DELETION = "leave_one_out.inputs"


@cache
def causal_as_it_ships(max_position_embeddings: int = MINILM["max_position_embeddings"]) -> tuple[Any, Any]:
    """Return a GPT-2 with random weights and the sizes of MiniLM, and the tokenizer of `minilm_as_it_ships`."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    _, tokenizer = minilm_as_it_ships()
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
    from attnaudit.adapters.huggingface import transformer

    rival = Rival(causal_as_it_ships())
    lengths = [("n≈20", short_texts(3 if quick else 8))] + ([] if quick else [("n≈124", long_texts(1))])
    for name, data in lengths:
        model, tokenizer = copy.deepcopy(causal_as_it_ships())
        yield _leave_one_out(rival, Subject(name=name, adapter=transformer(model, tokenizer), model=model, data=data))


def _leave_one_out(rival: Rival, subject: Subject) -> Comparison:
    texts = rival.encoded(subject)

    def theirs() -> Any:
        rival.passes.clear()
        return rival.leave_one_out(texts)

    return Comparison(
        name=f"causal, MiniLM size: leave-one-out by deletion, {subject.name}",
        rival="Transformers with sdpa, one by one",
        instances=len(texts),
        ours=lambda: audited(subject, DELETION),
        theirs=theirs,
        difference=lambda ours, found: rows_apart(ours[0].vectors[f"{DELETION}.change"], found),
        tolerance=2e-5,
        our_passes=passes_of,
        their_passes=lambda: dict(rival.passes),
    )
