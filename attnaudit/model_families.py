"""Families of models. A policy that was validated on some families may be wrong about models of other families.

The family of a model is a text such as "pooled attention, bilstm encoder". A policy lists the families on which it was
validated. The entry "pooled attention" covers every family whose name begins with these words.

If an audit explains an output other than the class, the last word of the family names this output, as in "transformer,
bert, multi-label". Only an entry with the same word covers it, such as "transformer, multi-label". The last word is
"pictures" for models that read pictures, "recordings" for models that read recordings of sound, and "sources" for
models that answer from passages. If the units of an audit are not the passages, but their tokens or words, "passages"
replaces "sources", because a policy that was validated on whole passages says nothing about tokens. For the same
reason, "pictures with another erasure" replaces "pictures" if the typical patch does not replace an erased patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnaudit.records import EffectivePolicy, ModelRecord, PolicyValidation, UnvalidatedModel
from attnaudit.targets import FAMILIES, OTHERWISE_ERASED, PASSAGES, PICTURES, RECORDINGS, SOURCES

#: The family of an adapter with a single row of attention weights that names no family.
POOLED = "pooled attention"


def covers(families: Iterable[str], family: str) -> bool:
    """Return whether a family is one of `families` or begins with the words of one of them.

    The last word of a family may name what is explained, such as "multi-label". If an entry of `families` ends with
    such a word, it covers only families that end with the same word. Otherwise, it covers only families that end
    without such a word.

    Examples:
        >>> covers(["pooled attention"], "pooled attention, gru encoder")
        True
        >>> covers(["transformer, bert"], "transformer, bertweet")
        False
        >>> covers(["transformer"], "transformer, bert, multi-label")
        False
        >>> covers(["transformer"], "transformer, vit, pictures")
        False
    """
    own, target = split_target(family)
    return any(
        target == its_target and (own == one or (own.startswith(one) and not _continues_word(own[len(one)])))
        for one, its_target in map(split_target, families)
    )


def split_target(family: str) -> tuple[str, str]:
    """Split a family into the part about the architecture and its last word, such as "multi-label" ("" if it has none).

    Examples:
        >>> split_target("transformer, bert, multi-label")
        ('transformer, bert', 'multi-label')
        >>> split_target("transformer, bert")
        ('transformer, bert', '')
    """
    own, _, last = family.rpartition(", ")
    named = (*FAMILIES.values(), SOURCES, PASSAGES, PICTURES, OTHERWISE_ERASED, RECORDINGS)
    return (own, last) if own and last in named else (family, "")


def audited_family(family: str, unit: str) -> str:
    """Return the family of a model in an audit over some units.

    Args:
        family: The family that the adapter names.
        unit: The units of the audit: "tokens", "words" or "sources".

    Examples:
        >>> audited_family("transformer, llama, sources", "sources")
        'transformer, llama, sources'
        >>> audited_family("transformer, llama, sources", "tokens")
        'transformer, llama, passages'
        >>> audited_family("transformer, bert", "tokens")
        'transformer, bert'
    """
    own, target = split_target(family)
    return f"{own}, {PASSAGES}" if target == SOURCES and unit != SOURCES else family


def unvalidated_models(policy: EffectivePolicy | None, models: Sequence[ModelRecord]) -> list[UnvalidatedModel]:
    """Return the models whose family is not among the families on which the policy was validated.

    The result has one entry for each model and each validation that does not cover the family of the model.

    Args:
        policy: The effective policy of a run; None if the run has none.
        models: The measured models.
    """
    return [
        UnvalidatedModel(
            model=model.name,
            family=model.family,
            checks=validation.checks,
            validated_on=validation.validated_on,
            unvalidated=validation.unvalidated,
        )
        for model in models
        for validation in (policy.validations if policy else ())
        if _lacks(validation, model.family)
    ]


def is_informational(check: str, family: str, validations: Sequence[PolicyValidation]) -> bool:
    """Return whether a gate is informational for a family.

    It is informational under two conditions: no policy with the gate was validated on the family, and all policies with
    the gate set `unvalidated = "report"`.
    """
    own = [validation for validation in validations if check in validation.checks]
    return bool(own) and all(one.unvalidated == "report" and _lacks(one, family) for one in own)


def validation_remark(check: str, family: str, validations: Sequence[PolicyValidation]) -> str:
    """Return a remark for the verdict on a gate that was not validated on a family of models.

    The remark is "" if the gate was validated on the family. It is also "" if the policy refuses models of other
    families (`unvalidated = "block"`), because the run then fails and gives the reason itself.
    """
    lacking = [one for one in validations if check in one.checks and _lacks(one, family)]
    if not lacking or any(one.unvalidated == "block" for one in lacking):
        return ""
    return f"the policy was not validated on this family of models ({family or 'not stated'})"


def informational_gates(policy: EffectivePolicy | None, models: Sequence[ModelRecord]) -> set[tuple[str, str]]:
    """Return the model and the check of every gate that is informational for the family of the model."""
    validations = policy.validations if policy else []
    return {
        (model.name, check)
        for model in models
        for check in {check for validation in validations for check in validation.checks}
        if is_informational(check, model.family, validations)
    }


def blocked_models(unvalidated: Sequence[UnvalidatedModel]) -> list[UnvalidatedModel]:
    """Return the models for which the run fails, because the policy was not validated on their families."""
    return [one for one in unvalidated if one.unvalidated == "block"]


def _lacks(validation: PolicyValidation, family: str) -> bool:
    """Return whether a validation names the families that it covers, but does not cover this family."""
    return bool(validation.validated_on) and not covers(validation.validated_on, family)


def _continues_word(character: str) -> bool:
    return character.isalnum() or character in "_-"
