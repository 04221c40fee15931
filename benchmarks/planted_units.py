"""Validate policies on planted bags, heads, hops and patches: `python -m benchmarks.planted_units DIR`.

The command plants the models, decides the truth of their readings, audits them, and writes `planted_units.md` and the
policies for bags, several attentions, pictures and passages to DIR. Results of single models are stored in DIR, so a
run that was stopped resumes. With `--population`, only one is planted. Large bags are audited with the gates of
`audits/bags.toml`, models of several labels with those of `audits/attentions.toml`, and pictures with those of
`audits/pictures.toml`. With `--look`, only the held-out models of one look are audited.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attnaudit.records import PolicyRemedy
from attnaudit.research.planted_units.unit_populations import POPULATIONS, PopulationName
from attnaudit.research.planted_units.unit_validation import (
    VALIDATED_ON,
    error_lines,
    policy_of,
    report,
    validate_units,
)
from attnaudit.research.validation.policy_writer import PolicyBase

PAGE = "planted_units.md"
POLICIES = Path(__file__).parents[1] / "audits"
TITLES: dict[PopulationName, str] = {
    "bags": "Bags of feature vectors",
    "large_bags": "Large bags of feature vectors",
    "attentions": "Several heads or hops of pooled attention",
    "pictures": "Vision transformers",
    "labels": "One label of several",
    "sources": "Language models that answer from passages",
}
#: How the policy for bags names large bags.
LARGE = "Held out, bags of 1,000 and 10,000 units"
#: The paragraph that explains the words of the tables.
INTRODUCTION = """\
By construction, attention is right in a *faithful* model, and unused or wrong in an *unfaithful* model. In a *graded*
model, it is right on a known share of the rows or heads: "right on at most 60%" refers to this share. If each mechanism
is left out in turn, the gates are chosen from the other models, and their errors are counted on the models that were
left out.
"""
#: Population -> the subject of its policy, the name of the policy and of its file, and what attention is over.
SUBJECTS: dict[PopulationName, tuple[str, str, str]] = {
    "bags": ("bags of feature vectors with a single attention", "bags", "vectors"),
    "attentions": ("models with several heads or hops of pooled attention", "attentions", "units"),
    "pictures": ("vision transformers", "pictures", "patches"),
    "sources": ("language models that answer from passages", "sources", "passages"),
}
WRITTEN = "`python -m benchmarks.planted_units` wrote this file. docs/planted_units.md describes the planted models."
#: Informational checks that all of these models support.
EVIDENCE = """# Evidence: these checks are reported and never gate a release.

[[check]]
name = "Pointing"
on = "logits"
severity = "report"

[[check]]
name = "PermutationFragility"
severity = "report"

[[check]]
name = "UniformFragility"
measure = "f1_drop"
severity = "report"

[[check]]
name = "Agreement"
severity = "report"
"""
#: The same for models that answer from passages.
EVIDENCE_OF_SOURCES = """# Evidence: these checks are reported and never gate a release.

[[check]]
name = "TopKDrop"
severity = "report"

[[check]]
name = "LinearDatamodellingScore"
severity = "report"

[[check]]
name = "Agreement"
importance = "leave_one_out"
severity = "report"

[[check]]
name = "Agreement"
importance = "leave_one_out"
reading = "own@layer=*,heads=*"
severity = "report"
"""


def base_of(population: PopulationName) -> PolicyBase:
    """Return what the policy of a population does not take from the validation."""
    subject, name, units = SUBJECTS[population]
    advice = "do not present attention as a reason for the prediction; show leave-one-out importance instead"
    remedy = PolicyRemedy(text=advice, families=list(VALIDATED_ON[population]), accuracy="unchanged")
    return PolicyBase(
        head=(f"# The policy for {subject}.\n# {WRITTEN}"),
        name=name,
        units=units,
        remedies={"used": [remedy], "points": [remedy], "enough": [remedy]},
        evidence=(EVIDENCE_OF_SOURCES if population == "sources" else EVIDENCE).rstrip(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder for results")
    parser.add_argument("--population", choices=POPULATIONS, action="append", help="default: all")
    parser.add_argument("--look", type=int, help="the look whose held-out models are audited (0: none; default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default: 1)")
    options = parser.parse_args()
    lines = [
        "# Planted bags, heads, hops and patches",
        "",
        "Written by `python -m benchmarks.planted_units`.",
        "",
        INTRODUCTION,
    ]
    validated = {}
    for population in options.population or POPULATIONS:
        validated[population] = found = validate_units(
            population,
            out=options.folder,
            policies=POLICIES,
            look=options.look,
            jobs=options.jobs,
            progress=lambda done, total, note: print(f"{done}/{total} {note}", flush=True),
        )
        lines += [f"## {TITLES[population]}", "", *report(found)]
    large = error_lines(validated["large_bags"], LARGE) if "large_bags" in validated else []
    for population, found in validated.items():
        if population in SUBJECTS and found.half == "held_out" and found.gates:
            policy = policy_of(found, base_of(population), large if population == "bags" else ())
            (options.folder / f"{SUBJECTS[population][1]}.toml").write_text(policy, encoding="utf-8")
    text = "\n".join(lines).rstrip() + "\n"
    (options.folder / PAGE).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
