"""Optional parts of the adapter protocol: methods that an adapter may have in addition to those of `ModelAdapter`.

The capabilities of an adapter say which of these methods it has.

Shapes: B instances, T tokens of a stream (padded), H heads, K keys, P positions, V variants of the inputs or the
weights, C logits, m features of a hidden state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from attnaudit.adapters.protocol import Inputs, ModelAdapter, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention
from attnaudit.instances import Instance
from attnaudit.progress import ProgressCallback
from attnaudit.retraining import Retraining

#: How reports say that only the adapter was tested, and not whether it computes what the model computes.
NOT_COMPARED = "not compared with your model's own forward()"


class TransformerAdapter(ModelAdapter, Protocol):
    """Additional methods for adapters of models with many sites.

    An audit calls `replay` and `replay_cost` only if `capabilities.replays` is True, `resume` only if
    `capabilities.resumes` is True, and `value_vectors` only if `capabilities.value_vectors` is True.
    """

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """Compute the logits for V alternative sets of weights of one query at a site.

        The result must equal that of `run` with the weights of this query replaced. It must be differentiable in the
        weights. States computed before the site may be taken from the trace.

        Args:
            inputs: The batch.
            trace: The trace of `run(inputs, hidden=True)`.
            site: The site at which weights are replaced.
            queries: (B,) position of the query in each row.
            weights: (B, V, H, K) weights that replace those of the query.

        Returns:
            (B, V, C) logits.
        """
        ...

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        """Return the number of tokens that `replay` runs per alternative. An audit uses it to choose a batch size."""
        ...

    def resume(
        self,
        inputs: Inputs,
        trace: Trace,
        site: Site,
        variants: int,
        intervene: BlockIntervention,
        *,
        blocks: Collection[str] = (),
    ) -> Tensor:
        """Compute the logits of V copies of each row whose weights at a site are replaced.

        The result must equal that of `run` on the copies with the same intervention. States computed before the site
        may be taken from the trace.

        Args:
            inputs: The batch.
            trace: The trace of `run(inputs, hidden=True)`.
            site: The only site at which the intervention replaces weights.
            variants: V, the number of copies of each row. Row b becomes the rows from b·V to (b+1)·V - 1.
            intervene: Called with the weights of the copies. It must be called for the site, and returns None for all
                other sites.
            blocks: `(site.key,)` if the weights must be computed in blocks of queries, as in `BlockAdapter.run`;
                otherwise empty.

        Returns:
            (B·V, C) logits.
        """
        ...

    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        """Return the value vectors (B, H, K, m), each multiplied by the output projection of its head.

        Args:
            trace: A trace of `run` with `hidden`.
            site: The site.
            keys: The positions of the keys; by default, all. The vectors of long texts are computed in parts.
        """
        ...


class SharingAdapter(ModelAdapter, Protocol):
    """Additional methods for adapters that can reuse hidden states of the whole input when tokens are removed.

    This is possible for recurrent and local encoders, for causal Transformers, and for bags of vectors. The capability
    `shares_states` requires `share`, `variant_cost` and `logits_without`. The capability `shares_masked` requires
    `share`, `variant_cost` and `logits_masked`. The capability `single_masks` requires these three and
    `logits_with_single_masks`. The capability `influences` requires `share` and `influence`.
    """

    def share(self, inputs: Inputs) -> object:
        """Run a batch once, without gradients.

        Return the states that the other methods of this class reuse. An audit only passes them to these methods.
        """
        ...

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the cost of computing each variant with `logits_without` or `logits_masked`.

        An audit uses this cost to choose its batch size.

        Args:
            inputs: The batch.
            shared: The result of `share(inputs)`.
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps.

        Returns:
            (V,) number of tokens that an ordinary pass processes at the same cost.
        """
        ...

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """Compute the logits of inputs with some tokens removed.

        Args:
            inputs: The batch.
            shared: The result of `share(inputs)`.
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps.

        Returns:
            (V, C) logits, equal to those of `run` on `keep(inputs, TEXT, rows, keep)`.
        """
        ...

    def logits_masked(
        self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Compute the logits of inputs with some tokens replaced by the mask token.

        Args:
            inputs: The batch.
            shared: The result of `share(inputs)`.
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps, among them all special tokens. A variant may mask
                all other tokens.
            weights: (V, H, T) attention weights that replace those of the model at its only site; None for no
                replacement.

        Returns:
            (V, C) logits, equal to those of `run` on `substitute(inputs, TEXT, rows, mask & ~keep)`, where `mask`
            (V, T) is True at all tokens of these rows.
        """
        ...

    def logits_with_single_masks(
        self, inputs: Inputs, shared: object, row: int, units: Tensor, *, alone: bool, held: bool
    ) -> Tensor:
        """Compute the logits of a long input in which either one token or all tokens except one are masked.

        The time should not grow with the square of the number of tokens.

        Args:
            inputs: The batch.
            shared: The result of `share(inputs)`.
            row: The row that all variants are made from.
            units: (V,) the position of one token for each variant.
            alone: Whether all tokens except this one are masked. If not, only this one is masked.
            held: Whether the attention weights stay those of the whole input. If not, they are computed again.

        Returns:
            (V, C) logits.
        """
        ...

    def influence(self, inputs: Inputs, shared: object, positions: slice) -> Tensor:
        """Compute how much the hidden states at P positions depend on each token.

        Args:
            inputs: The batch.
            shared: The result of `share(inputs)`.
            positions: The P positions p whose hidden states are examined.

        Returns:
            (B, P, T) Euclidean norms ‖∂‖h_p‖/∂E_i‖, where h_p is the hidden state at position p and E_i is the
            embedding of token i. Zero where p or i is padding.
        """
        ...


class DrawingAdapter(ModelAdapter, Protocol):
    """Additional method for adapters that replace masked units by random ones, such as units of other rows."""

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        """Return the same as `substitute`, but with other random replacements.

        The replacement of a unit may depend only on the row, the unit and the draw. It must not depend on the other
        rows of the batch or on the other replaced units. `substitute` returns draw 0.

        Args:
            inputs: The batch.
            stream: The stream whose tokens are replaced.
            rows: (V,) index of the row that each copy is made from.
            replaced: (V, T) True at the positions to replace.
            draw: Number of the draw, from 0 to `capabilities.draws` - 1.
        """
        ...


def substituted(
    adapter: ModelAdapter, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int
) -> Inputs:
    """Replace tokens by those of a draw (see `DrawingAdapter`). If the adapter draws nothing, `draw` must be 0."""
    if draw == 0:
        return adapter.substitute(inputs, stream, rows, replaced)
    return cast(DrawingAdapter, adapter).substitute_draw(inputs, stream, rows, replaced, draw)


class RetrainableAdapter(ModelAdapter, Protocol):
    """Additional method for adapters that declare the capability `retrains`."""

    def retrain(self, retraining: Retraining, progress: ProgressCallback | None = None) -> ModelAdapter:
        """Train another copy of the model.

        The method must neither change the audited model nor write files. It must return the same copy whenever it is
        called with the same `retraining`. Several checks and data sets may request the same copy, so keep copies in
        memory.

        Args:
            retraining: Which copy to train.
            progress: Called after every training step; None to report no progress.

        Returns:
            An adapter in evaluation mode. It has the same classes, tokens and sites as this one.

        Raises:
            AuditError: The adapter cannot train this copy. The message must say in one sentence how to fix this.
        """
        ...


@runtime_checkable
class FastPassAdapter(Protocol):
    """Additional method for adapters that have a faster way to compute a pass than to run all parts of the model."""

    def fast_passes(self) -> AbstractContextManager[None]:
        """Return a context manager inside which `run` may compute its result in the faster way.

        The results must be the same, up to rounding. An audit uses it for the first pass over the texts. Rows that run
        a second time run outside it, and the results are compared.
        """
        ...


@runtime_checkable
class RowSelectingAdapter(Protocol):
    """Additional method for adapters that can select rows of a batch, so that texts need not be tokenised again."""

    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        """Return some rows of a batch. The result must equal that of `collate` for these instances.

        Args:
            inputs: The result of `collate`.
            rows: The indices of the rows, in any order.
        """
        ...


@runtime_checkable
class CpuEncodingAdapter(Protocol):
    """Additional members for adapters that can encode instances on the CPU, without the model.

    If the model runs on a GPU, the engine calls `encode_on_cpu` in another thread: it encodes the next instances while
    the model runs. Meanwhile the engine does not call `collate`, but a measure of the user may.
    """

    @property
    def encodes_on_cpu(self) -> bool:
        """Whether instances can be encoded without the model. If not, `encode_on_cpu` is not called."""
        ...

    @property
    def input_device(self) -> torch.device:
        """The device of the tensors that `collate` returns."""
        ...

    def encode_on_cpu(self, instances: Sequence[Instance]) -> Inputs:
        """Return the result of `collate`, but on the CPU. It must not use the model's parameters.

        Args:
            instances: The instances.

        Raises:
            DataError: As in `collate`.
        """
        ...


@runtime_checkable
class ConvertedModelAdapter(Protocol):
    """Additional method for adapters that can compare the audited model with the original one.

    The audited model may have another attention kernel or precision, or the adapter may have been built from the parts
    of the model.
    """

    def compare_with_original(self, inputs: Inputs) -> str:
        """Compare the logits of the audited model with those of the original model, on one batch.

        Return one sentence about the size of the difference. The method must not change the adapter.

        Raises:
            AdapterError: The logits differ by more than rounding explains.
        """
        ...


def not_compared(adapter: ModelAdapter) -> str:
    """Return a clause for reports if an adapter is not compared with the original model; "" if it is."""
    if isinstance(adapter, ConvertedModelAdapter):
        return ""
    fix = "pass original=... to the adapter" if hasattr(adapter, "original") else "write compare_with_original()"
    return f"{NOT_COMPARED} ({fix}; see docs/adapters.md)"


@runtime_checkable
class HalfPrecisionAdapter(Protocol):
    """Additional methods for adapters whose model is audited in half precision (`Capabilities.precision`)."""

    def in_float32(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the model computes in float32. Contexts may be nested.

        Conformance runs most checks inside it, so that they can tell mistakes from rounding. An audit measures some
        rows inside it, to find the effect of rounding. Inside the context, `capabilities.precision` is "float32". After
        the outermost context, the parameters and buffers must be the same tensors as before.
        """
        ...

    def compare_with_float32(self, inputs: Inputs) -> str:
        """Compare the results of a batch in half precision with those of eager attention, and with those in float32.

        Return one sentence about the sizes of the differences, and about the verdicts that could change because of
        them.

        Raises:
            AdapterError: In half precision, the logits differ from those of the model's own attention kernel by more
                than rounding explains.
        """
        ...


@runtime_checkable
class TargetAdapter(Protocol):
    """Additional method for adapters whose target is an output of the model other than its class."""

    def target_logits(self, instances: Sequence[Instance]) -> Tensor:
        """Return the logits (B, C) of the target, computed from the model's raw outputs for one instance at a time.

        Conformance compares them with the logits of `run`. If the target is the class, the method is not called.
        """
        ...


@runtime_checkable
class RepeatedAdapter(Protocol):
    """Additional method for adapters that attnaudit itself wraps around the user's model.

    The author of such a model has written no adapter, so advice about the methods of the adapter would not help.
    """

    def require_same_results(self) -> None:
        """Run the same texts many times. Conformance calls this method when a check fails, before it gives advice.

        Raises:
            AdapterError: The results of two runs differ.
        """
        ...
