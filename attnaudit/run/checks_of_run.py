"""The checks that a run declares, and which of them gate a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from attnaudit.errors import CheckError
from attnaudit.model_families import is_informational, validation_remark
from attnaudit.records import PolicyValidation


class DeclaredChecks:
    """The declared checks of a run, whether or not their cases are selected.

    Attributes:
        validations: The families on which the gates were validated. They are known after the collection.
        policy_sha256: The hash of the effective policy, which is known after the collection, too; "" without a policy.
    """

    def __init__(self) -> None:
        self.validations: list[PolicyValidation] = []
        self.policy_sha256 = ""
        self._checks: dict[str, Any] = {}
        self._gates: set[str] = set()

    def add(self, check: Any) -> None:
        """Add a check."""
        self._checks[check.id] = check
        if check.severity == "gate":
            self._gates.add(check.id)

    @property
    def gated(self) -> int:
        """The number of gates, at least 1. The confidence of failures is corrected for it.

        All gates count, so that a verdict does not depend on which other cases are selected.
        """
        return max(1, len(self._gates))

    def require_unchanged(self, check: Any) -> None:
        """Require that a check has the arguments that it was declared with.

        Raises:
            CheckError: It has others.
        """
        if check != self._checks.get(check.id, check):
            raise CheckError(
                f"{check.id}: the test judged this check with other arguments than it was declared with. Change its "
                "arguments in @audit or in the policy file, not in the test."
            )

    def applied_to(self, family: str, check: Any) -> Any:
        """Return a check as it applies to a family of models: a gate may be informational for some families."""
        if is_informational(check.id, family, self.validations):
            return dataclasses.replace(check, severity="report")
        return check

    def remark(self, check: str, family: str) -> str:
        """Return a remark on a gate that was not validated on a family of models; "" if there is none."""
        return validation_remark(check, family, self.validations)

    @property
    def are_sequential(self) -> bool:
        """Whether there are gates, and all of them can be decided before all rows are measured."""
        return bool(self._gates) and all(self._checks[gate].sampling == "sequential" for gate in self._gates)

    def sequential_gates(self, family: str) -> list[Any]:
        """Return the gates that decide after how many rows measuring stops; empty if all rows are measured.

        These are all gates of the policy, whether or not their cases are selected, so that the number of rows does not
        depend on the selection. A gate that needs all rows makes stopping pointless.
        """
        gates = [self._checks[name] for name in sorted(self._gates)]
        gates = [gate for gate in gates if not is_informational(gate.id, family, self.validations)]
        return gates if all(gate.sampling == "sequential" for gate in gates) else []
