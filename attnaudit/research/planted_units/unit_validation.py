"""Validate a policy on planted bags, several pooled attentions, transformers of patches, or models that read passages.

Each population has two halves, with different seeds. For bags, several attentions and passages, `threshold_rule`
chooses the gates from the tuning half; some thresholds are those of `near_faithful`. For large bags, the gates are
those of the policy for bags; for several labels, those of the policy for several attentions; for pictures, those of the
present policy for pictures. These populations have no tuning half, because no threshold is chosen from them. The
figures come from the held-out half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.progress import ProgressCallback
from attnaudit.research.planted_transformers.patch_audits import PatchTask, audit_patches
from attnaudit.research.planted_transformers.source_audits import audit_sources
from attnaudit.research.planted_units.unit_audits import (
    ABOVE_UNIFORM,
    AuditedReading,
    audit_all,
    audit_each,
    bag_candidates,
    gate_candidates,
    source_candidates,
)
from attnaudit.research.planted_units.unit_populations import (
    LOOKS,
    PopulationName,
    label_models,
    large_bags,
    look_of,
    picture_plans,
    source_tasks,
    unit_tasks,
)
from attnaudit.research.study.text_tables import fixed, markdown_table
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.candidate_policy import read_policy
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.detection_rates import check_figures, half_of, policy_figures
from attnaudit.research.validation.errors_in_turn import Rule, errors, in_turn
from attnaudit.research.validation.figures_schema import Errors, InTurn, Rate
from attnaudit.research.validation.policy_writer import PolicyBase, policy_text
from attnaudit.research.validation.population_schema import Half
from attnaudit.research.validation.scoring import Gate, JudgedModel, score
from attnaudit.research.validation.threshold_rule import (
    NO_EFFECT,
    check_area,
    choose,
    discriminates,
    limits,
    rounded,
    tuning,
)

#: Seed of the bootstrap intervals of areas under ROC curves.
SEED = 0
#: The thresholds of the gate "points" for bags, and of the gates "enough", as a share of the lowest limit of the
#: faithful models.
KEPT = 0.9
#: Population -> the families that its policy names.
VALIDATED_ON: dict[PopulationName, tuple[str, ...]] = {
    "bags": ("bag of vectors",),
    "large_bags": ("bag of vectors",),
    "attentions": ("several-site attention", "several-head attention"),
    "pictures": ("transformer, vit, pictures", "transformer, deit, pictures"),
    "labels": ("several-head attention, multi-label",),  # added to the policy for "attentions"
    "sources": ("transformer, gpt2, sources", "transformer, llama, sources"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitValidation:
    """The outcome of a validation.

    Attributes:
        population: The name of the population.
        readings: All audited readings.
        gates: The gates of the policy.
        turns: The errors if each mechanism or encoder is left out in turn; empty if the rule chose no gate.
    """

    population: PopulationName
    readings: Sequence[AuditedReading]
    gates: Sequence[Gate]
    turns: Sequence[InTurn]

    @property
    def models(self) -> list[JudgedModel]:
        """The readings, in the form that the rule expects."""
        return [one.judged for one in self.readings]

    @property
    def half(self) -> Half:
        """The half that the figures are about: the tuning half if no held-out model was audited."""
        return "held_out" if any(one.entry.half == "held_out" for one in self.readings) else "tuning"

    @property
    def scored(self) -> list[JudgedModel]:
        """The readings that the figures are about."""
        return half_of(self.models, self.half)


def validate_units(
    population: PopulationName,
    *,
    out: Path,
    policies: Path,
    look: int | None = None,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> UnitValidation:
    """Plant a population, audit it, and choose or read the gates.

    Args:
        population: The name of the population.
        out: The folder for results and pictures. Results that exist are reused.
        policies: The folder with the policies `bags.toml`, `attentions.toml` and `pictures.toml`. Large bags, models
            with several labels, and pictures are audited with their gates.
        look: The number of the look whose held-out models are audited, from 1; 0 to audit no held-out models; None to
            audit all of them.
        jobs: The number of processes that share the work.
        progress: Called after each model, with its name as the note. None to report no progress.
    """
    results = out / population
    seeds = {seed for number, each in enumerate(LOOKS[population], start=1) if look in (None, number) for seed in each}
    if population == "pictures":
        pictures = [
            (plan.name, PatchTask(plan=plan, half="held_out", pictures=out / "files"))
            for plan in picture_plans(sorted(seeds))
        ]
        readings = audit_each(pictures, audit_patches, out=results, jobs=jobs, progress=progress)
        gates = list(read_policy(policies / "pictures.toml").gates)
        return UnitValidation(population=population, readings=readings, gates=gates, turns=[])
    if population in ("large_bags", "labels"):
        is_large = population == "large_bags"
        gates = list(read_policy(policies / ("bags.toml" if is_large else "attentions.toml")).gates)
        only = tuple(gate.check for gate in gates)
        every = large_bags() if is_large else label_models()
        tasks = [(plan, half) for plan, half in every if plan.seed in seeds]
        readings = audit_all(tasks, out=results, only=only, jobs=jobs, progress=progress)
        return UnitValidation(population=population, readings=readings, gates=gates, turns=[])
    if population == "sources":
        named = [(task.plan.name, task) for task in source_tasks(sorted(seeds))]
        readings = audit_each(named, audit_sources, out=results, jobs=jobs, progress=progress)
    else:
        tasks = [(plan, half) for plan, half in unit_tasks(population) if half == "tuning" or plan.seed in seeds]
        readings = audit_all(tasks, out=results, jobs=jobs, progress=progress)
    models = [one.judged for one in readings]
    candidates = candidates_of(population)
    rule = RULES.get(population, choose)
    found = [in_turn(models, candidates, what, seed=SEED, rule=rule) for what in ("mechanism", "encoder")]
    return UnitValidation(
        population=population,
        readings=readings,
        gates=rule(models, candidates, seed=SEED),
        turns=[turn for turn in found if turn is not None],
    )


def choose_for_passages(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy for passages.

    The gates of the question "points" are chosen first. Those of the question "used" are then chosen from the faithful
    readings and from the readings that pass the first gates. A reading may be unused because it is at the wrong
    passages, although other weights of the same head would change the answer. Only the first gates can find it.

    Args:
        models: As `threshold_rule.choose` takes them.
        candidates: As `threshold_rule.choose` takes them.
        seed: As `threshold_rule.choose` takes it.
    """
    points, used = ([one for one in candidates if one.question == question] for question in ("points", "used"))
    first = choose(models, points, seed=seed)
    left = [model for model in models if model.faithful or not score(model, first).alarm]
    return [*choose(left, used, seed=seed), *first]


def choose_for_attentions(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy for several attentions.

    `threshold_rule.choose` chooses the gates of the questions "used" and "points". The gate of the question "enough" is
    close to what the faithful models reach (see `near_faithful`).

    Args:
        models: As `threshold_rule.choose` takes them.
        candidates: As `threshold_rule.choose` takes them.
        seed: As `threshold_rule.choose` takes it.
    """
    gates = choose(models, [one for one in candidates if one.question != "enough"], seed=seed)
    return [*gates, *near_faithful(models, [one for one in candidates if one.question == "enough"], seed=seed)]


def choose_for_bags(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy for bags.

    For the question "used", `threshold_rule.choose` chooses the gate, which is on the predicted class with the smallest
    total effect (see `bag_candidates`). The gates "points", the plain cosine of `Pointing`, and "enough" are close to
    what the faithful models reach (see `near_faithful`).

    The cosine above uniform weights is not a candidate, because it rises if units are added that have neither effect
    nor weight.

    Args:
        models: As `threshold_rule.choose` takes them.
        candidates: As `threshold_rule.choose` takes them.
        seed: As `threshold_rule.choose` takes it.
    """
    gates = choose(models, [one for one in candidates if one.question == "used"], seed=seed)
    others = [one for one in candidates if one.question in ("points", "enough") and one.check.id != ABOVE_UNIFORM]
    return [*gates, *near_faithful(models, others, seed=seed)]


def near_faithful(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Return gates whose thresholds are the share `KEPT` of the faithful limit (see `threshold_rule.Limits`).

    The thresholds depend only on the faithful models, so they stay the same if an unfaithful mechanism is left out.
    Checks that do not discriminate get no gate.

    Args:
        models: As `threshold_rule.choose` takes them.
        candidates: As `threshold_rule.choose` takes them.
        seed: As `threshold_rule.choose` takes it.
    """
    half, gates = tuning(models), []
    for one in candidates:
        found = limits(half, one)
        if found is not None and discriminates(check_area(half, one, seed=seed)):
            value = rounded(KEPT * found.faithful, low=NO_EFFECT, high=found.faithful)
            gates.append(Gate(check=one.check.id, question=one.question, direction=one.direction, threshold=value))
    return gates


#: Population -> the rule that chooses its gates, if it is not `threshold_rule.choose`.
RULES: dict[PopulationName, Rule] = {
    "bags": choose_for_bags,
    "attentions": choose_for_attentions,
    "sources": choose_for_passages,
}


def candidates_of(population: PopulationName) -> list[Candidate]:
    """Return the checks that may become gates of the policy for a population."""
    if population == "sources":
        return source_candidates()
    return bag_candidates() if population in ("bags", "large_bags") else gate_candidates()


def report(validation: UnitValidation) -> list[str]:
    """Return the results as lines of Markdown."""
    lines = [f"Gates: {'; '.join(gate.text for gate in validation.gates) or 'none'}.", ""]
    rows = [(validation.half.replace("_", " "), errors(validation.scored, validation.gates))]
    rows += [(name, errors(models, validation.gates)) for name, models in _parts(validation).items()]
    rows += [(f"each {turn.what} left out in turn", turn.total) for turn in validation.turns]
    lines += markdown_table(
        ["", "false alarms", "unfaithful that pass", "graded (right on at most 60%) that pass"],
        [[name, *map(figure_text.share, _rates(e))] for name, e in rows],
    )
    for turn in validation.turns:
        wrong = [row for row in turn.rows if any(rate.hits for rate in _rates(row.errors))]
        lines += [
            f"* Without the {turn.what} `{row.name}`, the gates would be {'; '.join(row.gates)}: "
            f"{'; '.join(figure_text.error_phrases(row.errors))}."
            for row in wrong
        ]
        lines += [""] if wrong else []
    lines += _by_kind(validation)
    unlabelled = Counter(one.entry.kind for one in validation.readings if one.entry.truth == "trend")
    if unlabelled:
        counts = ", ".join(f"`{kind}` {count}" for kind, count in sorted(unlabelled.items()))
        lines += [f"Readings without a label, which are not scored: {counts}.", ""]
    return lines


def _parts(validation: UnitValidation) -> dict[str, list[JudgedModel]]:
    """Return the held-out readings of each look and, for large bags, of each size; empty if there is one part."""
    parts: dict[str, list[JudgedModel]] = {}
    held_out = [model for model in validation.scored if model.entry.half == "held_out"]
    several = len({look_of(validation.population, model.entry.seed) for model in held_out}) > 1
    for model in held_out:
        look = look_of(validation.population, model.entry.seed)
        names = [f"look {look}"] if several else []
        names += [f"{model.entry.encoder} units"] if validation.population == "large_bags" else []
        for name in names:
            parts.setdefault(name, []).append(model)
    return dict(sorted(parts.items()))


def _rates(found: Errors) -> tuple[Rate, Rate, Rate]:
    return found.false_alarms, found.misses, found.graded_passes


def _by_kind(validation: UnitValidation) -> list[str]:
    """Return a table of the readings of each kind and truth."""
    groups: dict[tuple[str, str, str], list[JudgedModel]] = {}
    for model in validation.scored:
        if model.entry.truth != "trend":
            shown = (
                f"{model.entry.truth}, {model.entry.share:.1f}" if model.entry.truth == "graded" else model.entry.truth
            )
            groups.setdefault((model.entry.kind, shown, model.entry.encoder), []).append(model)
    table = []
    for (kind, truth, encoder), models in sorted(groups.items()):
        passed = sum(not score(model, validation.gates).alarm for model in models)
        table.append([kind, encoder, truth, str(len(models)), str(passed), *_ranges(models, validation.gates)])
    names = [gate.check for gate in validation.gates]
    return markdown_table(["kind", "form", "truth", "readings", "pass", *names], table, numeric=["readings", "pass"])


def _ranges(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> list[str]:
    ranges = []
    for gate in gates:
        values = [record.value for model in models if (record := model.records.get(gate.check)) is not None]
        known = [value for value in values if value is not None]
        ranges.append(f"{fixed(min(known), 2)} to {fixed(max(known), 2)}" if known else "undefined")
    return ranges


def error_lines(validation: UnitValidation, name: str) -> list[str]:
    """Return sentences about the errors on the held-out half of a population. Each begins with `name`."""
    found = errors(validation.scored, validation.gates)
    return [f"{name}: {phrase}." for phrase in figure_text.error_phrases(found)]


def policy_of(validation: UnitValidation, base: PolicyBase, further: Sequence[str] = ()) -> str:
    """Return the policy with the gates and the figures of a validation, as TOML.

    Args:
        validation: The validation.
        base: The first comment, the name, the remedies and the informational checks of the policy.
        further: Sentences about other models on which the policy was validated.
    """
    models = validation.models
    candidates = candidates_of(validation.population)
    labelled = [model for model in models if model.entry.truth != "trend"]
    tuning, held_out = half_of(labelled, "tuning"), half_of(labelled, "held_out")
    mechanisms = [len({model.entry.mechanism for model in half}) for half in (tuning, held_out)]
    chosen = f"Chosen from {len(tuning)} readings of planted models with {mechanisms[0]} kinds; validated"
    basis = [
        f"{chosen if tuning else 'Validated'} on {len(held_out)} readings of "
        f"{'other planted' if tuning else 'planted'} models with {mechanisms[1]} kinds"
        f"{', drawn with other seeds' if tuning else ''}."
    ]
    basis += [*error_lines(validation, "Held out"), *further]
    for turn in validation.turns:
        basis += [f"Each {turn.what} left out in turn: {p}." for p in figure_text.error_phrases(turn.total)]
    return policy_text(
        validation.gates,
        candidates,
        [check_figures(models, candidate, validation.gates, skipped=0, seed=SEED) for candidate in candidates],
        policy_figures(held_out, validation.gates, seed=SEED),
        validated_on=VALIDATED_ON[validation.population],
        basis=basis,
        base=base,
    )
