"""Compare the audited logits with those of the original model, which has its own attention kernel and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall
from attnaudit.adapters.huggingface.attention.recorder import FunctionObserver, observing
from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import first_line
from attnaudit.adapters.huggingface.half_precision import in_float32, name_of_type
from attnaudit.adapters.huggingface.outputs.read_tokens import read_positions
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.passes.unpadded import UnpaddedRunner
from attnaudit.adapters.protocol import Inputs, Site, Trace
from attnaudit.adapters.site_selection import at_query
from attnaudit.errors import AdapterError
from attnaudit.formatting import plural
from attnaudit.precision import tolerance

#: Largest difference in logits that rounding explains, if the absolute logits are at most 1. For larger logits, it is
#: multiplied by the largest absolute logit.
TOLERANCE = 1e-4
#: The attention kernel that PyTorch compiles when it runs for the first time.
FLEX = "flex_attention"
#: How error messages say that a float32 copy may be audited instead.
AS_FLOAT32 = (
    'To audit a float32 copy instead, write precision = "float32" to attnaudit.toml in the checkpoint folder, or pass '
    "precision='float32' to transformer()."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalModel:
    """A model before it was prepared for the audit: its kernel, its precision, and a function that loads it.

    Attributes:
        implementation: Name of its attention kernel.
        dtype: Data type of its weights.
        load: (data type, kernel) -> the model, loaded from its folder or copied from the model in memory. The kernel is
            ignored for a model in memory. None for a float32 model in memory, which is audited without a copy.
        note: A remark for reports; "" if there is none.
    """

    implementation: str
    dtype: torch.dtype
    load: Callable[[torch.dtype, str], Any] | None = None
    note: str = ""


def compare_with_original(runner: Runner, original: OriginalModel, inputs: Inputs, *, converted: bool = True) -> str:
    """Describe how far the audited logits of a batch are from those of the original model.

    The original model is compared in float32, with its own kernel. If a float32 copy of a model with another precision
    is audited, the result also describes how much this precision changes the logits. Such a change is never an error.

    Args:
        runner: Runs the audited model, which must compute in float32.
        original: The original model.
        inputs: The batch.
        converted: Whether the audit measures the model in float32.

    Raises:
        AdapterError: In float32, the logits differ by more than rounding explains.
    """
    trace = runner.run(inputs)
    audited = trace.logits.float()
    expected, original = _original_kernel_logits(runner, original, inputs)
    difference = float((audited - expected).abs().max())
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    if not difference <= limit:
        raise AdapterError(
            f"The logits differ by {difference:.2g} from those of the model's own {original.implementation} kernel; "
            f"expected at most {limit:.2g}. The audit would measure a different model from the one in use. Please "
            f"report this architecture, {runner.name}, to the maintainers of attnaudit."
        )
    clauses = [
        f"with the original model's {original.implementation} kernel, the logits differ by at most {difference:.1e} "
        "from the audited ones"
    ]
    if original.note:
        clauses.append(original.note)
    if converted and original.dtype not in (torch.float32, torch.float64):
        clauses.append(_describe_precision(runner, original, inputs, trace))
    return "; ".join(clauses)


def _original_kernel_logits(runner: Runner, original: OriginalModel, inputs: Inputs) -> tuple[Tensor, OriginalModel]:
    """Compute the logits (B, C) in float32 with the model's own kernel.

    If PyTorch cannot compile the kernel on this machine, the kernel that Transformers would choose is used instead.

    Returns:
        The logits, and `original` with the kernel that computed them.
    """
    try:
        return _logits_with(runner, original, inputs), original
    except RuntimeError as error:
        if original.implementation != FLEX or isinstance(error, torch.OutOfMemoryError):
            raise
        note = f"{FLEX}, the model's own kernel, was not compared: it did not run here ({first_line(error)})"
        other = attention_interface.default_implementation(runner.model)
        original = replace(original, implementation=other, note="; ".join(filter(None, (original.note, note))))
        return _logits_with(runner, original, inputs), original


def _logits_with(runner: Runner, original: OriginalModel, inputs: Inputs) -> Tensor:
    """Compute the logits (B, C) in float32 with the kernel of `original`."""
    model = runner.model
    if attention_interface.current_implementation(model) == original.implementation:
        return _logits(runner, model, inputs)
    if attention_interface.uses_interface(model):
        with attention_interface.temporary_implementation(model, original.implementation):
            return _logits(runner, model, inputs)
    if original.load is None:
        return _logits(runner, model, inputs)
    reloaded = original.load(torch.float32, original.implementation)
    return _logits(runner, reloaded.to(runner.builder.device).eval(), inputs)


def compare_with_float32(runner: Runner, original: OriginalModel, inputs: Inputs) -> str:
    """Compare the results of a model in half precision with those of eager attention and those in float32.

    The logits of the audited passes are compared with those of the model's own kernel, and with the logits in float32.
    The attention weights of some rows (see `QueryComparison`) are compared with the weights that the architecture's own
    function gives in half precision, and with the weights in float32.

    Raises:
        AdapterError: The logits differ from those of the model's own kernel by more than rounding explains.
    """
    dtype = name_of_type(original.dtype)
    with in_float32(runner.model):
        wide = runner.run(inputs)
    logits = runner.run(inputs).logits
    own, original = _original_kernel_logits(runner, original, inputs)
    difference = float((logits - own).abs().max())
    limit = tolerance(dtype) * max(1.0, float(own.abs().max()))
    if not difference <= limit:
        raise AdapterError(
            f"In {dtype}, the logits differ by {difference:.2g} from those of the model's own "
            f"{original.implementation} kernel; expected at most {limit:.2g}. {AS_FLOAT32}"
        )
    rows = QueryComparison(runner.layout.sites, inputs, wide)
    for part in rows.parts(runner):
        runner.logits(part, rows)
    return (
        f"with the model's own {original.implementation} kernel, the logits differ by at most {difference:.2g} from "
        f"the audited ones; {_differences('float32', logits, wide.logits, rows)}"
    )


def _describe_precision(runner: Runner, original: OriginalModel, inputs: Inputs, audited: Trace) -> str:
    """Describe how far the logits and the weights of the model in its own precision are from the audited ones."""
    dtype = name_of_type(original.dtype)
    converted = f"the type of the weights is {dtype}, but the model is audited in float32"
    if original.load is None:
        return converted
    rows = None
    try:
        model = original.load(original.dtype, original.implementation).to(runner.builder.device).eval()
        logits = _logits(runner, model, inputs)
        if runner.kernel.calls_attention_function:
            rows = _compare_weights(runner, model, inputs, audited)
    except RuntimeError as error:
        return f"{converted}; the model could not be run in {dtype} on this machine ({error})"
    return f"{converted}; {_differences(dtype, logits, audited.logits.float(), rows)}"


def _differences(dtype: str, logits: Tensor, audited: Tensor, rows: QueryComparison | None) -> str:
    """Describe how far the results of a model in another precision are from the audited ones.

    Args:
        dtype: The other precision.
        logits: The logits (B, C) in one of the two precisions.
        audited: The logits (B, C) in the other one.
        rows: The compared attention weights; None if they were not compared.
    """
    changed = int((_predicted(logits) != _predicted(audited)).sum())
    weights = recomputed = ""
    if rows is not None:
        weights = f"the attention weights by at most {rows.from_audited:.2g}, "
        recomputed = (
            "; the attention rows that the audit recomputes differ from those of eager attention by at most "
            f"{rows.from_eager:.2g}"
        )
    return (
        f"in {dtype}, the logits differ by at most {float((logits - audited).abs().max()):.2g}, {weights}and {changed} "
        f"of {plural(len(logits), 'prediction')} {'differs' if changed == 1 else 'differ'}, so "
        f"{'any verdict' if changed else 'a verdict near its threshold'} could be different{recomputed}"
    )


def _predicted(logits: Tensor) -> Tensor:
    """Return the index (B,) of the predicted class, given logits (B, C). One logit is that of class 1."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def _compare_weights(runner: Runner, model: Any, inputs: Inputs, audited: Trace) -> QueryComparison:
    """Compare the attention weights of the model in its own precision with the audited weights.

    The weights of the first and the last query of each text are compared, at every site. The architecture's own
    function computes them twice: for these queries alone, and for all queries.
    """
    comparison = QueryComparison(runner.layout.sites, inputs, audited)
    with attention_interface.temporary_implementation(model, attention_interface.NAME), observing(comparison):
        for part in comparison.parts(runner):
            _logits(runner, model, part)
    return comparison


class QueryComparison(FunctionObserver):
    """An observer that compares the weights of the first and the last query at every site with audited weights.

    It observes the passes over the batches that `parts` yields.

    Attributes:
        from_audited: Largest difference from the audited weights, at the keys to which the query may attend.
        from_eager: Largest difference from the weights that the architecture's own function gives for all queries, in
            the precision of the model.
    """

    def __init__(self, sites: Sequence[Site], inputs: Inputs, audited: Trace) -> None:
        self.inputs, self.audited = inputs, audited
        self.from_audited = self.from_eager = 0.0
        self._sites = sites
        self._next = iter(sites)
        self._rows = torch.arange(len(audited.logits), device=audited.logits.device)
        self._latest: FunctionCall | None = None

    def parts(self, runner: Runner) -> Iterator[Inputs]:
        """Yield the batch, or its groups of rows of equal length if the model runs without padding."""
        if not isinstance(runner, UnpaddedRunner):
            yield self.inputs
            return
        for group in runner.groups(self.inputs):
            self._next, self._rows = iter(self._sites), group.rows
            yield group.inputs

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        output, whole = call.unchanged()
        is_same_site, self._latest = call.continues(self._latest), call
        if is_same_site:  # the weights have been compared
            return output, whole
        site = next(self._next)
        mask = self.inputs.mask[str(site.query)]
        ends = torch.stack([read_positions(mask, "first"), read_positions(mask, "last")], dim=1)
        _, selected = call.at(ends[self._rows]).eager()
        for r, positions in enumerate(ends.T):
            eager = at_query(self.audited, whole, site.key, positions[self._rows]).float()
            expected, allowed = (
                at_query(self.audited, values, site.key, positions)[self._rows, :, : eager.shape[-1]].float()
                for values in (self.audited.attention[site.key], self.audited.allowed[site.key])
            )
            found = selected[:, :, r].float()
            self.from_eager = max(self.from_eager, float(((found - eager) * allowed).abs().max()))
            self.from_audited = max(self.from_audited, float(((found - expected) * allowed).abs().max()))
        return output, whole


def _logits(runner: Runner, model: Any, inputs: Inputs) -> Tensor:
    return runner.logits_of_model(model, inputs).float()
