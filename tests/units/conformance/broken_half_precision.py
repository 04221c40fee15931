"""Adapters with wrong results in half precision: for other batches, for attention, or in their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnaudit.adapters import Inputs, Trace
from attnaudit.errors import AdapterError
from tests.units.conformance.conformance_models import SmallTransformer


class InHalfPrecision(SmallTransformer):
    """Declares bfloat16, although it computes in float32. Subclasses change results outside `in_float32`."""

    def __init__(self, precision: str = "bfloat16") -> None:
        super().__init__(precision=precision)
        self.wide = 0

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        self.wide += 1
        yield
        self.wide -= 1

    def compare_with_float32(self, inputs: Inputs) -> str:
        return "the model is float32"

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return trace if self.wide else self.changed(trace)

    def changed(self, trace: Trace) -> Trace:
        return trace


class DependsOnTheBatchInHalfPrecision(InHalfPrecision):
    def changed(self, trace: Trace) -> Trace:
        return replace(trace, logits=trace.logits + 0.1 * len(trace.logits))


class AttendsElsewhereInHalfPrecision(InHalfPrecision):
    def changed(self, trace: Trace) -> Trace:
        alone = len(trace.logits) == 1
        return replace(trace, attention={key: w.flip(-1) if alone else w for key, w in trace.attention.items()})


class HasAnotherKernelInHalfPrecision(InHalfPrecision):
    def compare_with_float32(self, inputs: Inputs) -> str:
        raise AdapterError("In bfloat16, the logits differ by 0.3 from those of the model's own sdpa kernel.")


class DeclaresAnotherPrecision(InHalfPrecision):
    def __init__(self) -> None:
        super().__init__("float8")
