"""Format the numbers and texts of a reproduction. The terminal, the Markdown page and the HTML page share them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attnaudit.formatting import duration, number, plural
from attnaudit.records import Environment
from attnaudit.research.reproduction.corpora import EMBEDDED, corpus_title
from attnaudit.research.reproduction.paper_report import (
    NOT_IN_PAPER,
    ClaimVerdict,
    Finding,
    Line,
    OpenCause,
    Reproduction,
    Row,
    Table,
)
from attnaudit.research.reproduction.results.row_exclusions import TOLERANCE
from attnaudit.research.reproduction.verdicts_on_claims.closeness import Closeness, closeness_of_rows

CLAIMS = "The paper's claims, and whether they hold here"
REMEDIES = "What may help when a model hardly uses its attention"
EXCLUDED = "Rows that do not count"
EXCLUDED_HEAD = ("row (tables)", "reason")
#: How to read the columns of the tables.
COLUMNS = (
    "Each table shows the paper's number (or, if the column says so, that of another paper), ours (mean ± standard "
    "deviation over seeds), and the difference. The column n is the number of texts from which our number was "
    "computed, or of whatever else the quantity names, such as models."
)
#: The rules for verdicts, one item of a list each. Words between asterisks are emphasised.
RULES = "How claims are judged"
VERDICTS = (
    "A row *counts* if all of its planned seeds were run and its models were trained well enough.",
    f"A model was trained well enough if its accuracy or F1 is at most {TOLERANCE:g} away from the paper's on average "
    f"over the seeds, and at most {2 * TOLERANCE:g} below it for every seed. A much higher score may show that the "
    "task is not the paper's, as on corpora that were generated again. If the paper has no score for a model, it is "
    "compared with a model of the same corpus and encoder that has one. In tables about what a change does to the "
    "score, such as uniform weights or an adversary's loss, only the original model must reach it; in tables that "
    "compare other measures of two models, both must.",
    "Seeds that were added to a row after the plan are *dropped*: no number includes them.",
    f"If the paper leaves a corpus out of a table, the corpus is marked as *{NOT_IN_PAPER}*. Its rows are shown, but "
    "no claim about this table uses them.",
    "Claims are judged by confidence intervals over seeds. The intervals of a claim are corrected for their number by "
    "Holm's method. A row with a single seed has no interval. The intervals show how much seeds differ on the same "
    "test texts. With other test texts, the numbers could differ more.",
    "Some rows got new seeds after their results had been seen, once at most. If the claim had been *judged before*, "
    "the chance that it is decided wrongly is up to 10% instead of 5%.",
    "A claim *holds* if the intervals of all rows that count support it.",
    "A claim *does not hold* if the interval of at least one row that counts contradicts it.",
    "A claim is *undecided* in all other cases. A claim that all intervals support is still undecided if a row with a "
    "single seed contradicts it, or if the rows that do not count because of their scores outnumber the rows that "
    "count. If the claim is about scores, one row that does not count because of its score is enough.",
    "A claim is *saturated* if, in all rows that count, both compared numbers are at the same end of their scale.",
    "A claim is *not run* if no row that it needs was run.",
    "Some claims are about the share of settings that support them. The whole interval of this share must be above one "
    "half.",
    "The rules in full are in docs/reproduction.md, in the repository of attnaudit.",
)
OPEN = "Why claims are undecided, and what would decide them"
OPEN_HEAD = ("cause", "claims", "what would decide them")
#: Cause -> its description, and what would decide the claim.
CAUSES: Mapping[OpenCause, tuple[str, str]] = {
    "untrained": (
        "Rows were run, but none counts: in one or more rows, the score of a model is too far from the paper's",
        "models that reach the paper's score, from the paper's word vectors and full training data; more seeds do not "
        "help",
    ),
    "unfinished": (
        "Rows were run, but none counts: planned seeds or recorded scores are missing",
        "running the rows to the end, without any other change",
    ),
    "unpaired": (
        "Rows count, but none of them can be compared as the claim requires",
        "further rows of the same corpora",
    ),
    "intervals": (
        "An interval of a row that counts contains 0",
        "more seeds, planned before the run; a row gets new seeds at most once",
    ),
    "one seed": (
        "A row that counts has a single seed, and no row with several seeds decides the claim, or the value of the "
        "single seed contradicts it",
        "more seeds of this row, planned before the run",
    ),
    "share": (
        "The claim is about the share of settings that support it, and the interval of this share contains one half",
        "further settings, such as other corpora; more seeds do not help",
    ),
    "correction": (
        "Each interval excludes 0 on its own, but not after Holm's correction",
        "more seeds, planned before the run",
    ),
    "left out": (
        "All intervals that count support the claim, but the rows that do not count because of their scores outnumber "
        "the rows that count",
        "models that reach the paper's score, or more rows",
    ),
    "scores": (
        "The claim is about scores, and some of its rows do not count because of their scores",
        "models that reach the paper's score",
    ),
}
SYMBOLS = "Symbols"
SYMBOLS_HEAD = ("symbol", "meaning")
INDEX = "Reproduced papers, and which of their claims hold"
#: The columns of the table are repeated for each group of rows.
CLOSENESS_GROUPS = ("all measured rows", "rows that count")
CLOSENESS_COLUMNS = ("cells", "Spearman ρ", "median absolute difference")
CLOSENESS_HEAD = (
    "quantity",
    *(f"{column}, {group}" for group in CLOSENESS_GROUPS for column in CLOSENESS_COLUMNS),
)
PAGES = (
    "`attnaudit reproduce --render` rebuilds this page from the stored results, and one page with figures for each "
    "paper. These pages open offline ([index](pages/index.html)):"
)
GOALS = "How close our numbers should be to the papers', and whether they are"
GOALS_TEXT = (
    "These goals were set before the present runs. Some settings were changed after earlier runs had missed a goal; "
    "docs/reproduction.md lists them. Unless stated otherwise, only rows that count for claims are compared. The "
    "margin after ± is that of the 95% prediction interval for one more seed, around the mean of our seeds: if the "
    "paper trained a single model, a difference within the margin may come from its seed. The margin is wide if there "
    "are few seeds. An order is met if the intervals of all differences between neighbours are above 0, and undecided "
    "if only the means have it."
)
GOALS_HEAD = ("report", "goal", "result", "numbers")
CLAIMS_HEAD = ("claim", "verdict", "reason and evidence")


def setting(report: Reproduction) -> str:
    """Return what distinguishes a report from other reports on the same paper, such as "Embeddings: random"."""
    quick = "QUICK: not a reproduction. " if report.quick else ""
    sentences = ", packaged sentences" if EMBEDDED in report.data else ""
    return f"{quick}Embeddings: {report.vectors.name if report.vectors else 'random'}{sentences}"


#: Verdict on a claim -> the verb phrase after "1", and after any other number.
_VERDICTS_OF_CLAIMS: dict[ClaimVerdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "saturated": ("is saturated", "are saturated"),
    "not run": ("was not run", "were not run"),
}


def verdicts_in_short(report: Reproduction) -> str:
    """Return a sentence with the number of the paper's claims that have each verdict.

    Claims that are not the paper's are left out, as on the index. The result is "" if there is no claim.
    """
    counts = Counter(one.verdict for one in report.findings if not one.ours)
    verbs = {one: of[counts[one] > 1] for one, of in _VERDICTS_OF_CLAIMS.items() if counts[one]}
    if not verbs:
        return ""
    if len(verbs) == 1:
        ((one, verb),) = verbs.items()
        claims = "The claim" if counts[one] == 1 else f"All {counts[one]} claims"
        return f"{claims} of the paper {verb}."
    *others, last = [f"{counts[one]} {verb}" for one, verb in verbs.items()]
    return f"Of the paper's {counts.total()} claims, {', '.join(others)} and {last}."


def paper_heading(report: Reproduction) -> str:
    """Return the title of all reports on a paper. For a quick run, the title says so."""
    quick = "QUICK: not a reproduction. " if report.quick else ""
    return f"{quick}Reproduction of “{report.title}”"


def heading(report: Reproduction) -> str:
    """Return the title of a report. It names the word vectors, if any, and says whether the run was quick."""
    vectors = f" with {report.vectors.name} word vectors" if report.vectors else ""
    return f"{paper_heading(report)}{vectors}"


def head(table: Table) -> tuple[str, str, str, str, str]:
    """Return the names of the columns of a table."""
    return ("quantity", table.compared_with, "ours", "difference", "n")


def closeness_heading(table: Table) -> str:
    """Return the heading of the comparison of our numbers with the published ones."""
    return f"How close our numbers are to the {table.compared_with}'s"


def row_title(table: Table, row: Row) -> str:
    """Return the title of a row in its table, and whether the paper leaves out its corpus."""
    return f"{row.title} ({NOT_IN_PAPER})" if row.corpus in table.left_out else row.title


def cells(line: Line) -> tuple[str, str, str, str, str]:
    """Return the cells of one line of a table, one cell for each column of `head`."""
    return (
        line.words,
        paper_number(line),
        our_number(line),
        difference(line),
        "—" if line.n is None else f"{line.n:,}",
    )


def verdict_text(finding: Finding) -> str:
    """Return the reason for the verdict on a claim, its evidence and the number of rows that do not count."""
    evidence = f"{finding.evidence.rstrip('.')}." if finding.evidence else ""
    parts = (finding.reason, evidence, not_counted(finding), seeds_needed(finding), judged_again(finding))
    return " ".join(filter(None, parts))


def evidence_parts(finding: Finding) -> tuple[str, list[str]]:
    """Split the evidence of a claim.

    Returns:
        The description of the numbers, as a sentence, and one text for each row or comparison. The sentence is "" if
        the evidence has no description.
    """
    what, found, listed = finding.evidence.partition(". ")
    # A semicolon in parentheses or brackets does not separate rows.
    rows = re.split(r"; (?![^(\[]*[)\]])", (listed if found else finding.evidence).rstrip("."))
    return (f"{what}." if found else "", [row for row in rows if row])


def not_counted(finding: Finding) -> str:
    """Return how many rows were run but do not count, as a sentence.

    It is "" if all count. It is also "" if none counts, because the reason for the verdict then says so.
    """
    count = len(finding.left_out) if finding.evidence else 0
    return f"{plural(count, 'row')} {'does' if count == 1 else 'do'} not count." if count else ""


def seeds_needed(finding: Finding) -> str:
    """Return a sentence about the number of seeds that would decide a claim.

    It is "" if the number is not known, or if the rows have had new seeds already: a row gets new seeds once.
    """
    if finding.seeds_needed is None or finding.again:
        return ""
    return f"About {finding.seeds_needed} seeds would decide this claim, if means and spreads stay the same."


def judged_again(finding: Finding) -> str:
    """Return a sentence if a claim was judged a second time. It is "" for other claims."""
    return "This claim was judged before, with other seeds." if finding.again else ""


def open_claims(reports: Iterable[Reproduction]) -> list[tuple[str, str, str]]:
    """Return rows with the causes of undecided claims, the most frequent first. OPEN_HEAD names the columns."""
    found = [one for report in reports for one in report.findings if not one.ours]
    counts = Counter(one.cause for one in found if one.cause is not None)
    return [(f"{CAUSES[cause][0]}.", str(count), CAUSES[cause][1]) for cause, count in counts.most_common()]


def rests_on_one_row(reports: Iterable[Reproduction]) -> str:
    """Return how many of the claims that hold rest on a single row or pair of rows, or were judged twice.

    The text is "" if no claim holds.
    """
    holding = [one for report in reports for one in report.findings if not one.ours and one.verdict == "holds"]
    alone = sum(one.alone for one in holding)
    if not holding:
        return ""
    rest = "rests" if alone == 1 else "rest"
    text = (
        f"Of the {plural(len(holding), 'claim')} that hold, {alone} {rest} on a single row or pair of rows, and may "
        "not hold in others."
    )
    again = sum(one.again for one in holding)
    if again:
        text += f" {again} {'was' if again == 1 else 'were'} judged before, with other seeds."
    return text


def goal_cells(stem: str, report: Reproduction) -> list[tuple[str, str, str, str]]:
    """Return rows that say which goals a report meets. GOALS_HEAD names the columns.

    Args:
        stem: The file name of the report, without extension.
        report: The report.
    """
    return [(stem, goal.sentence, goal.verdict, goal.numbers) for goal in report.goals]


def excluded_rows(report: Reproduction) -> list[tuple[str, str]]:
    """Return the measured rows that do not count.

    Returns:
        Pairs of rows and reason, such as ("sst/bilstm/additive (agreement, permutation)", "accuracy 0.700; …"). Rows
        of several tables with the same name and reason share a pair.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for table in report.tables:
        for row in table.rows:
            if row.excluded:
                found.setdefault((row.name, row.excluded), []).append(table.name)
    return [(f"{name} ({', '.join(tables)})", reason) for (name, reason), tables in found.items()]


def closeness_cells(table: Table) -> list[tuple[str, ...]]:
    """Return rows that show how close a table's numbers are to the paper's, first over all quantities, then for each.

    Returns:
        Rows with the columns of CLOSENESS_HEAD. The list is empty if no measured cell has a number in the paper.
    """
    return [
        (
            one.quantity or ("median of the quantities" if one.median else "all quantities"),
            *_closeness(one.every),
            *_closeness(one.counted),
        )
        for one in closeness_of_rows(table.rows, left_out=table.left_out)
    ]


def closeness_rows(table: Table) -> list[tuple[str, ...]]:
    """Return the rows of `closeness_cells`, with descriptions of the quantities instead of their names."""
    labels = {line.quantity: line.alone for row in table.rows for line in row.lines}
    return [(labels.get(name, name), *numbers) for name, *numbers in closeness_cells(table)]


def _closeness(found: Closeness) -> tuple[str, str, str]:
    return (
        str(found.cells),
        "—" if found.spearman is None else number(found.spearman, digits=2, exponent=False),
        "—" if found.median_difference is None else number(found.median_difference, exponent=False),
    )


def paper_number(line: Line) -> str:
    """Return the number of the paper as text, or "—" if there is none."""
    return "—" if line.paper is None else number(line.paper, digits=line.digits, exponent=False)


def our_number(line: Line) -> str:
    """Return the measured mean and its standard deviation over seeds, such as "0.351 ± 0.012".

    The deviation is left out if the value is defined for only one seed. The text is "undefined" if the value is defined
    for no seed. If the value is undefined for some seeds, the text gives the number of these seeds.
    """
    if line.ours is None:
        return "undefined"
    undefined = sum(value is None for value in line.values)
    note = f" ({undefined} of {len(line.values)} seeds undefined)" if undefined else ""
    deviation = "" if line.std is None else f" ± {number(line.std, digits=line.digits, exponent=False)}"
    return f"{number(line.ours, digits=line.digits, exponent=False)}{deviation}{note}"


def difference(line: Line) -> str:
    """Return the measured number minus the number of the paper, with its sign. Return "—" if either is missing.

    A difference that is rounded to zero has no sign.
    """
    if line.difference is None:
        return "—"
    text = f"{line.difference:+.{line.digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def how_measured(row: Row) -> str:
    """Return how a row was measured, such as "3 seeds; at most 500 test texts audited; training 3 min, audit 1 min".

    For a row that was not measured, return the reason. Scores such as F1 are computed from all test texts.
    """
    made = row.provenance
    if made is None:
        return row.missing
    audited = made.instances and any(line.n is None or line.n <= made.instances for line in row.lines)
    texts = f"; at most {made.instances:,} test texts audited" if audited else ""
    times = f"training {duration(made.training_seconds)}, audit {duration(made.audit_seconds)}"
    planned = "" if made.seed_plan is None else " (planned)"
    return f"{plural(len(made.seeds), 'seed')}{planned}{texts}; {times}"


def missing_rows(table: Table) -> list[tuple[str, list[str]]]:
    """Return the rows without quantities, grouped by reason.

    Returns:
        Pairs of a reason, as a sentence, and the names of its rows.
    """
    grouped: dict[str, list[str]] = {}
    for row in table.rows:
        if not row.lines:
            grouped.setdefault(row.missing.rstrip(".") + ".", []).append(row.name)
    return list(grouped.items())


def measured_rows(table: Table) -> list[Row]:
    """Return the rows that have quantities."""
    return [row for row in table.rows if row.lines]


def made_with(report: Reproduction) -> str:
    """Return the versions of Python and of packages in the last run, and its machine."""
    return _described(report.environment)


def _described(environment: Environment) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return f"Python {environment.python}, {packages}; {environment.platform}, {environment.processor}"


def made_elsewhere(report: Reproduction) -> list[tuple[str, list[str]]]:
    """Return the rows that were measured on another machine, or with other versions, than the last run.

    Rows whose environment was not recorded are left out.

    Returns:
        Pairs of an environment, described as in `made_with`, and the tables with their rows.
    """
    grouped: dict[str, dict[str, list[str]]] = {}
    for table in report.tables:
        for row in table.rows:
            made = row.provenance.environment if row.provenance else None
            if made is not None and made != report.environment:
                grouped.setdefault(_described(made), {}).setdefault(table.name, []).append(row.name)
    return [
        (described, [f"{table} ({', '.join(names)})" for table, names in tables.items()])
        for described, tables in grouped.items()
    ]


def texts_of(report: Reproduction) -> list[str]:
    """Return the number of texts of each corpus that has measured rows, such as "SST: 6,355 train, 821 dev"."""
    shown = {row.corpus for table in report.tables for row in measured_rows(table)}
    return [f"{corpus_title(name)}: {sizes(parts)}" for name, parts in report.data.items() if name in shown]


def sizes(parts: dict[str, int]) -> str:
    """Return the number of texts in each part, such as "6,355 train, 821 dev, 1,725 test"."""
    return ", ".join(f"{count:,} {part}" for part, count in parts.items())


def commands(report: Reproduction) -> list[str]:
    """Return the commands that measured the rows, in the order of the rows and without duplicates."""
    typed: Sequence[str] = [row.provenance.command for table in report.tables for row in table.rows if row.provenance]
    return list(dict.fromkeys(typed))
