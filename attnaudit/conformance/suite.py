"""The suite: every check, and the one generator of cases that both front ends run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

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
from attnaudit.conformance.gradient_flow import (
    check_embeddings,
    check_finite_differences,
    check_gradients,
    check_live_gradients,
)
from attnaudit.conformance.partial_passes import check_replay, check_value_vectors
from attnaudit.conformance.prefix_states import check_influence, check_logits_without
from attnaudit.conformance.replaced_weights import (
    check_decode,
    check_each_site,
    check_intervention,
    check_self_replacement,
)
from attnaudit.conformance.sample_texts import Examples, default_instances, examples
from attnaudit.conformance.special_tokens import check_query, check_special_tokens, check_words
from attnaudit.conformance.token_removal import check_deletion, check_repeated_deletion, check_substitution
from attnaudit.errors import AdapterError, AuditError, CheckError, nearest, raised_at
from attnaudit.instances import Instance
from attnaudit.records import ConformanceResult

CHECKS: tuple[Check, ...] = (
    check_sites,
    check_shapes,
    check_capabilities,
    check_modules,
    check_reading,
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
    check_influence,
    check_replay,
    check_value_vectors,
    check_original_model,
)
NAMES = tuple(check.name for check in CHECKS)

Outcome = Literal["pass", "fail", "skip"]


class NotSelectedError(Exception):
    """The check does not apply: why."""


class NotTriedError(BrokenContractError):
    """The check cannot be tried, because a basic one fails."""


@dataclass
class Subject:
    """A model under test, shared by its cases. make: gives the adapter, when it is first needed. instances: to try it
    on; None: texts of the default data set."""

    name: str
    make: Callable[[], ModelAdapter]
    instances: Sequence[Instance] | None = None
    thorough: bool = True

    @cached_property
    def examples(self) -> Examples:
        adapter = self.make()
        for module in adapter.modules:
            module.eval()
        given = default_instances(adapter) if self.instances is None else self.instances
        return examples(adapter, given, thorough=self.thorough)

    @cached_property
    def obstacle(self) -> str:
        """The name of a basic check that fails; "" where none does."""
        for check in (one for one in CHECKS if one.basic):
            try:
                check(self.examples)
            except Exception:  # told in full by that check's own case
                return check.name
        return ""


@dataclass(frozen=True)
class Case:
    """One check of one model. reason: why it is expected to fail; "" where it is not."""

    subject: Subject
    check: Check
    reason: str = ""

    def run(self) -> str:
        """The sentence about what was found. Raises BrokenContractError, NotTriedError (a basic check fails) or
        NotSelectedError; an AuditError that is not about the adapter passes through."""
        e = self.subject.examples
        if not self.check.basic and self.subject.obstacle:
            raise NotTriedError(f"not tried, because '{self.subject.obstacle}' fails.")
        try:
            why = self.check.skip_reason(e)
            if why:
                raise NotSelectedError(why)
            return self.check(e)
        except (BrokenContractError, NotSelectedError):
            raise
        except AdapterError as error:
            raise BrokenContractError(str(error)) from error
        except (AuditError, MemoryError):
            raise
        except Exception as error:
            raise BrokenContractError(
                f"the adapter raised {type(error).__name__}{raised_at(error)}: {error}."
            ) from error

    def result(self) -> ConformanceResult:
        """The outcome. A failure that was expected is skipped, and one that was expected but does not come fails."""
        try:
            found = self.run()
        except (NotSelectedError, NotTriedError) as why:
            return self._result("skip", str(why))
        except BrokenContractError as broken:
            if self.reason:
                return self._result("skip", f"fails as expected ({self.reason}): {broken}")
            return self._result("fail", str(broken))
        if self.reason:
            return self._result("fail", f"passes, but was expected to fail ({self.reason}). Expect it no longer.")
        return self._result("pass", found)

    def _result(self, outcome: Outcome, detail: str) -> ConformanceResult:
        return ConformanceResult(check=self.check.name, outcome=outcome, detail=detail)


def cases(subject: Subject, expected: Mapping[str, str] | None = None) -> Iterator[Case]:
    """A case for every check of the form that the subject asks for; nothing is loaded yet. expected: check -> why it
    fails. Raises CheckError for a name that is no check, and for a failure expected without a reason."""
    reasons = dict(expected or {})
    for name, reason in reasons.items():
        if name not in NAMES:
            raise CheckError(f"expected failure {name!r}: there is no such conformance check. {nearest(name, NAMES)}")
        if not reason.strip():
            raise CheckError(f"expected failure {name!r}: give the reason why it fails.")
    for check in CHECKS:
        if subject.thorough or check.quick:
            yield Case(subject, check, reasons.get(check.name, ""))
