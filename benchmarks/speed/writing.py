"""Write the results: benchmarks/speed.json, the generated part of benchmarks/README.md, and the charts."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.speed.startup import CHOOSING
from benchmarks.speed.timing import Timed

FOLDER = Path(__file__).resolve().parents[1]
JSON, PAGE, CURVES = FOLDER / "speed.json", FOLDER / "README.md", FOLDER / "speed.svg"
BEGIN, END = "<!-- speed: written by python -m benchmarks.speed -->", "<!-- end of speed -->"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "captum", "transformers")

#: Comparison -> CPU milliseconds per instance of Jain & Wallace's published code, on SST (n≈20) and on 20 Newsgroups
#: (n≈124). They were measured earlier on one thread of another machine.
PUBLISHED = {
    "forward pass": (0.4, 2.6),
    "gradient": (1.3, 16.0),
    "100 permutations": (4.8, 28.0),
    "leave-one-out by deletion": (9.7, 873.0),
    "adversary, exact against searched": (33.0, 453.0),
}
FOUR = "gradient, permutations, leave-one-out and adversary"
LABELS = ("n≈20", "n≈124")
#: The largest allowed ratio of the time of the whole audit to the time of the passes of the model.
AUDIT = 1.3


def machine() -> dict[str, Any]:
    """Return the processor and the versions of packages. The result does not identify the computer."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = named[0] if named else processor
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
    }


def plain(one: Timed) -> dict[str, Any]:
    """Return a timed comparison as a dictionary for speed.json."""
    return {**vars(one), "met": one.met}


def number(value: float) -> str:
    """Format a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_SHORT = ("forward", "forward_rows", "backward", "decode", "resume", "resumed_rows")


def passes(counts: Mapping[str, int]) -> str:
    """Format counts of passes, such as "3 f (96 rows), 2 b". README.md explains the letters."""
    words = []
    if counts.get("forward"):
        words.append(f"{counts['forward']:,} f ({counts.get('forward_rows', counts['forward']):,} rows)")
    words += [
        f"{counts[key]:,} {letter}"
        for key, letter in (("backward", "b"), ("decode", "d"), ("resume", "r"))
        if counts.get(key)
    ]
    words += [f"{n:,} {k}" for k, n in sorted(counts.items()) if k not in _SHORT]
    return ", ".join(words) or "—"


def comparison_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the table of all comparisons."""
    lines = [
        "| measure | compared with | ours, ms | theirs, ms | ratio (range; turns) | our checks, ms | differs by "
        "| our passes | their passes |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        # Of some rows, only the largest difference that was allowed is known.
        apart = f"≤{row['tolerance']:.0e}" if row["difference"] is None else f"{row['difference']:.0e}"
        lines.append(
            f"| {row['name']} | {row['rival']} | {number(row['ours_ms'])} | {number(row['theirs_ms'])} "
            f"| **{number(row['ratio'])}×** ({number(row['low'])} to {number(row['high'])}; {row['repeats']}) "
            f"| {number(row['checks_ms']) if row.get('checks_ms') else '—'} | {apart} "
            f"| {passes(row['our_passes'])} | {passes(row['their_passes'])} |"
        )
    return lines


def target_text(row: Mapping[str, Any]) -> str:
    """Format the target of a comparison, such as "≥10×"."""
    words = [f"≥{row['target']:g}×"] if row["target"] is not None else []
    words += [f"≤{row['limit_ms']:g} ms"] if row["limit_ms"] is not None else []
    return " and ".join(words)


def targets(found: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return one tuple per target: (measurement, target, measured value, whether the target is met)."""
    rows = []
    for row in found["comparisons"]:
        if row["met"] is not None:
            measured = f"{number(row['ratio'])}×, {number(row['ours_ms'])} ms"
            rows.append((f"{row['name']}: compared with {row['rival']}", target_text(row), measured, row["met"]))
    by_name = {row["name"]: row for row in found["comparisons"]}
    for place, label in enumerate(LABELS):
        if f"{FOUR}, {label}" in by_name:
            own = by_name[f"{FOUR}, {label}"]["ours_ms"]
            published = sum(PUBLISHED[name][place] for name in PUBLISHED if name != "forward pass")
            ratio = published / own
            what = f"{FOUR}, {label}: compared with the published figures ({published:,.0f} ms, another machine)"
            rows.append((what, "≥10×", f"{number(ratio)}×, {number(own)} ms", ratio >= 10))
    if found.get("audit"):
        ratio = found["audit"]["ratio"]
        rows.append(
            ("the default audit: compared with its own passes", f"≤{AUDIT:g}×", f"{ratio:.2f}×", ratio <= AUDIT)
        )
    starts = {one["command"]: one for one in found.get("startup", [])}
    for name, one in starts.items():
        if one["imports_torch"] is not None and name != CHOOSING:
            measured = f"{one['cpu']:.2f} s of CPU, imports {'torch' if one['imports_torch'] else 'no torch'}"
            rows.append((name, "well under 1 s, no torch", measured, one["cpu"] < 0.7 and not one["imports_torch"]))
    five, torch = starts.get("audit of 5 instances"), starts.get("python -c 'import torch'")
    if five and torch:
        share = torch["cpu"] / five["cpu"]
        rows.append(("audit of 5 instances: share of `import torch`", "≥50%", f"{share:.0%}", share >= 0.5))
    return rows


def published_table(found: Mapping[str, Any]) -> list[str]:
    """Return the table that compares attnaudit with the times in PUBLISHED."""
    lines = [
        "| CPU ms per instance | published, SST n≈20 | ours, n≈20 | published, 20News n≈124 | ours, n≈124 |",
        "|---|---:|---:|---:|---:|",
    ]
    first: dict[str, Mapping[str, Any]] = {}
    for row in found["comparisons"]:
        first.setdefault(row["name"], row)
    for name, figures in PUBLISHED.items():
        cells = []
        for figure, label in zip(figures, LABELS, strict=True):
            row = first.get(f"{name}, {label}")
            cells += [f"{figure:g}", number(row["ours_ms"]) if row else "—"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def page(found: Mapping[str, Any]) -> str:
    """Return the generated part of README.md."""
    where = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines = [
        BEGIN,
        "",
        f"{where['processor']}, {where['cores']} cores, one thread used; {where['date']}; {versions}.",
        "",
        "Each row compares attnaudit (“ours”) with another program (“theirs”). Times are CPU milliseconds per "
        "instance, or per row for rank statistics. The two programs take turns, and each time is the median over the"
        " turns. In each turn, their time is divided by ours. The ratio is the median of these quotients; their "
        "smallest and largest value and the number of turns follow it. A pair was timed only after a check that both"
        " programs give the same numbers. Our time is that of a call of the public engine. Both times include "
        "tokenisation, with the same tokenizer: each program starts from texts. The times of permutations and of the"
        " adversary exclude the forward pass that both need. Passes are counted in batches: f stands for forward "
        "passes, b for backward passes, d for decodes, and r for passes that resume from shared states. Our counts "
        "include the shared forward pass.",
        "",
        '"Our checks" is the time per instance in which an audit checks that the model does not change: it hashes all '
        "parameters before and after measuring, and runs a sample of the rows a second time (5% of all rows of all "
        'passes, but at least 64 rows). The user\'s own code makes no such checks, so their time is neither in "ours" '
        "nor in the ratio. They are a large share here because each measure is timed alone and on few instances: with "
        'fewer than 64 instances, all of them run a second time. In rows with "—", there are no checks, or their '
        'time is part of "ours".',
        "",
        *comparison_table(found["comparisons"]),
        "",
        *[line for reason in found.get("left_out", []) for line in (f"Left out: {reason}", "")],
        "### Targets",
        "",
        "| measurement | target | measured | |",
        "|---|---|---|---|",
        *[
            f"| {what} | {target} | {measured} | {'met' if met else '**not met**'} |"
            for what, target, measured, met in targets(found)
        ],
        "",
        "### Published figures",
        "",
        "The figures for the published code of Jain & Wallace come from another machine; ours come from this one.",
        "",
        *published_table(found),
    ]
    if found.get("audit"):
        one = found["audit"]
        lines += [
            "",
            "### The whole default audit",
            "",
            f"`pytest audits/ --model demo` on {one['instances']:,} instances takes {one['total']:.1f} CPU seconds, "
            f"without process start and imports: {one['passes']:.1f} for the passes of the model, {one['engine']:.1f} "
            f"for the rest of the measuring, and {one['rest']:.1f} for statistics, verdicts, report and pytest "
            f"(medians of {one['repeats']}). The whole audit takes {one['ratio']:.2f} times as long as its passes "
            f"({one['low']:.2f} to {one['high']:.2f}).",
        ]
    if found.get("startup"):
        lines += [
            "",
            "### Start-up",
            "",
            "Times are seconds for the whole process, including the start of the interpreter. All Python modules "
            "are already compiled. pytest loads only the plugin of attnaudit unless the command says otherwise. "
            "Without `--policy`, pytest loads the model while it collects the tests, because its family decides which "
            "of the policies in `audits/` applies.",
            "",
            "| command | wall | range | CPU | imports torch |",
            "|---|---:|---:|---:|---|",
        ]
        yes_or_no = {True: "yes", False: "no", None: ""}
        for one in found["startup"]:
            lines.append(
                f"| `{one['command']}` | {one['seconds']:.2f} | {one['low']:.2f} to {one['high']:.2f} "
                f"| {one['cpu']:.2f} | {yes_or_no[one['imports_torch']]} |"
            )
    if found.get("scaling"):
        lines += ["", "### Scaling", "", "![Time and peak memory](speed.svg)", "", *scaling_tables(found["scaling"])]
    return "\n".join([*lines, "", END])


def scaling_tables(found: Mapping[str, Any]) -> list[str]:
    """Return the tables of time and memory by text length, by number of instances and by number of heads."""
    cells = {(row["measure"], row["tokens"]): row for row in found["tokens"]}
    names = list(dict.fromkeys(name for name, _ in cells))
    lengths = sorted({tokens for _, tokens in cells})
    lines = [
        "Each cell has the CPU milliseconds for one text (for τ: for one of 50 rows), and in brackets the peak "
        "memory in MiB, minus the memory in use before.",
        "",
        f"| tokens | {' | '.join(f'{n:,}' for n in lengths)} |",
        f"|---|{'---:|' * len(lengths)}",
    ]
    for name in names:
        row = [cells.get((name, n)) for n in lengths]
        lines.append(f"| {name} | {' | '.join(_cost(one) for one in row)} |")
    if found["instances"]:
        lines += [
            "",
            "Gradient, permutations and adversary together, on texts of n≈20:",
            "",
            f"| instances | {' | '.join(format(one['instances'], ',') for one in found['instances'])} |",
            f"|---|{'---:|' * len(found['instances'])}",
            f"| CPU s (MiB) | {' | '.join(_cost(one, 1) for one in found['instances'])} |",
        ]
    if found["heads"]:
        lines += [
            "",
            "Gradient and permutations of one attention row, per text of n≈20, on a Transformer as wide as MiniLM:",
            "",
            f"| layers × heads | {' | '.join('{layers} × {heads}'.format(**one) for one in found['heads'])} |",
            f"|---|{'---:|' * len(found['heads'])}",
            f"| CPU ms (MiB) | {' | '.join(_cost(one) for one in found['heads'])} |",
        ]
    return lines


def _cost(one: Mapping[str, Any] | None, factor: int = 1000) -> str:
    if one is None:
        return "—"
    memory = "" if one["mib"] is None else f" ({one['mib']:,.0f})"
    return f"{number(one['seconds'] * factor)}{memory}"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the charts of time and memory by text length and by number of instances, and save them to `path` as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "attnaudit"
    from matplotlib import pyplot

    figure, ((time, memory), (many, held)) = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in found["tokens"]:
        series.setdefault(row["measure"], []).append(row)
    for name, rows in series.items():
        time.plot([r["tokens"] for r in rows], [r["seconds"] * 1000 for r in rows], marker="o", label=name)
        if all(r["mib"] is not None for r in rows):
            memory.plot([r["tokens"] for r in rows], [r["mib"] for r in rows], marker="o", label=name)
    rows = found["instances"]
    many.plot([r["instances"] for r in rows], [r["seconds"] for r in rows], marker="o")
    if all(r["mib"] is not None for r in rows):
        held.plot([r["instances"] for r in rows], [r["mib"] for r in rows], marker="o")
    for axes, title in ((time, "CPU ms of one text"), (memory, "peak MiB")):
        axes.set(xscale="log", yscale="log", xlabel="tokens", title=title)
    for axes, title in ((many, "CPU seconds, n≈20"), (held, "peak MiB, n≈20")):
        axes.set(xlabel="instances", title=title, ylim=(0, None))
    time.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(found: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Write speed.json and the generated part of README.md. If scaling was measured, also write the charts.

    Args:
        found: The results.
        folder: The folder to write to.
    """
    folder.joinpath(JSON.name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / PAGE.name
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    path.write_text(before + page(found) + rest.partition(END)[2], encoding="utf-8")
    if found.get("scaling"):
        draw(found["scaling"], folder / CURVES.name)


def summary(found: Mapping[str, Any]) -> Sequence[str]:
    """Return one line per target for the terminal."""
    return [
        f"{'met    ' if met else 'NOT MET'}  {what}: {measured}; target {target}"
        for what, target, measured, met in targets(found)
    ]
