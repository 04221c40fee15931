"""The pages of the gallery, in Markdown, and their pictures."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from attnaudit.formatting import number, plural
from attnaudit.research.gallery.exhibit_drawing import (
    check_svg,
    exhibit_label,
    exhibit_svg,
    gates,
    paper_svg,
    values_by_outcome,
)
from attnaudit.research.gallery.gallery_records import (
    CLOSE,
    OUTCOMES,
    CheckText,
    CheckValue,
    Exhibit,
    Gallery,
    Outcome,
    PaperExhibit,
)
from attnaudit.research.study.text_tables import escape_cell, markdown_table

#: The kinds that the first page shows, one for each of three outcomes. All three read the same kind of texts.
FIRST: dict[Outcome, str] = {"right": "cue_in_context", "unused": "decoy_in_context", "elsewhere": "next_to_the_cue"}
NOTICE = "<!-- Written by `attnaudit gallery --render`. Edit attnaudit/research/gallery/ instead. -->"
MEANING: dict[Outcome, str] = {
    "right": "The words with much attention decide the prediction. Shuffling the weights changes the prediction, and "
    "the bars of attention and effect are long in the same places.",
    "partly": "On some texts, or in some heads, the words with much attention decide; in the others, they do not.",
    "unused": "The prediction hardly depends on the weights: with shuffled weights, the output stays nearly the same.",
    "elsewhere": "The prediction depends on the weights, but not on the words with the largest weights. Other words "
    "decide: either their content is also in the states of the attended words, or their small weights suffice.",
}
#: What "partly" means if the share of the attention that is right is a share of the evidence in each text.
PART_OF_EVIDENCE = (
    "In every text, the words with much attention contribute only a part of the evidence. Other words contribute the "
    "rest, which does not depend on the weights."
)
MARKS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "undefined": "–", "informational": "·"}


def gallery_files(gallery: Gallery) -> dict[str, str]:
    """Return the files of the gallery: path relative to its folder -> content."""
    families = {check.check: check.family for check in gallery.checks}
    files = {"index.md": _index(gallery), "checks.md": _checks_page(gallery)}
    for group in gallery.of_mechanism().values():
        files[f"{_page(group[0])}.md"] = _mechanism_page(gallery, group)
    for paper in gallery.papers:
        files[f"paper-{paper.name}.md"] = _paper_page(gallery, paper)
        if paper.numbers:
            files[f"images/paper-{paper.name}.svg"] = paper_svg(paper.numbers)
    for exhibit in gallery.exhibits:
        files[_picture(exhibit)] = exhibit_svg(exhibit, families)
    for check in gallery.checks:
        if values_by_outcome(gallery, check.check):
            files[_check_picture(check)] = check_svg(gallery, check.check)
    return files


def _index(gallery: Gallery) -> str:
    right = [exhibit for exhibit in gallery.exhibits if exhibit.outcome == "right"]
    wrong = [exhibit for exhibit in gallery.exhibits if exhibit.outcome in ("unused", "elsewhere")]
    most = max(exhibit.texts for exhibit in gallery.exhibits)
    lines = [
        "# Gallery",
        "",
        NOTICE,
        "",
        "What does a report look like when attention is right, when the model does not use it, and when it points at "
        f"the wrong place? This gallery audits {plural(len(gallery.exhibits), 'planted model')}: models that were "
        "built so that it is known whether attention is right ([planted models](../planted.md)). Their mechanisms are "
        "simpler than those of ordinary models. Compare your report with them.",
        "",
        "Each picture shows one text. The blue bars are the attention weights. The orange bars are the effects: "
        "how far the logits move when the word is replaced while the weights are held fixed. Below the bars, each "
        "gate of the default policy for the model's family has a scale. The values that pass are green. "
        "The line shows the confidence interval of the model's value.",
        "",
    ]
    for outcome, kind in FIRST.items():
        exhibit = _first(gallery, outcome, kind)
        if exhibit is not None:
            lines += [f"## Attention is {OUTCOMES[outcome]}", "", MEANING[outcome], "", *_shown(exhibit), ""]
    lines += [
        "## All mechanisms",
        "",
        f"The gates pass {sum(map(_passes, right))} of {len(right)} models whose attention is right, and block "
        f"{sum(not _passes(exhibit) for exhibit in wrong)} of {len(wrong)} whose attention is unused or in the wrong "
        "place. The thresholds were chosen on models of about half of these mechanisms; [validation](../validation.md) "
        "has the error rates on the other mechanisms.",
        "",
        "A cell has a mark for each gate, in this order: “Is attention used?”, “Does it point at what matters?” and "
        "“Are the attended tokens enough?” The marks are ✓ pass, ✗ fail, ? inconclusive and – undefined. A model "
        "passes only if it passes all gates.",
        "",
        f"| mechanism | family | {' | '.join(OUTCOMES.values())} |",
        f"|---|---|{'---|' * len(OUTCOMES)}",
    ]
    for group in gallery.of_mechanism().values():
        by_outcome = {exhibit.outcome: "".join(MARKS[gate.verdict] for gate in gates(exhibit)) for exhibit in group}
        name = f"[{_title(group[0])}]({_page(group[0])}.md)"
        cells = (by_outcome.get(outcome, "") for outcome in OUTCOMES)
        lines.append(f"| {name} | {group[0].family} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Checks and papers",
        "",
        "[What the checks show](checks.md) compares the values of each check on right, unused and misplaced attention.",
        "",
        *(f"* [{paper.title}](paper-{paper.name}.md), {paper.citation}" for paper in gallery.papers),
        "",
        f"Measured with attnaudit {gallery.attnaudit} on up to {most} texts per model, with seed {gallery.seed}. "
        "`attnaudit gallery` plants and audits the models, and `attnaudit gallery --render` rebuilds these pages from "
        "`gallery.json`.",
    ]
    return _text(lines)


def _mechanism_page(gallery: Gallery, group: Sequence[Exhibit]) -> str:
    lines = [
        f"# {_title(group[0])}",
        "",
        NOTICE,
        "",
        f"Family: {group[0].family}. [How it is built](../planted.md) · [All mechanisms](index.md)",
        "",
    ]
    for exhibit in group:
        described = f": {exhibit.description}" if exhibit.description else ""
        accuracy = "" if exhibit.accuracy is None else f" Accuracy {number(exhibit.accuracy, digits=2)}."
        lines += [
            f"## {OUTCOMES[exhibit.outcome].capitalize()}: {exhibit.kind}",
            "",
            f"`{exhibit.kind}`{described}.{_where(exhibit)} By construction, attention is right on {_share(exhibit)}."
            f"{accuracy} {PART_OF_EVIDENCE if exhibit.of_evidence else MEANING[exhibit.outcome]}",
            "",
            *_shown(exhibit),
            "",
            _verdicts(exhibit),
            "",
        ]
    lines += ["## All checks", "", "The brackets give 95% intervals. [What the checks show](checks.md)", ""]
    head = ["check", *(f"{OUTCOMES[exhibit.outcome]}: {exhibit.kind}" for exhibit in group)]
    rows = []
    for check in gallery.checks:
        found = [next((one for one in exhibit.checks if one.check == check.check), None) for exhibit in group]
        if any(found):
            rows.append([check.check, *(_cell(one) for one in found)])
    return _text([*lines, *markdown_table(head, rows, numeric=head[1:])])


def _checks_page(gallery: Gallery) -> str:
    lines = [
        "# What the checks show",
        "",
        NOTICE,
        "",
        "Each chart shows the values of one check. Each dot is a planted model of the [gallery](index.md). The "
        "models are in different rows according to their attention: right, right in part, unused, or in the wrong "
        "place. If the rows do not overlap, the check can tell these models apart. If the rows overlap, the value "
        "alone does not show whether attention is right.",
        "",
    ]
    for check in gallery.checks:
        lines += [f"## {check.check}", "", *_check_section(gallery, check)]
    return _text(lines)


def _check_section(gallery: Gallery, check: CheckText) -> list[str]:
    rows = values_by_outcome(gallery, check.check)
    medians = "; ".join(
        f"{OUTCOMES[outcome]} {number(statistics.median(values), digits=2)} ({len(values)})"
        for outcome, values in rows.items()
    )
    return [
        f"{check.question} {check.how_to_read}",
        "",
        f"![{check.check} on planted models]({_check_picture(check)})",
        "",
        f"Medians (number of models): {medians}.",
        "",
    ]


def _paper_page(gallery: Gallery, paper: PaperExhibit) -> str:
    lines = [f"# {paper.title}", "", NOTICE, "", f"{paper.citation} [Gallery](index.md)", ""]
    checks = [check for check in gallery.checks if check.family in paper.families]
    if checks:
        lines += [
            "The paper introduced or used the following checks of the default policy. The charts show their values on "
            "planted models, for which it is known whether attention is right.",
            "",
        ]
        for check in checks:
            lines += [f"## {check.check}", "", *_check_section(gallery, check)]
    else:
        lines += ["The paper's checks train other models, and are not part of the gallery.", ""]
    lines += ["## The reproduction", ""]
    if paper.numbers:
        close = sum(one.is_close for one in paper.numbers)
        lines += [
            f"`attnaudit reproduce {paper.name}` measured {len(paper.numbers)} of the paper's numbers about "
            f"attention again. {close} of them differ from the paper's by at most {CLOSE:g}.",
            "",
            f"![Numbers of the paper and of the reproduction](images/paper-{paper.name}.svg)",
            "",
        ]
    else:
        lines += ["The paper gives no numbers to compare with, only figures.", ""]
    links = ", ".join(f"[{report}](../../reports/papers/{report}.md)" for report in paper.reports)
    lines += [f"Full reports: {links}. [Which of its claims hold](../../reports/papers/claims.md)"]
    return _text(lines)


def _shown(exhibit: Exhibit) -> list[str]:
    """Return the lines of the page that show the picture of an exhibit and the prediction under shuffled weights."""
    text = exhibit.text
    lines = [f"![{_alternative(exhibit_label(exhibit))}]({_picture(exhibit)})", ""]
    sentence = f"The model predicts “{text.predicted}” with a probability of {number(text.probability, digits=2)}"
    if text.shuffled is None:
        return [*lines, f"{sentence}. All weights are equal, so shuffling them changes nothing."]
    low, high = (number(value, digits=2) for value in text.shuffled)
    between = low if low == high else f"between {low} and {high}"
    if low == high == number(text.probability, digits=2):
        between = f"still {low}"
    return [*lines, f"{sentence}; with shuffled weights, it is {between}."]


def _verdicts(exhibit: Exhibit) -> str:
    """Return a sentence that says whether the gates are right about an exhibit."""
    passes = _passes(exhibit)
    if exhibit.outcome == "partly":
        return f"The gates {'pass' if passes else 'block'} this model, whose attention is right on {_share(exhibit)}."
    if passes == (exhibit.outcome == "right"):
        return "The gates pass this model, as they should." if passes else "The gates block this model, as they should."
    if passes:
        return "**The gates pass this model, although its attention is not right.**"
    return "**The gates block this model, although its attention is right.**"


def _share(exhibit: Exhibit) -> str:
    whole = "the texts" if exhibit.family == "pooled attention" else "the texts or heads"
    return f"{exhibit.share:.0%} of {'the evidence in each text' if exhibit.of_evidence else whole}"


def _passes(exhibit: Exhibit) -> bool:
    return all(gate.verdict == "pass" for gate in gates(exhibit))


def _where(exhibit: Exhibit) -> str:
    if not exhibit.reading:
        return f" Encoder: {exhibit.encoder}." if exhibit.encoder else ""
    return (
        f" Reading: `{exhibit.reading}` of a {exhibit.encoder} model." if exhibit.encoder else f" `{exhibit.reading}`."
    )


def _cell(result: CheckValue | None) -> str:
    if result is None or result.value is None:
        return "—"
    interval = "" if result.low is None else f" [{number(result.low, digits=2)}, {number(result.high, digits=2)}]"
    mark = f"{MARKS[result.verdict]} " if result.threshold is not None else ""
    return f"{mark}{number(result.value, digits=2)}{interval}"


def _first(gallery: Gallery, outcome: Outcome, kind: str) -> Exhibit | None:
    of_outcome = [exhibit for exhibit in gallery.exhibits if exhibit.outcome == outcome]
    return next((exhibit for exhibit in of_outcome if exhibit.kind == kind), next(iter(of_outcome), None))


def _title(exhibit: Exhibit) -> str:
    name = exhibit.mechanism.replace("_", " ")
    return f"{name[:1].upper()}{name[1:]}"


def _page(exhibit: Exhibit) -> str:
    prefix = "" if exhibit.family == "pooled attention" else "transformer-"
    return prefix + re.sub(r"\W+", "-", exhibit.mechanism.replace("_", " ").lower())


def _picture(exhibit: Exhibit) -> str:
    return f"images/{_page(exhibit)}-{exhibit.outcome}.svg"


def _check_picture(check: CheckText) -> str:
    return f"images/check-{re.sub(r'[^a-z0-9]+', '-', check.check)}.svg"


def _alternative(text: str) -> str:
    return escape_cell(text).replace("[", "(").replace("]", ")")


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"
