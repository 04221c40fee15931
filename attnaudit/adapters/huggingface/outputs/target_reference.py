"""The logits of a target, computed from the raw output of a model, one row and one token at a time.

Conformance compares them with the logits of an audit. Nothing here is shared with the computation in `target_heads`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.layout import DECODER
from attnaudit.adapters.huggingface.outputs.target_heads import MARKS, WRITTEN, OneLogitHead, of_every_token
from attnaudit.adapters.huggingface.outputs.target_marks import END, START
from attnaudit.adapters.huggingface.wrapped_models import logits_of, name_of
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.targets import Target


def reference_logits(model: Any, head: Any, arguments: Mapping[str, Any], inputs: Inputs, task: str) -> Tensor:
    """Return the logits (1, C) of a target for one row without padding.

    Args:
        model: A Transformers model.
        head: Its output head, which names the output that is explained.
        arguments: The arguments of the model's forward() for the row.
        inputs: The batch with this row.
        task: The task of the model (see `checkpoint_files.task_of`).
    """
    target: Target = head.target
    if isinstance(head, OneLogitHead):
        output = float(logits_of(model(**arguments), len(head.names), name_of(model))[0, head.index])
        return torch.tensor([[(output - (target.threshold or 0.0)) / (target.scale or 1.0)]])
    if target.kind == "string":
        return torch.tensor([[_log_odds(_log_probability(model, arguments, inputs, task))]])
    marks = inputs.extra[MARKS][0].tolist()
    output = model(**arguments)
    if target.kind == "tag":
        return of_every_token(output, "logits", model)[:, marks.index(1)].float()
    total = 0.0
    for name, mark in (("start_logits", START), ("end_logits", END)):
        place = next(p for p, one in enumerate(marks) if one & mark)
        total += float(of_every_token(output, name, model)[0].double().log_softmax(0)[place])
    return torch.tensor([[_log_odds(total)]])


def _log_probability(model: Any, arguments: Mapping[str, Any], inputs: Inputs, task: str) -> float:
    """Return the log-probability of a row's answer: the sum over its tokens."""
    total = 0.0
    if task == "encoder-decoder":
        written = inputs.extra[WRITTEN][0, 0].tolist()
        first = next(place for place, one in enumerate(written) if one)
        decoder = inputs.ids[DECODER][0, : first + 1].tolist()
        for token in (one - 1 for one in written[first:]):
            given = {**arguments, "decoder_input_ids": torch.tensor([decoder], device=inputs.ids[TEXT].device)}
            given.pop("decoder_attention_mask", None)
            total += float(of_every_token(model(**given), "logits", model)[0, -1].double().log_softmax(0)[token])
            decoder.append(token)
        return total
    marks = inputs.extra[MARKS][0].tolist()
    if task == "masked":
        table = of_every_token(model(**arguments), "logits", model)[0].double().log_softmax(-1)
        return sum(float(table[place, mark - 1]) for place, mark in enumerate(marks) if mark)
    for place, mark in enumerate(marks):
        if mark:  # the model reads only the tokens before this one
            given = {
                name: value[:, :place] if isinstance(value, Tensor) and value.shape[:2] == (1, len(marks)) else value
                for name, value in arguments.items()
            }
            total += float(of_every_token(model(**given), "logits", model)[0, -1].double().log_softmax(0)[mark - 1])
    return total


def _log_odds(log_p: float) -> float:
    return log_p - (math.log(-math.expm1(log_p)) if log_p < 0 else -math.inf)
