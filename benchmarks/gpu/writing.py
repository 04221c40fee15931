"""Write the results: benchmarks/gpu.json and benchmarks/gpu.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.speed import device
from benchmarks.speed import writing as speed

JSON, PAGE = speed.FOLDER / "gpu.json", speed.FOLDER / "gpu.md"
Results = Sequence[dict[str, Any]]


def machine() -> dict[str, Any]:
    """Return the GPU, the processor and the versions of packages. The result does not identify the computer."""
    gpu = torch.cuda.get_device_name() if device.on_gpu() else ""
    return {**speed.machine(), "threads": torch.get_num_threads(), "gpu": gpu}


def store(found: dict[str, Any]) -> None:
    """Write the results so far. Parts that were not measured keep their stored results."""
    stored = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else {}
    text = json.dumps({**stored, **found}, ensure_ascii=False, indent=1)
    JSON.write_text(f"{text}\n", encoding="utf-8")


def write() -> None:
    """Write the page from the stored results."""
    PAGE.write_text(page(json.loads(JSON.read_text(encoding="utf-8"))), encoding="utf-8")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table. All columns but the first are aligned on the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _rates(found: Results) -> list[str]:
    rows = [
        (
            f"{one['model']}: {one['measure']}",
            f"{one['rate']:,.0f}",
            f"{one['of_predicting']:.2f}",
            f"{one['alone']:,.1f}",
            f"{one['rate'] / one['alone']:,.0f}×",
        )
        for one in found
    ]
    return [
        f"Instances per second of each measure, on {found[0]['instances']:,} sentences, with the checks that the "
        "model does not change. “of predicting” is this speed divided by that of prediction alone. “one at a time” is "
        "the speed of a loop that measures one instance at a time.",
        *table(("measure", "instances/s", "of predicting", "one at a time", "ratio"), rows),
    ]


def _speed(found: Results) -> list[str]:
    measured = [one for one in found if "left_out" not in one]
    return [
        "Both programs compute on the GPU, without TF32. They take turns. Times are milliseconds of wall time per "
        "instance, until the GPU has finished; each is the median over the turns. The rest is as in the table of "
        "[benchmarks/README.md](README.md#speed), except that the batches of both programs and the numbers of "
        "instances are larger.",
        "",
        *speed.comparison_table(measured),
        "",
        *(f"Left out: {one['name']}, {one['left_out']}\n" for one in found if "left_out" in one),
        *table(
            ("target", "wanted", "measured", ""),
            [
                (
                    f"{one['name']}: compared with {one['rival']}",
                    speed.target_text(one),
                    f"{speed.number(one['ratio'])}×, {speed.number(one['ours_ms'])} ms",
                    "met" if one["met"] else "**not met**",
                )
                for one in measured
                if one["met"] is not None
            ],
        ),
    ]


def _parts(found: Results) -> list[str]:
    rows = [
        (
            f"{one['instances']:,} texts of {one['texts']}",
            f"{one['tokens']:,}",
            *(f"{1000 * one[name]:.1f}" for name in ("tokenizer", "passes", "encoding")),
            f"{1000 * (one['tokenizer'] + one['passes'] + one['encoding']):.1f}",
        )
        for one in found
    ]
    return [
        "Milliseconds of the parts of a forward pass of BERT, each measured alone. “Tokenizer” is its call, and "
        f"“passes” are those of the unmodified model in batches of {found[0]['batch']}. Both programs need these two. "
        "“Encoding” is what attnaudit does with the tokenizer's results: special tokens, words, strings and hashes.",
        *table(("texts", "tokens", "tokenizer", "passes", "encoding", "sum"), rows),
    ]


def _memory(found: Results) -> list[str]:
    rows = [
        (
            f"{one['model']}: {one['reading']}",
            f"{1000 * one['seconds']:.0f}",
            f"{one['before']:,.0f}",
            f"{one['peak']:,.0f}",
            f"{one['times_plain']:.2f}",
        )
        for one in found
    ]
    return [
        f"One pass over a text of {found[0]['tokens']:,} tokens, in which the attention of a reading is recorded. The "
        "models have the sizes of MiniLM. “plain” is a pass of the unmodified model with sdpa. The readings are those "
        "of [attention of long texts](README.md#attention-of-long-texts). Memory is that of all tensors: before the "
        "pass (the model, and the workspace of cuBLAS), and its largest value during the pass. The wanted ratio is at "
        "most 1.3.",
        *table(("pass", "ms", "before, MiB", "largest, MiB", "times plain"), rows),
    ]


def _rows(found: Results) -> list[str]:
    rows = [(f"{one['model']}, {one['texts']}", f"{one['weights']:.1e}", f"{one['logits']:.1e}") for one in found]
    return [
        "The model runs with its shipped kernel, and the attention rows of the first, the middle and the last token "
        "are recomputed, in every layer and head. They are compared with those of the eager model in float32. Wanted: "
        "at most 1e-5.",
        *table(("model", "weights", "logits"), rows),
    ]


def _billion(found: Results) -> list[str]:
    first, *others = found
    rows = [
        (
            f"{one['policy']}, {one['texts']}",
            f"{one['instances']:,}",
            f"{one['rate']:,.1f}",
            f"{one['peak']:.2f}",
        )
        for one in others
    ]
    return [
        f"A Llama with {first['parameters'] / 1e9:.2f} billion parameters in bfloat16 ({first['gib']:.2f} GiB), with "
        f"random weights. Wrapping it takes {first['building']:.1f} s, and the conformance checks before an audit take "
        f"{first['conformance']:.1f} s. They report: “{first['sentence']}”. The times include the checks that the "
        "model does not change.",
        *table(("measures", "instances", "instances/s", "largest memory, GiB"), rows),
    ]


def _experiments(found: Results) -> list[str]:
    columns = ("plain", "graph", "compiled", "pinned", "capture", "compiling")
    rows = [
        (one["experiment"], *(f"{one[name]:.2f}" if name in one else "" for name in columns))
        for one in found
        if "refused" not in one
    ]
    return [
        "Milliseconds of a pass of the model as it is, of a replay of its CUDA graph, and after `torch.compile`; of "
        "capturing the graph and of compiling; and of a copy to the GPU, from normal and from pinned memory.",
        *table(("experiment", *columns), rows),
        *(
            f"{one['experiment']}: no graph, because capturing it failed ({one['refused']}).\n"
            for one in found
            if "refused" in one
        ),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Results], list[str]]]] = {
    "speed": ("Speed", _speed),
    "parts": ("Parts of a forward pass", _parts),
    "rates": ("Instances per second", _rates),
    "memory": ("Memory of long texts", _memory),
    "rows": ("Recomputed rows", _rows),
    "billion": ("A model with a billion parameters", _billion),
    "experiments": ("Experiments", _experiments),
}


def page(found: dict[str, Any]) -> str:
    """Return the page with the tables of these results."""
    where = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines = [
        "# On a GPU",
        "",
        "<!-- written by python -m benchmarks.gpu -->",
        "",
        f"{where['gpu'] or 'CPU'}; {where['processor']}, {where['cores']} cores; {where['date']}; {versions}.",
    ]
    for name, (title, section) in SECTIONS.items():
        if found.get(name):
            lines += ["", f"## {title}", "", *section(found[name])]
    text = "\n".join(lines).strip()
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return f"{text}\n"
