"""Output heads of targets: a label, a score, a tag, a span, and a string.

Each reduces the output of a model to the logits of a target (see `attnaudit.targets`). The logit of a probability p is
its log-odds, log p - log(1 - p), so that the sigmoid of the logit is p.

Shapes: B rows, T tokens, C classes, P positions, V ids of the vocabulary, d features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.adapters.huggingface.outputs.target_marks import END, START
from attnaudit.adapters.huggingface.wrapped_models import logits_of, name_of
from attnaudit.errors import AdapterError
from attnaudit.targets import Target

#: Keys of `Inputs.extra`: the marks (B, T) of the tokens of the target (see `target_marks`), and the ids plus 1
#: (B, 1, P) of the answer that the decoder of a model writes, one for each token of the decoder that predicts a token
#: of the answer, and zeros for all others.
MARKS, WRITTEN = "target_marks", "target_written"
#: Longest span that is taken as the model's prediction, in tokens.
LONGEST_SPAN = 30
LN2 = 0.6931471805599453

Extra = Mapping[str, Tensor]


class OneLogitHead:
    """The head of one label of a multi-label model, or of a score.

    The logit of a label is the model's own logit. The logit of a score is (score - threshold) / scale.

    Attributes:
        target: The label or the score.
        names: The names of all outputs of the model.
        index: The index of the output that is explained.
        classes: Class names in the order of the logits.
    """

    def __init__(self, target: Target, names: Sequence[str], index: int) -> None:
        self.target, self.names, self.index = target, tuple(names), index
        self.classes = target.classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Extra) -> Tensor:
        outputs = logits_of(model(**arguments), len(self.names), name_of(model))
        chosen = outputs[:, self.index : self.index + 1]
        return (chosen - (self.target.threshold or 0.0)) / (self.target.scale or 1.0)


class TagHead:
    """The head of the tag of one word. The logits are those of the word's first token.

    Attributes:
        target: The tag.
        classes: The names of the tags.
    """

    def __init__(self, target: Target, classes: tuple[str, ...]) -> None:
        self.target, self.classes = target, classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Extra) -> Tensor:
        logits = of_every_token(model(**arguments), "logits", model)
        positions = _marked(extra[MARKS] > 0, "the tagged word")
        return logits[torch.arange(len(logits), device=logits.device), positions]

    def located(self, model: Any, arguments: Mapping[str, Any], marks: Tensor, candidates: Tensor) -> Tensor:
        """Complete the marks (B, T): mark the word with the most probable entity tag.

        An entity tag is any tag except the tag of words outside all entities. Only rows without a mark are changed.
        `candidates` (B, T) is True at the first tokens of the words.
        """
        probabilities = torch.softmax(of_every_token(model(**arguments), "logits", model).double(), -1)
        inside = [n for n, name in enumerate(self.classes) if name != self.target.outside]
        best = probabilities[..., inside].amax(-1).masked_fill(~candidates, -1.0).argmax(1)
        without = ~(marks > 0).any(1)
        return marks.index_put((without.nonzero()[:, 0], best[without]), marks.new_ones(1))


class SpanHead:
    """The head of a span. Its logit is the log-odds of p(start) · p(end).

    p(start) and p(end) are the probabilities of the first and the last token of the span. They are given by the softmax
    over all tokens of a row, as in training.

    Attributes:
        target: The span.
        classes: Class names in the order of the logits.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.classes = target, target.classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Extra) -> Tensor:
        output, marks = model(**arguments), extra[MARKS]
        odds = []
        for name, mark in (("start_logits", START), ("end_logits", END)):
            logits = of_every_token(output, name, model)
            position = _marked((marks & mark) > 0, "an end of the span")
            odds.append(_log_odds(logits.masked_fill(~mask, -torch.inf), position))
        both = torch.stack(odds, dim=1)
        return log_odds_of_all(both, torch.ones_like(both, dtype=torch.bool)).to(logits.dtype)

    def located(self, model: Any, arguments: Mapping[str, Any], marks: Tensor, candidates: Tensor) -> Tensor:
        """Complete the marks (B, T): mark the most probable span of at most `LONGEST_SPAN` tokens.

        Only rows without a mark are changed. `candidates` (B, T) is True at the tokens of the text.
        """
        output = model(**arguments)
        start, end = (
            of_every_token(output, name, model).double().masked_fill(~candidates, -torch.inf)
            for name in ("start_logits", "end_logits")
        )
        width = start.shape[1]
        within = torch.ones((width, width), dtype=torch.bool, device=start.device).triu().tril(LONGEST_SPAN - 1)
        both = (start[:, :, None] + end[:, None, :]).masked_fill(~within, -torch.inf).flatten(1).argmax(1)
        completed = marks.clone()
        for row in (~(marks > 0).any(1)).nonzero()[:, 0].tolist():
            completed[row, int(both[row]) // width] += START
            completed[row, int(both[row]) % width] += END
        return completed


class StringHead:
    """The head of a string under a language model. Its logit is the log-odds of the string's probability.

    The probability is the product of the probabilities of the string's tokens. In a causal or encoder-decoder model,
    each token is predicted from the text and the earlier tokens of the string (teacher forcing). In a masked model,
    every token is predicted from the text, with all tokens of the string masked.

    Attributes:
        target: The string.
        task: "causal", "encoder-decoder" or "masked".
        classes: Class names in the order of the logits.
    """

    def __init__(self, target: Target, task: str) -> None:
        self.target, self.task, self.classes = target, task, target.classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Extra) -> Tensor:
        if self.task == "encoder-decoder":
            ids = extra[WRITTEN][:, 0, : mask.shape[1]]
            # The mask is that of the decoder's tokens. One token of the string is predicted from each of them.
            positions = mask.int().argmax(1)[:, None] + torch.arange(ids.shape[1], device=ids.device)
            positions = positions.clamp_max(mask.shape[1] - 1)
        else:
            marks = extra[MARKS]
            count = int((marks > 0).sum(1).max())
            positions = (marks <= 0).to(torch.uint8).sort(dim=1, stable=True).indices[:, :count]
            ids = marks.gather(1, positions)
            # A causal model predicts a token from the state before it.
            positions = positions - 1 if self.task == "causal" else positions
        vocabulary = _vocabulary_logits(model, arguments, positions.clamp_min(0))
        odds = _log_odds(vocabulary.flatten(0, 1), (ids - 1).clamp_min(0).flatten()).view_as(ids)
        return log_odds_of_all(odds, ids > 0).to(vocabulary.dtype)


def queries_of(marks: Tensor, task: str) -> Tensor:
    """Return a mask (B, T), given marks (B, T). It is True on the tokens from whose states the target is computed."""
    marked = marks > 0
    if task != "causal":
        return marked
    return torch.cat([marked[:, 1:], torch.zeros_like(marked[:, :1])], dim=1)


def log_odds_of_all(odds: Tensor, chosen: Tensor) -> Tensor:
    """Return the log-odds (B, 1) of a product of probabilities, which are given by their log-odds (B, P).

    Args:
        odds: (B, P) log-odds, float64.
        chosen: (B, P) True at the probabilities that are multiplied.
    """
    log_p = torch.where(chosen, -nn.functional.softplus(-odds), 0.0).sum(1, keepdim=True)
    # log(1 - p) loses all digits in one of the two forms if p is close to 0 or to 1.
    near_one = log_p > -LN2
    log_not = torch.where(
        near_one, (-torch.expm1(log_p.clamp_min(-LN2))).log(), torch.log1p(-log_p.clamp_max(-LN2).exp())
    )
    return log_p - log_not


def _log_odds(logits: Tensor, index: Tensor) -> Tensor:
    """Return the log-odds (B,) of one entry under the softmax of logits (B, N), float64."""
    wide = logits.double()
    own = wide.gather(1, index[:, None])
    others = wide.scatter(1, index[:, None], -torch.inf)
    return own[:, 0] - others.logsumexp(1)


def _marked(marks: Tensor, what: str) -> Tensor:
    """Return the first position (B,) that is True in marks (B, T).

    Raises:
        AdapterError: A row has no such position.
    """
    if not bool(marks.any(1).all()):
        raise AdapterError(
            f"{what} was deleted, but the target is computed from it. Mask tokens instead of deleting them."
        )
    return marks.int().argmax(1)


def of_every_token(output: Any, name: str, model: Any) -> Tensor:
    """Return the output that a model computes for every token: one number, or one row of numbers, per token.

    A custom module may return the logits (B, T, C) of tags or of the vocabulary as a tensor or in a dictionary, and
    those of spans as a pair (start, end) of tensors (B, T).

    Raises:
        AdapterError: The model has no such output.
    """
    values = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    if name == "logits" and isinstance(output, Tensor):
        values = output
    if name != "logits" and type(output) in (tuple, list) and len(output) == 2:
        values = output[name == "end_logits"]
    if not isinstance(values, Tensor):
        raise AdapterError(
            f"{name_of(model)} returns no {name}, so its target cannot be audited. For a custom module, pass a "
            "function as the argument logits. For tags, and for the next token of a language model, it must return "
            "logits of shape (B, T, C); for spans, a pair (start, end) of logits of shape (B, T)."
        )
    return widened(values)


def _vocabulary_logits(model: Any, arguments: Mapping[str, Any], positions: Tensor) -> Tensor:
    """Return the logits (B, P, V) over the vocabulary at some positions (B, P)."""

    def keep(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_at(args[0], positions), *args[1:])

    output_layer = model.get_output_embeddings()
    # The logits over the vocabulary at all positions might not fit in memory.
    with temporary_hooks([] if output_layer is None else [output_layer.register_forward_pre_hook(keep)]):
        logits = of_every_token(model(**arguments), "logits", model)
    return _at(logits, positions) if output_layer is None else logits


def _at(values: Tensor, positions: Tensor) -> Tensor:
    return values.gather(1, positions[:, :, None].to(values.device).expand(-1, -1, values.shape[2]))
