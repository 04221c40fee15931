"""Planted multi-label Transformers: each label has its own circuit, so a reading is right for some labels only.

A text may have any number of labels, including none. It contains cue words of each of its labels. Heads move the
evidence to the state from which the output is computed. The logit of a label is positive if the moved evidence exceeds
about half of the evidence that one cue word gives.
"""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import quiet
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.loading import load_model
from attnaudit.data import label_indices, load
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.research.planted_transformers.circuit_parts import Design, Family, Head, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import (
    CLASS_NAMES,
    CLASS_WORDS,
    DECOYS,
    build_tokenizer,
    filler_of,
    insert,
    lexicon,
)
from attnaudit.research.planted_transformers.compile_weights import POOLER, WIDTH, compile_model
from attnaudit.research.planted_transformers.compiled_circuits import AVERAGE_GAIN, FAMILIES, TO_JUNK
from attnaudit.research.planted_transformers.feature_space import FeatureSpace
from attnaudit.research.planted_transformers.interchange import interchange
from attnaudit.research.planted_units.truth_rule import COVERED

LABELS = CLASS_NAMES[:3]
HEADS = 4
#: The probability that a label applies to a text, and the evidence above which a label is predicted.
APPLIES, THRESHOLD = 0.4, 0.45
SEEDS = 6
#: The number of texts in each data file, and the number of texts on which readings are verified.
TEXTS, VERIFIED = 240, 120
#: A faithful reading must be right on at least the first share of the texts, an unfaithful one on at most the second.
FAITHFUL_FROM, UNFAITHFUL_TO = 0.9, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """One multi-label model to build.

    Attributes:
        mechanism: "labels_apart": a head of the last layer moves the cue words of each label. "label_moved_early": the
            same, except for one label. The first layer averages the evidence for this label over all words. A head of
            the last layer looks at the cue words of this label, but moves nothing.
        family: The family of the model.
        seed: The seed. It decides the depth, the places of the heads, their sharpness and the texts.
    """

    mechanism: str
    family: Family
    seed: int

    @property
    def folder(self) -> str:
        """The name of the checkpoint folder."""
        return f"{self.mechanism}-{self.family}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCircuit:
    """The circuit of a multi-label model.

    Attributes:
        design: The design that `compile_model` compiles.
        readings: Pairs of a label and a reading whose truth for this label is known.
    """

    design: Design
    readings: tuple[tuple[str, LabelledReading], ...]


def circuit_of(plan: LabelPlan) -> LabelCircuit:
    """Return the circuit of a model."""
    generator = random.Random(f"{plan.mechanism} {plan.family} {plan.seed}")
    layers = generator.randint(2, 4)
    sharpness = generator.choice((6.0, 8.0, 12.0))
    places = generator.sample(range(HEADS), len(LABELS))  # the head of each label
    last = layers - 1
    early = generator.randrange(len(LABELS)) if plan.mechanism == "label_moved_early" else None
    heads: dict[tuple[int, int], Head] = {}
    for c, head in enumerate(places):
        looks = {f"evidence.{c}": sharpness}
        moves = TO_JUNK if c == early else ((f"evidence.{c}", f"moved.{c}", 1.0),)
        heads[last, head] = Head(looks=looks, moves=moves)
    if early is not None:
        average = ((f"evidence.{early}", f"moved.{early}", AVERAGE_GAIN),)
        heads[0, generator.randrange(HEADS)] = Head(looks={}, rows="read", moves=average)
    idle = Head(looks={generator.choice(("decoy", "sink")): sharpness}, moves=TO_JUNK)
    design = Design(
        layers=tuple(tuple(heads.get((i, head), idle) for head in range(HEADS)) for i in range(layers)),
        readings=(),
        lexicon=lexicon("cues", len(LABELS)),
        texts="labels",
        classes=len(LABELS),
        logit_scale=generator.choice((4.0, 8.0, 12.0)),
    )

    def known(c: int, head: int, role: str, truth: Any, *fails: Any) -> tuple[str, LabelledReading]:
        return LABELS[c], LabelledReading(role=role, layer=last, heads=head, truth=truth, fails=fails)

    others = [c for c in range(len(LABELS)) if c != early]
    first, second = others[:2]
    readings = [known(first, places[first], "own_head", "faithful")]
    if early is None:
        readings.append(known(second, places[second], "own_head", "faithful"))
        readings += [
            known(one, places[other], "head_of_another_label", "unfaithful", "used", "points")
            for one, other in ((first, second), (second, first))
        ]
    else:
        readings.append(known(early, places[early], "looks_without_moving", "unfaithful", "used"))
        readings.append(known(early, places[first], "head_of_another_label", "unfaithful", "used", "points"))
    return LabelCircuit(design=design, readings=tuple(readings))


def label_rows(count: int, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return texts, each with its labels."""
    generator = random.Random(f"labels {seed}")
    rows = []
    for number in range(count):
        chosen = [c for c in range(len(LABELS)) if generator.random() < APPLIES]
        pieces = [[word] for c in chosen for word in generator.sample(CLASS_WORDS[c], generator.randint(1, 2))]
        pieces += [[word] for word in generator.sample(DECOYS, generator.randint(1, 2))]
        text = insert(filler_of(number, pieces, generator), pieces, generator, first=0)
        rows.append((text, tuple(LABELS[c] for c in chosen)))
    return rows


def plans(*, seeds: int = SEEDS) -> list[LabelPlan]:
    """Return the models of the population."""
    return [
        LabelPlan(mechanism=mechanism, family=family, seed=seed)
        for mechanism in ("labels_apart", "label_moved_early")
        for seed in range(seeds)
        for family in FAMILIES
    ]


def build_labels(
    out: Path, *, seeds: int = SEEDS, jobs: int = 1, progress: ProgressCallback | None = None
) -> list[dict[str, Any]]:
    """Build the planted multi-label models, and return one record per label and reading.

    Args:
        out: The folder of the population.
        seeds: The number of seeds for each mechanism and family.
        jobs: The number of processes that share the work.
        progress: Called after each model, with its folder as the note. None to report no progress.
    """
    planned = plans(seeds=seeds)
    records: dict[LabelPlan, list[dict[str, Any]]] = {}
    for plan, built in spread(partial(_build_one, out), planned, jobs):
        records[plan] = built
        if progress is not None:
            progress(len(records), len(planned), plan.folder)
    return [record for plan in planned for record in records[plan]]


def compiled(plan: LabelPlan, tokenizer: Any, design: Design) -> Any:
    """Return the compiled model of a plan."""
    model = compile_model(design, plan.family, tokenizer, classes=LABELS, seed=plan.seed)
    space = FeatureSpace(WIDTH, design.classes, plan.seed)
    below = space.read(torch.stack([space.row({"constant": -THRESHOLD / space.constant})] * design.classes))
    with torch.no_grad():
        if plan.family == "bert":
            model.bert.pooler.dense.weight[: design.classes] += POOLER * below
        else:
            model.score.weight.add_(design.logit_scale * below)
    model.config.problem_type = "multi_label_classification"
    return model


def _build_one(out: Path, plan: LabelPlan) -> list[dict[str, Any]]:
    """Build, store, reload and verify one model, and return the records of its readings."""
    torch.set_num_threads(1)
    circuit = circuit_of(plan)
    tokenizer = build_tokenizer(circuit.design.lexicon)
    data = f"texts-labels-{plan.seed}.csv"
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("id", "text", "labels"))
    for number, (text, labels) in enumerate(label_rows(TEXTS, plan.seed)):
        writer.writerow((number, text, json.dumps(labels)))
    replace_file(out / data, file.getvalue().encode())
    with quiet():
        compiled(plan, tokenizer, circuit.design).save_pretrained(out / plan.folder)
    tokenizer.save_pretrained(out / plan.folder)
    return [_record(out, plan, label, reading, data) for label, reading in circuit.readings]


def _record(out: Path, plan: LabelPlan, label: str, reading: LabelledReading, data: str) -> dict[str, Any]:
    """Verify a reading for a label by interchange, and return its entry in population.json."""
    adapter = load_model(f"{out / plan.folder}[{label}]").adapter
    assert isinstance(adapter, HuggingFaceAdapter)
    rows = load(str(out / data))
    capabilities = adapter.capabilities
    truth = label_indices(rows, capabilities.classes, capabilities.target, capabilities.labels)
    with torch.no_grad():
        predicted = (adapter.run(adapter.collate(rows.instances)).logits[:, 0] > 0).long().tolist()
    accuracy = sum(one == other for one, other in zip(predicted, truth, strict=True)) / len(truth)
    text = reading.text(plan.family)
    found = interchange(adapter, rows.instances[:VERIFIED], text, seed=plan.seed)
    low, high = (FAITHFUL_FROM, 1.0) if reading.truth == "faithful" else (0.0, UNFAITHFUL_TO)
    unmet = []
    if not low <= found.share <= high:
        unmet.append(f"the reading is right on {found.share:.0%} of the texts; expected {low:.0%} to {high:.0%}")
    if accuracy < FAITHFUL_FROM:
        unmet.append(f"the label is predicted correctly on {accuracy:.0%} of the texts; expected {FAITHFUL_FROM:.0%}")
    return {
        "folder": f"{plan.folder}[{label}]",
        "kind": f"{plan.mechanism}.{reading.role}",
        "mechanism": f"{plan.mechanism}.{reading.role}",
        "truth": reading.truth,
        "share": reading.known_share,
        "reading": text,
        "family": "transformer",
        "data": data,
        "encoder": plan.family,
        "seed": plan.seed,
        "level": "tokens",
        "rank_agreement": None,
        "bypass_share": None,
        "verified_by": {
            "name": f"interchange of the values and tokens that hold {COVERED:.0%} of the reading's weight",
            "value": found.share,
            "route": found.route,
            "tokens": found.tokens,
        },
        "accuracy": accuracy,
        "half": "held_out",
        "fails": list(reading.fails) if reading.truth == "unfaithful" else [],
        "key": "",
        "excluded_because": unmet,
    }
