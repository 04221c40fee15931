"""Audit public models whose target is not a class, and write docs/public_targets.md.

    python -m benchmarks.public_targets FOLDER

FOLDER holds clones of the repositories (see `REPOSITORIES`), whose files are imported unchanged. The models are small,
with random weights from a configuration. The logits of the target, the attention, and the target's probability without
each token are compared with plain PyTorch code on an untouched copy of the model, which does not use attnaudit.

Shapes: C classes.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT
from attnaudit.checks import Pointing, TotalEffect
from attnaudit.conformance import full
from attnaudit.data import load
from attnaudit.engine.batches.logits import probabilities
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.targets import Target
from benchmarks.public_adapters import SMALL, WIDE, draw_weights, imported_from
from benchmarks.public_models import TOLERANCE, largest_of
from benchmarks.public_units import require_close
from tests.architectures import tokenizer as small_tokenizer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "public_targets.md"
#: Texts that are measured, and texts that are compared with plain PyTorch code.
MEASURED, COMPARED = 32, 6
TOXIC = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
QUESTION = "what is the film about"

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTarget:
    """A public model with a target.

    Attributes:
        name: The class of the model.
        repository: Owner and name of the repository on GitHub.
        commit: The commit that was audited.
        licence: The licence of the repository.
        what: The kind of model, and its target.
        build: Builds the model and its tokenizer, with the classes of the repository.
        adapt: Given the model and its tokenizer -> the adapter. Its lines are counted.
        plain: (model, batch of one row, positions of the target in the row) -> the class probabilities (C,) in float64,
            without attnaudit.
        inner: The Transformers model inside.
        root: The folder from which the file is imported, relative to the clone.
        query: The query of every text; "" for a model that reads one text.
        reads_types: Whether the model passes token types to the Transformers model inside.
    """

    name: str
    repository: str
    commit: str
    licence: str
    what: str
    build: Callable[[], tuple[Any, Any]]
    adapt: Callable[[Any, Any], Any]
    plain: Callable[[Any, Batch, tuple[int, ...]], Tensor]
    inner: Callable[[Any], Any]
    root: str = "."
    query: str = ""
    reads_types: bool = True


def _configuration(tokenizer: Any, sizes: Mapping[str, Any], **settings: Any) -> Any:
    return transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes, **settings)


def _binary(logit: Tensor) -> Tensor:
    return torch.stack([torch.sigmoid(-logit.double()), torch.sigmoid(logit.double())])


# -- a multi-label classifier ----------------------------------------------------------------------------------------


def build_detoxify() -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    model = transformers.BertForSequenceClassification(_configuration(tokenizer, SMALL, num_labels=len(TOXIC)))
    with TemporaryDirectory(prefix="attnaudit-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        arguments = {
            "model_type": folder,
            "model_name": "BertForSequenceClassification",
            "tokenizer_name": "PreTrainedTokenizerFast",
            "num_classes": len(TOXIC),
        }
        settings = {"dataset": {"args": {"classes": TOXIC}}, "arch": {"args": arguments}}
        checkpoint = Path(folder) / "checkpoint.ckpt"
        torch.save({"config": settings, "state_dict": model.state_dict()}, checkpoint)
        detoxify = importlib.import_module("detoxify").Detoxify(checkpoint=str(checkpoint))
    return detoxify, detoxify.tokenizer


def adapt_detoxify(model: Any, tokenizer: Any) -> Any:
    return transformer(model.model, tokenizer, classes=model.class_names, target=Target(kind="label", name="insult"))


def plain_detoxify(model: Any, batch: Batch, _positions: tuple[int, ...]) -> Tensor:
    return _binary(model.model(**batch)[0][0, model.class_names.index("insult")])


# -- a reranker ------------------------------------------------------------------------------------------------------


def build_reranker() -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    model = transformers.BertForSequenceClassification(_configuration(tokenizer, SMALL, num_labels=1))
    with TemporaryDirectory(prefix="attnaudit-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoder = importlib.import_module("sentence_transformers").CrossEncoder(folder, device="cpu")
    return encoder, encoder.tokenizer


def adapt_reranker(model: Any, tokenizer: Any) -> Any:
    return transformer(model, tokenizer, target=Target(kind="score", scale=0.5), query_first=True)


def plain_reranker(model: Any, batch: Batch, _positions: tuple[int, ...]) -> Tensor:
    return _binary(model.model(**batch).logits[0, 0] / 0.5)


# -- a tagger --------------------------------------------------------------------------------------------------------


def build_tagger() -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    with TemporaryDirectory(prefix="attnaudit-") as folder:
        transformers.BertModel(_configuration(tokenizer, WIDE)).save_pretrained(folder)
        with mock.patch.dict("sys.modules", {"config": SimpleNamespace(BASE_MODEL_PATH=folder)}):
            return importlib.import_module("model").EntityModel(num_tag=5, num_pos=3), tokenizer


def adapt_tagger(model: Any, tokenizer: Any) -> Any:
    def tags(module: Any, inputs: Any) -> Any:
        ids, mask, types = (inputs.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
        return module(ids, mask, types, target_pos=ids * 0, target_tag=ids * 0)[0]

    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    return transformer(model, tokenizer, classes=names, logits=tags, target=Target(kind="tag"))


def plain_tagger(model: Any, batch: Batch, positions: tuple[int, ...]) -> Tensor:
    ids = batch["input_ids"]
    tag, _, _ = model(ids, batch["attention_mask"], batch["token_type_ids"], ids * 0, ids * 0)
    probability: Tensor = tag[0, positions[0]].double().softmax(0)
    return probability


# -- extractive question answering -----------------------------------------------------------------------------------


def build_answerer() -> tuple[Any, Any]:
    module = importlib.import_module("question_answering.models.tiny_bert")
    tokenizer = small_tokenizer("wordpiece")
    with mock.patch.object(module, "BertConfig", return_value=_configuration(tokenizer, WIDE)):
        return module.BertForQuestionAnswering(), tokenizer


def adapt_answerer(model: Any, tokenizer: Any) -> Any:
    return transformer(model, tokenizer, target=Target(kind="span"))


def plain_answerer(model: Any, batch: Batch, positions: tuple[int, ...]) -> Tensor:
    start, end = model(batch["input_ids"], batch["attention_mask"])
    p = start[0].double().softmax(0)[positions[0]] * end[0].double().softmax(0)[positions[1]]
    return torch.stack([1 - p, p])


REPOSITORIES = (
    PublicTarget(
        name="Detoxify",
        repository="unitaryai/detoxify",
        commit="d5376446b6accee5dd2d346f2d3050f9d8a69af1",
        licence="Apache-2.0",
        what="a multi-label classifier of six labels; the label `insult`",
        build=build_detoxify,
        adapt=adapt_detoxify,
        plain=plain_detoxify,
        inner=lambda model: model.model.bert,
    ),
    PublicTarget(
        name="CrossEncoder",
        repository="UKPLab/sentence-transformers",
        commit="85ec64559f4414aa536eca4bf53538291e0a333f",
        licence="Apache-2.0",
        what="a reranker with one logit; the score, without a threshold",
        build=build_reranker,
        adapt=adapt_reranker,
        plain=plain_reranker,
        inner=lambda model: model.model.bert,
        query=QUESTION,
    ),
    PublicTarget(
        name="EntityModel",
        repository="abhishekkrthakur/bert-entity-extraction",
        commit="178ef0ebc16e5250b7dec786fe147225a62505a0",
        licence="none stated",
        what="a tagger that also returns parts of speech and a loss; the tag of a word",
        build=build_tagger,
        adapt=adapt_tagger,
        plain=plain_tagger,
        inner=lambda model: model.bert,
        root="src",
    ),
    PublicTarget(
        name="BertForQuestionAnswering",
        repository="akoshel/QuestionAnswering",
        commit="c33ac39945947df880f0d390fddfd0e0daf9dda8",
        licence="none stated",
        what="extractive question answering; the span that the model predicts",
        build=build_answerer,
        adapt=adapt_answerer,
        plain=plain_answerer,
        inner=lambda model: model.bert,
        query=QUESTION,
        reads_types=False,
    ),
)


def texts_of(public: PublicTarget) -> tuple[Instance, ...]:
    """Return packaged review sentences of 4 to 10 words, with a query if the model reads one, and a position if not."""
    rows = [one for one in load("movie-reviews").instances if 4 <= len(one.text.split()) <= 10][:MEASURED]
    return tuple(
        Instance(id=one.id, text=one.text, query=public.query or None, position=None if public.query else n % 3)
        for n, one in enumerate(rows)
    )


def audit(public: PublicTarget, folder: Path) -> dict[str, Any]:
    """Audit a model, compare it with plain PyTorch code, and return the numbers of its row."""
    clone = folder / public.repository.partition("/")[2]
    with imported_from(clone / public.root):
        model, tokenizer = public.build()
        module = model if isinstance(model, torch.nn.Module) else model.model
        draw_weights(module)
        module.eval()
        untouched = copy.deepcopy(model)
        started = time.perf_counter()
        adapter, instances = public.adapt(model, tokenizer), texts_of(public)
        outcomes = Counter(one.outcome for one in full(adapter, instances))
        checks = (TotalEffect(on="standardised", severity="report"), Pointing(on="logits", severity="report"))
        data = Dataset(name="reviews", source="", description="", instances=instances)
        needs = sorted({need for check in checks for need in check.needs()})
        measurements, _ = measure(adapter, data, needs, model=public.name, seed=0)
        values = [check.judge(measurements).value for check in checks]
        minutes = (time.perf_counter() - started) / 60
        differences = compared(public, adapter, untouched, tokenizer, instances[:COMPARED])
    return {"minutes": minutes, "outcomes": outcomes, "values": values, "differences": differences}


@torch.no_grad()
def compared(
    public: PublicTarget, adapter: Any, model: Any, tokenizer: Any, instances: tuple[Instance, ...]
) -> dict[str, float]:
    """Return the largest differences from plain PyTorch code: in the logits, the attention, and without each token."""
    found: dict[str, list[Tensor]] = {"logits": [], "attention": [], "without a token": []}
    inner = public.inner(model)
    inner.set_attn_implementation("eager")
    for instance in instances:
        texts = [instance.text] if not public.query else [public.query, instance.text]
        batch = dict(tokenizer(*texts, return_tensors="pt"))
        inputs = adapter.collate([instance])
        trace = adapter.run(inputs)
        positions = tuple(_positions(public, model, tokenizer, instance, batch))
        plain, audited = public.plain(model, batch, positions), probabilities(trace.logits)[0]
        found["logits"].append(audited.logit() - plain.logit())
        shown = batch if public.reads_types else {name: batch[name] for name in ("input_ids", "attention_mask")}
        output = inner(**shown, output_attentions=True, return_dict=True)
        for site, weights in zip(adapter.sites(), output.attentions, strict=True):
            found["attention"].append(trace.attention[site.key] - weights)
        width = batch["input_ids"].shape[1]
        for place in inputs.real()[0].nonzero()[:, 0].tolist():
            if adapter.capabilities.deletion:
                shorter = {name: value[:, [p for p in range(width) if p != place]] for name, value in batch.items()}
                variant = adapter.delete(inputs, TEXT, [(0, place)])
            else:
                shorter = {**batch, "input_ids": batch["input_ids"].clone()}
                shorter["input_ids"][0, place] = tokenizer.mask_token_id
                replaced = torch.arange(width)[None] == place
                variant = adapter.substitute(inputs, TEXT, torch.tensor([0]), replaced)
            change = probabilities(adapter.run(variant).logits)[0] - audited
            found["without a token"].append(change - (public.plain(model, shorter, positions) - plain))
    return {name: largest_of([float(one.abs().max()) for one in each]) for name, each in found.items()}


def _positions(public: PublicTarget, model: Any, tokenizer: Any, instance: Instance, batch: Batch) -> list[int]:
    """Return where the target is read: nowhere for a label or a score, at the tagged word, or at the ends of a span."""
    if public.plain is plain_tagger:
        assert instance.position is not None
        words = instance.text.split(" ")
        start = sum(len(word) + 1 for word in words[: instance.position])
        offsets = tokenizer(instance.text, return_offsets_mapping=True)["offset_mapping"]
        return [next(p for p, (a, b) in enumerate(offsets) if a <= start < b)]
    if public.plain is plain_answerer:
        inside = [p for p, text in enumerate(tokenizer(public.query, instance.text).sequence_ids()) if text == 1]
        start, end = (one[0].double().softmax(0) for one in model(batch["input_ids"], batch["attention_mask"]))
        pairs = [(i, j) for i in inside for j in inside if i <= j < i + 30]
        return list(max(pairs, key=lambda pair: float(start[pair[0]] * end[pair[1]])))
    return []


def page(folder: Path) -> str:
    """Return the text of docs/public_targets.md."""
    lines = [
        "# Public models with other targets",
        "",
        "`python -m benchmarks.public_targets FOLDER` writes this page. It audits models from public",
        "repositories, whose files are imported unchanged from clones in FOLDER. The target of each model is",
        "an output other than a class (see [targets](targets.md)). Nothing is downloaded: the models are",
        "small, and have random weights. The values of the checks therefore say nothing about the published",
        "weights, and are not shown. The columns are:",
        "",
        "* *lines*: the lines of code that make the model auditable, in addition to those that load it. They",
        "  are in [benchmarks/public_targets.py](../benchmarks/public_targets.py).",
        f"* *minutes*: the time of the full conformance suite and of two checks, on {MEASURED} packaged reviews.",
        "* *logits*, *attention* and *without a token*: the largest differences between attnaudit and plain",
        f"  PyTorch code, which runs an untouched copy of the model on {COMPARED} reviews. *logits* compares the",
        "  logits of the target, and *attention* compares the weights of every layer and head. *without a",
        "  token* compares the change in the target's probability if a token is deleted. If the target is a",
        f"  tag or a span, the token is masked instead. The command stops if a difference is above {TOLERANCE:g}.",
        "",
        "| model | licence | target | lines | minutes | conformance | logits | attention | without a token |",
        "|---|---|---|---:|---:|---|---:|---:|---:|",
    ]
    for public in REPOSITORIES:
        found = audit(public, folder)
        require_close(found["differences"], public.name)
        if found["outcomes"]["fail"] or any(value is None for value in found["values"]):
            raise SystemExit(f"{public.name}: conformance {found['outcomes']}, values {found['values']}.")
        code = textwrap.dedent(inspect.getsource(public.adapt)).strip().splitlines()[1:]
        count = sum(bool(line.strip()) for line in code)
        differences = " | ".join(f"{value:.1e}" for value in found["differences"].values())
        lines.append(
            f"| {public.name} of [{public.repository}](https://github.com/{public.repository}/tree/{public.commit}), "
            f"commit {public.commit[:7]} | {public.licence} | {public.what} | {count} | {found['minutes']:.1f} | "
            f"{found['outcomes']['pass']} passed, {found['outcomes']['skip']} not applicable | {differences} |"
        )
    versions = f"torch {torch.__version__.partition('+')[0]} and transformers {transformers.__version__}"
    return "\n".join([*lines, "", f"Measured with {versions}."]) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with clones of the repositories")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    PAGE.write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
