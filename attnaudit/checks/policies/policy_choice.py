"""Choose the policy that applies to the audited models, if an @audit function has several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnaudit.checks.policies.policy import Policy
from attnaudit.errors import CheckError
from attnaudit.model_families import covers, split_target
from attnaudit.records import PolicyRecord

REMEDY = "Give the policy to apply with --policy FILE"


def families_of(record: PolicyRecord) -> list[str]:
    """Return the families of models that a policy applies to: `applies_to` or, if it is not set, `validated_on`."""
    return record.applies_to or record.validated_on


def require_families_of_several(policies: Sequence[Policy]) -> None:
    """If there are several policies, require that each names the families of models that it applies to.

    Raises:
        CheckError: A policy names no family. The message names its file.
    """
    for policy in policies:
        if not families_of(policy.record):
            raise CheckError(
                f"audit: several policies are given, but {policy.record.file} does not name the families of models "
                'that it applies to. Write, for example, applies_to = ["pooled attention"] under [policy] in it, or '
                "give a single policy."
            )


def choose_policy(policies: Sequence[Policy], families: Mapping[str, str]) -> Policy:
    """Return the policy that applies to all models.

    Args:
        policies: At least one policy. Each names the families that it applies to.
        families: The name of a model -> its family. If it is empty, because no model could be loaded, the first policy
            is returned. The gates of this policy then get no verdict, and the reason is the error with which the model
            failed to load.

    Raises:
        CheckError: No policy or several policies apply to a model, or two models need different policies. The message
            names the models and the files.
    """
    chosen: dict[str, Policy] = {}
    for model, family in families.items():
        # If no policy names the whole family, including the explained target, the policy for the architecture applies.
        # It was not validated on such models, and decides what happens to them (see `PolicyRecord.unvalidated`).
        applying = [policy for policy in policies if covers(families_of(policy.record), family)] or [
            policy for policy in policies if covers(families_of(policy.record), split_target(family)[0])
        ]
        if len(applying) != 1:
            raise CheckError(_unclear(model, family, policies, applying))
        chosen[model] = applying[0]
    if len({id(policy) for policy in chosen.values()}) > 1:
        needed = ", ".join(f"{policy.record.file} for {model}" for model, policy in chosen.items())
        raise CheckError(
            f"--model: the models need different policies: {needed}. Audit them in separate runs. {REMEDY} to audit "
            "all of them with a single policy."
        )
    return next(iter(chosen.values()), policies[0])


def _unclear(model: str, family: str, policies: Sequence[Policy], applying: Sequence[Policy]) -> str:
    listed = "; ".join(
        f"{one.record.file} applies to {', '.join(map(repr, families_of(one.record)))}" for one in policies
    )
    if applying:
        both = " and ".join(policy.record.file for policy in applying)
        return (
            f"--model {model}: both {both} apply to its family ({family or 'not stated'}). Change applies_to under "
            f"[policy] in one of them. {REMEDY}, for this run only."
        )
    state = "" if family else " State the family in the attribute `family` of the adapter."
    return (
        f"--model {model}: no policy applies to its family ({family or 'not stated'}): {listed}.{state} If one of "
        "these policies is meant for such models, add the family to applies_to under [policy] in its file. If the file "
        "sets validated_on, the run then fails unless you also validate the policy on such models and add the family "
        f"to validated_on, or set unvalidated. {REMEDY}, for this run only."
    )
