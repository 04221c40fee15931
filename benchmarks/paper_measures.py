"""Measure the papers' measures on planted models, next to the first two gates of the default policy.

Plant the models first: `attnaudit plant --quick --out FOLDER`, with the --kind options that paper_measures.md lists.
The tables are written to paper_measures.md. docs/papers_measures.md quotes them.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.checks.base import Check
from attnaudit.checks.builtin.adversarial_divergence import AdversarialDivergence
from attnaudit.checks.builtin.agreement import Agreement
from attnaudit.checks.builtin.influence_entropy import InfluenceEntropy
from attnaudit.checks.builtin.information_ranking import InformationRanking
from attnaudit.checks.builtin.information_retained import InformationRetained
from attnaudit.checks.builtin.permutation_fragility import PermutationFragility
from attnaudit.checks.builtin.pointing import Pointing
from attnaudit.checks.builtin.token_probability import TokenProbability
from attnaudit.checks.builtin.total_effect import TotalEffect
from attnaudit.checks.builtin.uniform_fragility import UniformFragility
from attnaudit.progress import progress_bar
from attnaudit.research.study.text_tables import markdown_table
from attnaudit.research.validation.audit_population import audit_population
from attnaudit.research.validation.population_reader import read_population
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.roc import area_under_curve
from attnaudit.research.validation.validation_schema import ModelResult

HERE = Path(__file__).parent
INSTANCES = 100


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measure of a paper, or a gate of the default policy.

    Attributes:
        paper: The authors of the paper.
        title: The heading of its column.
        check: The check that computes it.
        faithful_is_low: Whether its low values are read as faithful attention.
    """

    paper: str
    title: str
    check: Check
    faithful_is_low: bool = False


MEASURES = (
    Measured(
        paper="Jain & Wallace",
        title="τ gradient",
        check=Agreement(importance="gradient", preset="jain_wallace", severity="report"),
    ),
    Measured(paper="Jain & Wallace", title="τ LOO", check=Agreement(importance="leave_one_out", severity="report")),
    Measured(paper="Jain & Wallace", title="TVD permuted", check=PermutationFragility(severity="report")),
    Measured(
        paper="Jain & Wallace",
        title="JSD adversary",
        check=AdversarialDivergence(tvd=0.01, severity="report"),
        faithful_is_low=True,
    ),
    Measured(
        paper="Meister et al.",
        title="H̃ influence",
        check=InfluenceEntropy(of="hidden", severity="report"),
        faithful_is_low=True,
    ),
    Measured(paper="Wen et al.", title="τ information", check=InformationRanking(severity="report")),
    Measured(
        paper="Tutek & Šnajder",
        title="ΔF1 permuted",
        check=PermutationFragility(measure="f1_drop", severity="report"),
    ),
    Measured(
        paper="Tutek & Šnajder", title="ΔF1 uniform", check=UniformFragility(measure="f1_drop", severity="report")
    ),
    Measured(paper="Tutek & Šnajder", title="retained", check=InformationRetained(words="frequent", severity="report")),
    Measured(paper="Tutek & Šnajder", title="p alone", check=TokenProbability(severity="report"), faithful_is_low=True),
    Measured(paper="default policy", title="S_T", check=TotalEffect(on="standardised", severity="report")),
    Measured(paper="default policy", title="points", check=Pointing(on="logits", measure="plain", severity="report")),
)


def value(result: ModelResult, check: Check) -> float | None:
    """Return the value of a check. None if it is undefined, or if the check could not be judged."""
    return next((record.value for record in result.checks if record.check == check.id), None)


def kind_table(entries: Sequence[Entry], results: dict[str, ModelResult]) -> list[str]:
    """Return a table with the median of every measure over the models of each kind."""
    kinds: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.truth, entry.mechanism, entry.kind)):
        if entry.name in results:
            kinds.setdefault(entry.kind, []).append(entry)
    rows = []
    for kind, models in kinds.items():
        fails = " and ".join(models[0].fails) if models[0].truth == "unfaithful" else ""
        cells = []
        for measure in MEASURES:
            known = [x for entry in models if (x := value(results[entry.name], measure.check)) is not None]
            cells.append(f"{statistics.median(known):.3f}".replace("-", "−") if known else "undefined")
        rows.append((kind, models[0].truth, fails, str(len(models)), *cells))
    titles = [measure.title for measure in MEASURES]
    return markdown_table(("kind", "truth", "fails", "models", *titles), rows, numeric=("models", *titles))


def area_table(entries: Sequence[Entry], results: dict[str, ModelResult]) -> list[str]:
    """Return a table with the area under the ROC curve of every measure.

    Every measure has two areas. They compare the faithful models with those that fail the question "used", and with
    those that fail "points". The papers do not distinguish the two questions. An undefined value counts as the lowest
    score.
    """
    scored = [entry for entry in entries if entry.name in results and entry.truth in ("faithful", "unfaithful")]
    rows = []
    for measure in MEASURES:
        sign = -1.0 if measure.faithful_is_low else 1.0

        def scores(chosen: Sequence[Entry], measure: Measured = measure, sign: float = sign) -> list[float]:
            found = [value(results[entry.name], measure.check) for entry in chosen]
            return [-math.inf if x is None else sign * x for x in found]

        faithful = scores([entry for entry in scored if entry.truth == "faithful"])
        areas = [
            area_under_curve(
                faithful,
                scores([entry for entry in scored if entry.truth == "unfaithful" and question in entry.fails]),
            )
            for question in ("used", "points")
        ]
        low = "low" if measure.faithful_is_low else "high"
        rows.append((measure.title, measure.paper, measure.check.id, low, *(f"{one:.2f}" for one in areas)))
    head = ("measure", "paper", "check", "read as faithful", "area, not used", "area, points wrongly")
    return markdown_table(head, rows, numeric=head[4:])


def page(entries: Sequence[Entry], results: dict[str, ModelResult], left_out: dict[str, str], instances: int) -> str:
    """Return the page."""
    kinds = " ".join(f"--kind {kind}" for kind in sorted({entry.kind for entry in entries}))
    counts = {truth: sum(entry.truth == truth for entry in entries) for truth in ("faithful", "unfaithful")}
    lines = [
        "# The papers' measures on planted models",
        "",
        f"Written by `attnaudit plant --quick --out FOLDER {kinds}`, followed by `python -m benchmarks.paper_measures "
        f"FOLDER`: {counts['faithful']} faithful and {counts['unfaithful']} unfaithful models, at most {instances} "
        "texts each. [docs/planted.md](../docs/planted.md) describes the kinds, and "
        "[docs/papers_measures.md](../docs/papers_measures.md) discusses the figures.",
        "",
        "## Does a measure separate faithful from unfaithful models?",
        "",
        "The area under the ROC curve is the probability that a faithful model looks more faithful than an",
        "unfaithful one. .5 corresponds to guessing, and a lower value is worse than guessing. The first area",
        "compares all faithful models with the models whose attention is not used. The second area compares them",
        "with the models whose attention points at the wrong words.",
        "",
        *area_table(entries, results),
        "## Medians by kind",
        "",
        *kind_table(entries, results),
    ]
    lines += [f"* {name} could not be audited: {reason}" for name, reason in left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("population", type=Path, metavar="FOLDER", help="population from `attnaudit plant`")
    parser.add_argument("--instances", type=int, default=INSTANCES, metavar="N", help="texts per model at most")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes")
    options = parser.parse_args(arguments)
    population = read_population(options.population)
    with progress_bar("measuring") as progress:
        results, left_out = audit_population(
            population.entries,
            [measure.check for measure in MEASURES],
            population=options.population,
            results=options.population / "measured",
            seed=0,
            max_instances=options.instances,
            jobs=options.jobs,
            progress=progress,
        )
    text = page(population.entries, results, left_out, options.instances)
    (HERE / "paper_measures.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
