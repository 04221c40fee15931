"""What a run has to judge: every gate of its policy, and the cases that pytest selected."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnaudit.records import EffectivePolicy, PolicyRecord

#: A model, a data set and a check, which together identify a gate in a run.
GateKey = tuple[str, str, str]


class DeclaredGate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate of the policy on one model and one data set.

    Attributes:
        model: The id of the model.
        data: The id of the data set.
        check: The id of the check.
        test: The node id of a case that judges it; "" if none was collected.
    """

    model: str
    data: str
    check: str
    test: str = ""

    @property
    def key(self) -> GateKey:
        """The model, the data set and the check."""
        return self.model, self.data, self.check


class SelectedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case that pytest selected.

    Attributes:
        test: The node id of the test.
        model: The id of the model.
        data: The id of the data set.
        check: The id of the check; "" for a test that uses the fixture `measurements`.
    """

    test: str
    model: str
    data: str
    check: str

    @property
    def key(self) -> GateKey:
        """The model, the data set and the check."""
        return self.model, self.data, self.check


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The gates and cases that a run has to judge. They are known before the first case runs.

    Attributes:
        gates: Every gate of the policy on every model and data set, selected or not.
        selected: The cases that pytest selected, sorted by model, data set and the order of the policy.
        left_out: The gates that an option of the user may have left out. A plugin removed any other gate without a
            case.
        policy: The policy file that the checks come from; None if they come from no file or from several files.
        effective_policy: All checks of the run; None if none were collected.
        files_left_out: Test file -> the reason why it was not collected. These files may contain @audit functions, so
            their gates are unknown.
    """

    gates: list[DeclaredGate] = []
    selected: list[SelectedCase] = []
    left_out: list[GateKey] = []
    policy: PolicyRecord | None = None
    effective_policy: EffectivePolicy | None = None
    files_left_out: dict[str, str] = {}

    @staticmethod
    def joined(plans: Sequence[Plan]) -> Plan:
        """Join the plans of several processes. Gates and cases that several of them list are kept once."""
        gates: dict[GateKey, DeclaredGate] = {}
        selected: dict[str, SelectedCase] = {}
        for plan in plans:
            for gate in plan.gates:
                if gate.key not in gates or not gates[gate.key].test:
                    gates[gate.key] = gate
            for case in plan.selected:
                selected.setdefault(case.test, case)
        return Plan(
            gates=list(gates.values()),
            selected=list(selected.values()),
            left_out=list(dict.fromkeys(key for plan in plans for key in plan.left_out)),
            policy=next((plan.policy for plan in plans if plan.policy is not None), None),
            effective_policy=next((p.effective_policy for p in plans if p.effective_policy is not None), None),
            files_left_out={file: why for plan in plans for file, why in plan.files_left_out.items()},
        )
