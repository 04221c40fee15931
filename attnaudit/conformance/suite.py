"""The list of all conformance checks, and the cases that pytest and the command line run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from attnaudit.adapters.optional_methods import RepeatedAdapter
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.conformance.attention_sites import check_allowed, check_shapes, check_sites, check_sums
from attnaudit.conformance.batch_invariance import (
    check_batch_mates,
    check_evaluation_mode,
    check_left_padding,
    check_padding,
)
from attnaudit.conformance.contract import BrokenContractError, Check
from attnaudit.conformance.declarations import check_capabilities, check_modules, check_original_model, check_reading
from attnaudit.conformance.declared_target import check_target
from attnaudit.conformance.gradient_flow import (
    check_batched_gradients,
    check_embeddings,
    check_finite_differences,
    check_gradients,
    check_live_gradients,
)
from attnaudit.conformance.half_precision_results import check_half_precision
from attnaudit.conformance.partial_passes import check_replay, check_value_vectors
from attnaudit.conformance.prefix_states import ADVICE, check_influence, check_logits_masked, check_logits_without
from attnaudit.conformance.replaced_weights import (
    check_decode,
    check_each_site,
    check_intervention,
    check_self_replacement,
)
from attnaudit.conformance.sample_texts import Examples, default_instances, examples
from attnaudit.conformance.selected_sites import check_query_blocks, check_selected_queries, check_selected_sites
from attnaudit.conformance.special_tokens import check_query, check_special_tokens, check_words
from attnaudit.conformance.token_removal import check_deletion, check_repeated_deletion, check_substitution
from attnaudit.devices import full_precision
from attnaudit.errors import AdapterError, AuditError, CheckError, DataError, nearest, raised_at
from attnaudit.instances import Instance
from attnaudit.records import ConformanceResult, UnitNames

CHECKS: tuple[Check, ...] = (
    check_sites,
    check_shapes,
    check_capabilities,
    check_modules,
    check_reading,
    check_target,
    check_special_tokens,
    check_words,
    check_query,
    check_evaluation_mode,
    check_sums,
    check_allowed,
    check_self_replacement,
    check_intervention,
    check_each_site,
    check_decode,
    check_padding,
    check_left_padding,
    check_batch_mates,
    check_embeddings,
    check_gradients,
    check_live_gradients,
    check_finite_differences,
    check_deletion,
    check_repeated_deletion,
    check_substitution,
    check_logits_without,
    check_logits_masked,
    check_influence,
    check_batched_gradients,
    check_replay,
    check_value_vectors,
    check_selected_sites,
    check_selected_queries,
    check_query_blocks,
    check_original_model,
    check_half_precision,
)
NAMES = tuple(check.name for check in CHECKS)

Outcome = Literal["pass", "fail", "skip"]


class NotSelectedError(Exception):
    """Raised if a check does not apply to the adapter. The message gives the reason."""


class NotTriedError(BrokenContractError):
    """Raised if a check was not run because a basic check fails."""


@dataclass
class Subject:
    """A model to check. All cases of the model share one subject.

    Attributes:
        name: The name of the model.
        make: A function that returns the adapter. It is called once, when the first case runs.
        instances: The instances to select from; None for instances of the default data set.
        thorough: Whether to run the full suite instead of the quick suite.

    Raises:
        DataError: `instances` is empty.
    """

    name: str
    make: Callable[[], ModelAdapter]
    instances: Sequence[Instance] | None = None
    thorough: bool = True
    _repeats: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.instances is not None and len(self.instances) == 0:
            raise DataError(
                "instances is empty, so the conformance checks have no text to run on. Give at least one instance, or "
                "leave out the argument to run them on movie reviews."
            )

    @cached_property
    def examples(self) -> Examples:
        """The examples: the adapter, with its modules in evaluation mode, and the instances to run it on."""
        adapter = self.make()
        for module in adapter.modules:
            module.eval()
        instances = default_instances(adapter) if self.instances is None else self.instances
        return examples(adapter, instances, thorough=self.thorough)

    @cached_property
    def obstacle(self) -> str:
        """The name of the first basic check that fails; "" if all basic checks pass."""
        for check in (one for one in CHECKS if one.basic):
            try:
                with full_precision():
                    check(self.examples)
            except Exception:  # The case of that check reports the error.
                return check.name
        return ""

    def require_same_results(self) -> None:
        """Require that the model gives the same results when the same texts run again. This is tested once.

        Only models around which attnaudit itself has wrapped an adapter are tested.

        Raises:
            AdapterError: The results differ.
        """
        adapter = self.examples.adapter
        if not self._repeats and isinstance(adapter, RepeatedAdapter):
            with full_precision():
                adapter.require_same_results()
            self._repeats = True


@dataclass(frozen=True)
class Case:
    """One check of one model.

    Attributes:
        subject: The model.
        check: The check.
        reason: Why the check is expected to fail; "" if it is expected to pass.
    """

    subject: Subject
    check: Check
    reason: str = ""

    def run(self) -> str:
        """Run the check.

        The result and the reason why a check does not apply use the names of the units and rows of the model. The text
        about a failed check does not: it tells the author of the adapter what to return, in the words of the adapter
        protocol.

        Returns:
            One sentence about the result.

        Raises:
            BrokenContractError: The adapter breaks the contract or raises an exception.
            NotTriedError: The check was not run, because a basic check fails.
            NotSelectedError: The check does not apply to the adapter.
            AuditError: There is a problem that is not the adapter's fault, such as invalid data, or a model whose
                results change when the same texts run again.
        """
        try:
            return self._run()
        except BrokenContractError:
            self.subject.require_same_results()
            raise

    def _run(self) -> str:
        e = self.subject.examples
        obstacle = self.subject.obstacle
        if obstacle and (not self.check.basic or NAMES.index(obstacle) < NAMES.index(self.check.name)):
            raise NotTriedError(f"not run, because '{obstacle}' fails.")
        try:
            with full_precision():
                names = UnitNames(unit=e.capabilities.unit_name, row=e.capabilities.row_name)
                skip_reason = self.check.skip_reason(e)
                if skip_reason:
                    raise NotSelectedError(names.named(skip_reason))
                return names.named(self.check(e))
        except (BrokenContractError, NotSelectedError):
            raise
        except AdapterError as error:
            raise BrokenContractError(str(error)) from error
        except (AuditError, MemoryError):
            raise
        except Exception as error:
            advice = f" {ADVICE}" if self.check in (check_logits_without, check_logits_masked, check_influence) else ""
            raise BrokenContractError(
                f"the adapter raised {type(error).__name__}{raised_at(error)}: {error}.{advice}"
            ) from error

    def result(self) -> ConformanceResult:
        """Run the check and return its result.

        If the check is expected to fail, the outcome is "skip" when it fails and "fail" when it passes. The outcome is
        also "skip" if the check does not apply or was not run.

        Raises:
            AuditError: There is a problem that is not the adapter's fault, such as invalid data.
        """
        try:
            detail = self.run()
        except (NotSelectedError, NotTriedError) as reason:
            return self._result("skip", str(reason))
        except BrokenContractError as broken:
            if self.reason:
                return self._result("skip", f"fails as expected ({self.reason}): {broken}")
            return self._result("fail", str(broken))
        if self.reason:
            return self._result(
                "fail",
                f"the check passes, but was expected to fail ({self.reason}). Remove it from the expected failures.",
            )
        return self._result("pass", detail)

    def _result(self, outcome: Outcome, detail: str) -> ConformanceResult:
        return ConformanceResult(check=self.check.name, outcome=outcome, detail=detail)


def cases(subject: Subject, expected: Mapping[str, str] | None = None) -> Iterator[Case]:
    """Yield a case for every check of the full or quick suite. This does not load the model.

    Args:
        subject: The model. Its attribute `thorough` selects the suite.
        expected: Name of a check -> the reason why it is expected to fail.

    Raises:
        CheckError: `expected` names an unknown check or gives no reason.
    """
    reasons = dict(expected or {})
    for name, reason in reasons.items():
        if name not in NAMES:
            raise CheckError(f"expected failure {name!r}: there is no such conformance check. {nearest(name, NAMES)}")
        if not reason.strip():
            raise CheckError(f"expected failure {name!r}: give the reason why the check fails.")
    for check in CHECKS:
        if subject.thorough or check.quick:
            yield Case(subject, check, reasons.get(check.name, ""))
