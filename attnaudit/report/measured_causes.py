"""Causes of a failed gate that the run measured: nearly equal attention weights, or blended hidden states.

The evidence comes from other numbers of the same run. Without a number, nothing is said about its cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnaudit.formatting import number
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.records.check_records import LARGEST_WEIGHT
from attnaudit.records.unit_names import names_of

#: Weights are nearly equal if the largest one is at most this multiple of the mean weight, in 95% of the rows.
NEARLY_EQUAL = 1.2
#: Hidden states are blended if their influence entropy is at least this large. It is about 0.6 for states that are tied
#: to their embeddings, and 0.9 to 1 for those of ordinary BiLSTMs.
BLENDED = 0.8
INFLUENCE_ENTROPY = "influence_entropy.hidden"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run measured about the possible causes of a failed gate.

    Attributes:
        largest_weight: The largest weight as a multiple of the mean weight, in 95% of the rows at most; None if it was
            not measured.
        entropy: The influence entropy of the hidden states; None if it was not measured.
    """

    largest_weight: float | None
    entropy: float | None

    @property
    def equal_weights(self) -> bool:
        """Whether the attention weights are nearly equal."""
        return self.largest_weight is not None and self.largest_weight <= NEARLY_EQUAL

    @property
    def blended(self) -> bool:
        """Whether each hidden state depends on many tokens."""
        return self.entropy is not None and self.entropy >= BLENDED


def evidence_on(gate: CheckRecord, run: RunRecord) -> Evidence:
    """Return the evidence from all checks with the model, the data, the seed and the reading of a gate."""
    subject = _subject(gate)
    checks = [check for check in run.checks if _subject(check) == subject]
    weights = (check.details.get(LARGEST_WEIGHT) for check in checks)
    entropies = (check.value for check in checks if check.check.partition("/")[0] == INFLUENCE_ENTROPY)
    return Evidence(
        next((weight for weight in weights if isinstance(weight, float)), None),
        next((entropy for entropy in entropies if entropy is not None), None),
    )


def cause_notes(run: RunRecord) -> list[str]:
    """Return sentences that name the measured causes of the failed gates that block the release."""
    several = len({check.key[:2] for check in run.checks}) > 1
    notes = [
        f"{gate.model} on {gate.data}: {sentence}" if several else sentence
        for gate in _failed(run)
        for sentence in _sentences(gate, evidence_on(gate, run))
    ]
    return list(dict.fromkeys(notes))


def remedy_for_equal_weights(gate: CheckRecord, run: RunRecord) -> str:
    """Return a remedy if the attention weights are nearly equal; "" otherwise."""
    if not evidence_on(gate, run).equal_weights:
        return ""
    return (
        "find out why the attention scores hardly differ: does training change the layer that computes them, and is "
        "the temperature of the softmax too high? Until they differ, show leave-one-out importance instead of attention"
    )


def remedy_without_cause(gate: CheckRecord, run: RunRecord) -> str:
    """Return where to look if the hidden states are not blended and the weights are not nearly equal; "" otherwise.

    The remedies of policies were mostly measured on models with blended states, so they are not the first thing to try.
    """
    evidence = evidence_on(gate, run)
    if evidence.entropy is None or evidence.blended or evidence.equal_weights:
        return ""
    return (
        f"{look_at_typical(gate)}. The run found no cause of the failure: the hidden states are not blended (influence "
        f"entropy {number(evidence.entropy, digits=2)}; from {BLENDED}, they count as blended)"
    )


def look_at_typical(gate: CheckRecord) -> str:
    """Return the advice to look at the typical instances of a gate."""
    names = names_of(gate.unit_names)
    return f"look at the typical {names.rows} of {gate.check} in the report, to see which {names.units} decide"


def _failed(run: RunRecord) -> Iterator[CheckRecord]:
    return (check for check in run.checks if check.blocks and check.verdict == "fail")


def _subject(check: CheckRecord) -> tuple[str, str, int, str]:
    return check.model, check.data, check.seed, check.reading


def _sentences(gate: CheckRecord, evidence: Evidence) -> Iterator[str]:
    names = names_of(gate.unit_names)
    if evidence.equal_weights:
        yield (
            f"The attention weights are nearly equal: in 95% of the {names.rows}, the largest weight is at most "
            f"{number(evidence.largest_weight, digits=2)} times the mean weight. Shuffling such weights hardly changes "
            f"the output, and they point at no {names.unit}."
        )
    if evidence.blended:
        yield (
            f"The hidden states blend their {names.rows}: their influence entropy is "
            f"{number(evidence.entropy, digits=2)} (0: each state depends on one {names.unit}; 1: on all {names.units} "
            f"alike). A weight on a state therefore says little about the {names.unit} at its position."
        )
