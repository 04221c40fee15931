"""Build planted models of units: the model, its rows, its adapter, and the truth of its readings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters import BagAdapter, Encoding, PooledAttentionAdapter, SeveralAttentionsAdapter
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.input_files import UnitArray
from attnaudit.instances import Dataset, Instance
from attnaudit.research.planted_units.planted_pool import PlantedPool, Pooled, Replace, classes_of
from attnaudit.research.planted_units.trained_pool import TrainedPool, train_pool
from attnaudit.research.planted_units.truth_rule import KnownTruth, Runs, UnitRows, known_truth
from attnaudit.research.planted_units.unit_codes import UnitRole, UnitSpace, draw_row
from attnaudit.research.planted_units.unit_kinds import LABEL_HEADS, UnitPlan, UnitVariant, kind_of, variant_of
from attnaudit.targets import CLASS, Target

#: Kinds with one head per label, in which the head of the explained label decides alone.
OWN_HEADS = (LABEL_HEADS, "labels_chosen_by_mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedUnits:
    """A planted model with its rows.

    Attributes:
        plan: The plan.
        variant: The details of the model that the seed decides.
        space: Converts the codes of units to vectors, by a rotation.
        model: The model.
        rows: The rows, in the form that `truth_rule` reads.
        dataset: The same rows, as a data set to audit.
        adapter: The adapter.
    """

    plan: UnitPlan
    variant: UnitVariant
    space: UnitSpace
    model: PlantedPool | TrainedPool
    rows: UnitRows
    dataset: Dataset
    adapter: ModelAdapter

    def truth(self, reading: str) -> KnownTruth:
        """Return the truth about a reading, by the rule of `truth_rule`.

        If a reading averages over heads of which only some decide, the rule is applied twice: to these heads, and to
        the others. If the first are faithful and the others unfaithful, the reading is graded. Its share is then the
        share of the heads that decide.

        Args:
            reading: The text form of the reading; "" if the model has a single one.
        """
        heads = self.variant.readings[reading]
        right = kind_of(self.plan.kind).right
        if self.variant.label is not None and self.variant.role(reading) == "mean" and self.plan.kind in OWN_HEADS:
            right = (self.variant.label,)
        if not right or heads is None:
            return self._truth_of_heads(heads)
        deciding = self._truth_of_heads(right)
        others = self._truth_of_heads([head for head in heads if head not in right])
        share = len(right) / len(heads)
        if (deciding.truth, others.truth) == ("faithful", "unfaithful"):
            return replace(deciding, truth="graded", share=share, fails=("points",))
        reason = "the heads that should decide do not decide, or other heads do"
        return replace(deciding, truth="", share=share, reason=deciding.reason or reason)

    def _truth_of_heads(self, heads: Sequence[int] | None) -> KnownTruth:
        model = self.model if self.variant.label is None else OneLabel(self.model, self.variant.label)
        return known_truth(model, self.rows, heads=heads, hops=self.plan.arrangement == "hops", seed=self.plan.seed)


@dataclass(frozen=True, slots=True)
class OneLabel:
    """A model of several labels, of which one is explained. Its single logit is that of the label."""

    model: Runs
    label: int

    def run(self, vectors: Tensor, mask: Tensor, replace: Replace | None = None, *, hops: bool = False) -> Pooled:
        """Run the model, as `PlantedPool.run` does."""
        outcome = self.model.run(vectors, mask, replace, hops=hops)
        return Pooled(outcome.logits[:, [self.label]], outcome.weights)


def build_units(plan: UnitPlan) -> PlantedUnits:
    """Build the model of a plan."""
    variant = variant_of(plan)
    task = variant.task
    space = UnitSpace(task.classes, variant.width, task.noise, plan.seed)
    teaching = kind_of(plan.kind).teaching
    model: PlantedPool | TrainedPool = (
        PlantedPool(variant.design, space, plan.seed + 1).eval()
        if teaching is None
        else train_pool(task, space, width=variant.width, teaching=teaching, seed=plan.seed)
    )
    generator = random.Random(f"rows {plan.kind} {plan.arrangement} {plan.seed}")
    combinations = 2**task.classes if task.several_labels else task.classes
    numbers = [number % combinations for number in range(variant.rows)]
    units = [draw_row(task, number, generator) for number in numbers]
    if plan.arrangement.startswith("bag"):
        vectors = [space.vectors(row, 1000 * plan.seed + number) for number, row in enumerate(units)]
        adapter: Any = _bag_adapter(model, variant, vectors)
        texts = [f"bag {number}" for number in range(len(units))]
    else:
        words = _words(units)
        table = space.vectors(list(words), plan.seed)
        table[:2] = 0  # padding, and the word for all unknown words
        vectors = [table[[words[unit] for unit in row]] for row in units]
        texts = [" ".join(unit.word for unit in row) for row in units]
        assert isinstance(model, PlantedPool)
        adapter = _text_adapter(model, plan, variant, table, {unit.word: i for unit, i in words.items()})
    names = classes_of(task.classes)
    instances = tuple(
        Instance(id=f"{row:04}", text=text, labels=tuple(n for c, n in enumerate(names) if number >> c & 1))
        if task.several_labels
        else Instance(id=f"{row:04}", text=text, label=names[number])
        for row, (text, number) in enumerate(zip(texts, numbers, strict=True))
    )
    labels = torch.tensor(numbers)
    mask = torch.zeros(len(units), max(map(len, units)), dtype=torch.bool)
    padded = torch.zeros(*mask.shape, variant.width)
    for number, row in enumerate(vectors):
        padded[number, : len(row)], mask[number, : len(row)] = row, True
    rows = UnitRows(
        vectors=padded,
        mask=mask,
        labels=labels if variant.label is None else labels >> variant.label & 1,
        marked=torch.tensor([any(unit.role == "marker" for unit in row) for row in units]),
    )
    dataset = Dataset(
        name=plan.name,
        source="planted",
        description="",
        instances=instances,
        classes=() if task.several_labels else tuple(sorted(names)),
    )
    return PlantedUnits(
        plan=plan, variant=variant, space=space, model=model, rows=rows, dataset=dataset, adapter=adapter
    )


def _words(units: list[list[UnitRole]]) -> dict[UnitRole, int]:
    """Return the number of each word in the table of embeddings. Numbers 0 and 1 are padding and the unknown word."""
    known = sorted({unit for row in units for unit in row}, key=lambda unit: unit.word)
    reserved = [UnitRole("padding"), UnitRole("unknown")]
    return {unit: number for number, unit in enumerate([*reserved, *known])}


def _bag_adapter(model: PlantedPool | TrainedPool, variant: UnitVariant, vectors: list[Tensor]) -> BagAdapter:
    def read(instance: Instance) -> UnitArray:
        return UnitArray(features=vectors[int(instance.id)])

    return BagAdapter(
        encoder=model.encode,
        attention=model.attend,
        decoder=model.decode,
        classes=classes_of(variant.task.classes),
        features=variant.width,
        independent=not variant.design.mixes,
        read=read,
        modules=(model,),
        heads=len(variant.design.heads),
        reading=next(iter(variant.readings)),
        target=_target(variant),
    )


def _target(variant: UnitVariant) -> Target:
    """Return the target: the explained label of a model with several labels, else the class."""
    if variant.label is None:
        return CLASS
    return Target(kind="label", name=classes_of(variant.task.classes)[variant.label])


def _text_adapter(
    model: PlantedPool, plan: UnitPlan, variant: UnitVariant, table: Tensor, numbers: dict[str, int]
) -> SeveralAttentionsAdapter | PooledAttentionAdapter:
    embedding = torch.nn.Embedding(table.shape[0], table.shape[1], _weight=table)

    def tokenize(text: str) -> Encoding:
        words = text.split()
        return Encoding([numbers.get(word, 1) for word in words], words)

    if plan.arrangement == "hops":
        return SeveralAttentionsAdapter(
            embedding=embedding,
            encoder=model.encode,
            pool=model.hops,
            sites=dict.fromkeys(model.sites, 1),
            reading=next(iter(variant.readings)),
            tokenize=tokenize,
            classes=classes_of(variant.task.classes),
            modules=(model, embedding),
            mask_id=1,
        )
    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=model.encode,
        attention=model.attend,
        decoder=model.decode,
        tokenize=tokenize,
        classes=classes_of(variant.task.classes),
        modules=(model, embedding),
        mask_id=1,
        heads=len(variant.design.heads),
        reading=next(iter(variant.readings)),
        target=_target(variant),
    )
