"""Decoders that give the logits of the target: of all classes, of one of several labels, or of a score.

Shapes: C outputs, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.pooled.part_options import require_class_names
from attnaudit.errors import AdapterError, nearest
from attnaudit.targets import PAGE, Target


def decoder_of(target: Target, decoder: Callable[..., Tensor], outputs: Sequence[str]) -> Callable[..., Tensor]:
    """Turn a decoder that returns all outputs of a model into a decoder that returns the logits of a target.

    If the target is a class, the decoder is returned unchanged. Otherwise, the result returns a single logit. If the
    given decoder is an `nn.Linear`, so is the result. Both then share their weights: if the weights of the given
    decoder change, so do those of the result.

    Args:
        target: The target. Its kind is "class", "label" or "score".
        decoder: Function that returns the outputs (..., C), for example for a context (..., m).
        outputs: The names of the C outputs.

    Raises:
        AdapterError: The target is of another kind, the model has no output of this name, there are too few names, two
            names are equal, or the names are a single string.
    """
    require_class_names(outputs)
    fewest = 2 if target.kind == "class" else 1
    if len(outputs) < fewest or len(set(outputs)) != len(outputs):
        expected = "at least two different class names" if fewest == 2 else "different names"
        raise AdapterError(f"classes={list(outputs)}: expected {expected}.")
    if target.kind == "class":
        return decoder
    if target.kind not in ("label", "score"):
        raise AdapterError(
            f"target: a model with pooled attention has no target of kind '{target.kind}'. Expected 'class', 'label' "
            f"or 'score'. See {PAGE}."
        )
    if target.kind == "score" and not target.name and len(outputs) == 1:
        index = 0
    elif target.name in outputs:
        index = list(outputs).index(target.name)
    else:
        raise AdapterError(
            f"target: the model has no output '{target.name}'. Give the names of all of its outputs as classes. "
            f"{nearest(target.name, outputs)}"
        )
    if isinstance(decoder, nn.Linear):
        return OneLogitLinear(decoder, index, target)

    def one_logit(*given: Any) -> Tensor:
        return _logit(decoder(*given)[..., index : index + 1], target)

    return one_logit


class OneLogitLinear(nn.Linear):
    """A linear layer that returns the logit of one output of another linear layer.

    Attributes:
        whole: The other layer.
        index: The index of the output.
        target: The target.
    """

    def __init__(self, whole: nn.Linear, index: int, target: Target) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = whole.in_features, 1
        self.whole, self.index, self.target = whole, index, target

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(1, m) weight."""
        return self.whole.weight[self.index : self.index + 1] / (self.target.scale or 1.0)

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """(1,) bias."""
        own = self.whole.bias
        bias = self.whole.weight.new_zeros(1) if own is None else own[self.index : self.index + 1]
        return _logit(bias, self.target)


def _logit(output: Tensor, target: Target) -> Tensor:
    """Return the logit of an output: the label's own, or (score - threshold) / scale."""
    return (output - (target.threshold or 0.0)) / (target.scale or 1.0)
