"""Padded tensors that are joined from several passes, and gradients with respect to them.

Shapes: B rows, n rows of one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinedRows:
    """A padded tensor whose rows come from several passes.

    Attributes:
        whole: (B, ...) the joined tensor.
        parts: One tensor (n, ...) per pass: its rows, without the padding of `whole`.
        order: (B,) for each row of `whole`, its index among the rows of all parts.
    """

    whole: Tensor
    parts: Sequence[Tensor]
    order: Tensor


def joined(parts: Sequence[Tensor], order: Tensor, shape: Sequence[int]) -> JoinedRows:
    """Join the rows of several passes. Each part is padded with zeros at the end of its axes.

    Args:
        parts: One tensor (n, ...) per pass.
        order: As in `JoinedRows`.
        shape: The sizes of all axes of the joined tensor except that of the rows.
    """
    padded = []
    for part in parts:
        missing = [whole - size for whole, size in zip(shape, part.shape[1:], strict=True)]
        padded.append(nn.functional.pad(part, [side for one in reversed(missing) for side in (0, one)]))
    rows = torch.cat(padded)
    return JoinedRows(whole=rows[order.to(rows.device)], parts=tuple(parts), order=order)


def gradients(
    output: Tensor, at: Sequence[Tensor], rows: Sequence[JoinedRows] = (), *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of a number with respect to tensors, some of which are joined from several passes.

    A pass computes its output from its own part of a joined tensor. The gradient with respect to the joined tensor
    therefore consists of those with respect to its parts.

    Args:
        output: The number.
        at: The tensors.
        rows: The joined tensors. An entry counts for a tensor in `at` only if this is its `whole`.
        retain_graph: As in `torch.autograd.grad`.

    Returns:
        One gradient per tensor; None if the number does not depend on it.
    """
    by_id = {id(one.whole): one for one in rows}
    parts = [by_id[id(one)].parts if id(one) in by_id else (one,) for one in at]
    leaves = [leaf for one in parts for leaf in one]
    found = iter(torch.autograd.grad(output, leaves, retain_graph=retain_graph, allow_unused=True))
    result: list[Tensor | None] = []
    for tensor, its_parts in zip(at, parts, strict=True):
        its_gradients = [next(found) for _ in its_parts]
        if id(tensor) in by_id and any(gradient is not None for gradient in its_gradients):
            complete = [
                torch.zeros_like(part) if gradient is None else gradient
                for part, gradient in zip(its_parts, its_gradients, strict=True)
            ]
            result.append(joined(complete, by_id[id(tensor)].order, tensor.shape[1:]).whole)
        else:
            result.append(its_gradients[0])
    return result
