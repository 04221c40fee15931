"""Text about models of families on which the policy of the run was not validated."""

from __future__ import annotations

from attnaudit.model_families import blocked_models
from attnaudit.records import PolicyRecord, RunRecord, UnvalidatedModel


def unvalidated_notes(run: RunRecord) -> list[str]:
    """Return a sentence for each model of a family on which the policy was not validated.

    If the policy has a name but was validated on no family at all, there is a sentence for every model.
    """
    if run.unvalidated:
        return [unvalidated_sentence(one, run.declared_policy) for one in run.unvalidated]
    policy = run.declared_policy
    if policy is None or not policy.name or policy.validated_on:
        return []
    return [
        f"{model.name}: the policy '{policy.name}' names no family of models on which it was validated, so its error "
        "rates are unknown."
        for model in run.models
    ]


def unvalidated_sentence(one: UnvalidatedModel, policy: PolicyRecord | None) -> str:
    """Return sentences that say on which families a policy was validated, and what it does with another model.

    Args:
        one: The model.
        policy: The policy file of the run; None if the checks come from none, or from several.
    """
    name = f"the policy '{policy.name}'" if policy is not None and policy.name else "the policy"
    fact = (
        f"{one.model}: {name} was not validated on this family of models ({one.family or 'not stated'}). It was "
        f"validated only on: {'; '.join(one.validated_on)}."
    )
    if one.unvalidated == "gate":
        return (
            f"{fact} The thresholds of the policy were applied nevertheless, because the policy sets unvalidated = "
            '"gate".'
        )
    if one.unvalidated == "report":
        return (
            f"{fact} The gates of the policy are informational for this model, because the policy sets unvalidated "
            '= "report".'
        )
    place = f"under [policy] in {policy.file}" if policy is not None else "in the policy file or in @audit"
    return (
        f"{fact} The gates of the policy were measured, but they cannot show that this model may be released, so "
        "the run fails. Use a policy that was validated on this family. To apply the thresholds nevertheless, set "
        f'unvalidated = "gate" {place}.'
    )


def blocked_reason(run: RunRecord) -> str:
    """Return a sentence for the headline if the run fails because of the families of its models; otherwise ""."""
    names = list(dict.fromkeys(one.model for one in blocked_models(run.unvalidated)))
    return f"The policy was not validated for models such as {' and '.join(names)}." if names else ""
