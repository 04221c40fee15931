"""Measure how much the value of a check reacts to changes that do not affect faithfulness.

Some changes of a model or its data make the model no more and no less faithful, such as larger logits or other class
names. The value of a gate should be invariant under these changes. The value of every check is measured before and
after each change, on the models of `attnaudit.research.validation.invariance_models`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.arrays import Integers
from attnaudit.checks.base import Check
from attnaudit.checks.builtin.pointing import Pointing
from attnaudit.checks.builtin.where_replaced import WhereReplaced
from attnaudit.data.labels import label_indices
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.research.validation.changed_adapters import with_idle_tokens, with_logits, with_reordered_classes
from attnaudit.research.validation.figures_schema import InvarianceResult
from attnaudit.research.validation.invariance_models import InvarianceModel, invariance_models

#: A change up to this size is rounding, mostly that of float32.
EXACT = 2e-3
#: Weights below .001 may move a value by this much.
NEGLIGIBLE = 1e-2
#: Seeds that show how much a value depends on random draws.
OTHER_SEEDS = 4
#: A value that depends on random draws may differ by this many of its standard deviations over seeds.
DEVIATIONS = 4.0
#: How often the rows of a class are repeated to change the shares of the labels.
REPEATS = 4
IDLE_COUNTS = (1, 3)
REARRANGED = (
    "does not apply: rearranging moves some of the weights to the added tokens, which then affect the output; the "
    "number shows the change"
)
WORSE_UNIFORM = (
    "does not apply: the added tokens get a part of the uniform weights, so the cosine of uniform weights falls, while "
    "the cosine of attention stays the same; the number shows how much their difference grows"
)
WHOLE_DATA = "not measured: the check is computed from the whole data set at once"
READING = "not measured: the check is for a layer or head, and the models have a single attention distribution"

Adapter = PooledAttentionAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A changed model with the texts to measure it on.

    Attributes:
        adapter: The changed model.
        dataset: The texts.
    """

    adapter: Adapter
    dataset: Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance:
    """A change that leaves a model as faithful as before, and the largest change of a check's value that it may cause.

    Attributes:
        name: The change, in words.
        variants: Returns the changed models. It returns none for a model to which the change cannot be applied.
        allowed: The largest change of a value that still counts as no change.
        redraws: Whether the change alters the random draws, for example because ids or numbers of tokens change. Random
            variation is then allowed as well.
        inapplicable: Returns why the invariance does not apply to a check; "" if it applies.
    """

    name: str
    variants: Callable[[InvarianceModel, Measurements], Iterator[Variant]]
    allowed: float = EXACT
    redraws: bool = False
    inapplicable: Callable[[Check], str] = lambda check: ""


def measure_invariances(
    checks: Sequence[Check], *, seed: int, models: Sequence[InvarianceModel] | None = None
) -> list[InvarianceResult]:
    """Measure how much the values of the checks change where they should be invariant.

    Args:
        checks: The checks. Their thresholds are ignored.
        seed: The seed of the random draws, and of the hand-made models.
        models: The models to measure; None for those of `invariance_models`.

    Returns:
        One record for each invariance and check. They are sorted by invariance, and then in the order of the checks.
    """
    models = invariance_models(seed) if models is None else models
    measurable = [check for check in checks if not check.reading]
    needs = sorted({need for check in measurable for need in check.needs()})
    outcomes = {(name, check.id): Outcome() for name in INVARIANCE_NAMES for check in measurable}
    whole_data: set[str] = set()
    for model in models if measurable else ():
        before = _measured(model.adapter, model.dataset, needs, seed)
        values = {check.id: check.evidence(before).value for check in measurable}
        noise = _noise(model, measurable, needs, seed, values)
        for invariance in INVARIANCES:
            for variant in invariance.variants(model, before):
                after = _measured(variant.adapter, variant.dataset, needs, seed)
                for check in measurable:
                    allowed = invariance.allowed + (noise[check.id] if invariance.redraws else 0.0)
                    value = check.evidence(after).value
                    outcomes[invariance.name, check.id].add(values[check.id], value, allowed, model.name)
        for check in measurable:
            if before.of(check.needs()).tables:
                whole_data.add(check.id)
                continue
            for changed in _with_other_shares(before):
                value = check.evidence(changed).value
                outcomes[LABEL_SHARES, check.id].add(values[check.id], value, EXACT, model.name)
    inapplicable = {one.name: one.inapplicable for one in INVARIANCES}

    def reason(name: str, check: Check) -> str:
        if check.reading:
            return READING
        if name == LABEL_SHARES:
            return WHOLE_DATA if check.id in whole_data else ""
        return inapplicable[name](check)

    return [
        outcomes.get((name, check.id), Outcome()).record(name, check.id, reason(name, check))
        for name in INVARIANCE_NAMES
        for check in checks
    ]


@dataclass(slots=True)
class Outcome:
    """How much the value of one check has changed under one invariance, over all models and variants.

    Attributes:
        change: The change that exceeds its allowed size by the largest amount. If no change exceeds its allowed size,
            the change that comes closest to it. None if the value was never defined both before and after the change.
        allowed: The allowed size of this change.
        model: The name of the model with this change.
        undefined: The model on which the change made the value undefined; "" if there is none.
    """

    change: float | None = None
    allowed: float = EXACT
    model: str = ""
    undefined: str = ""

    def add(self, before: float | None, after: float | None, allowed: float, model: str) -> None:
        """Record one change of the value, from `before` to `after`."""
        if before is None:
            return
        if after is None:
            self.undefined = model
            return
        change = abs(after - before)
        if self.change is None or change - allowed > self.change - self.allowed:
            self.change, self.allowed, self.model = change, allowed, model

    def record(self, invariance: str, check: str, inapplicable: str) -> InvarianceResult:
        """Return the record. If the invariance does not apply to the check, `inapplicable` says why."""
        note = inapplicable
        if self.undefined:
            note = f"the value becomes undefined on {self.undefined}"
        elif self.change is None and not note:
            note = "not measured: the value is undefined on every model"
        holds = None if inapplicable or self.change is None else self.change <= self.allowed
        return InvarianceResult(
            invariance=invariance,
            check=check,
            change=self.change,
            allowed=self.allowed,
            holds=False if self.undefined else holds,
            model=self.undefined or self.model,
            note=note,
        )


# -- the invariances ---------------------------------------------------------------------------------------------------


def _scaled(scale: float) -> Callable[[InvarianceModel, Measurements], Iterator[Variant]]:
    def variants(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
        yield Variant(adapter=with_logits(model.adapter, scale=scale), dataset=model.dataset)

    return variants


def _biased(model: InvarianceModel, before: Measurements) -> Iterator[Variant]:
    """Add the standard deviation of the logits to the first class, and subtract it from the last."""
    logits = np.array(before.vector("logits"))
    size = float(logits.std(0).max()) / (2 if logits.shape[1] == 1 else 1)
    count = len(before.classes)
    for sign in (1.0, -1.0):
        bias = [sign * size, *[0.0] * (count - 2), -sign * size]
        yield Variant(adapter=with_logits(model.adapter, bias=bias), dataset=model.dataset)


def _renamed(model: InvarianceModel, before: Measurements) -> Iterator[Variant]:
    """Reverse the order of the classes, and give them new names."""
    old = before.classes
    order = list(range(len(old)))[::-1]
    new = {old[index]: f"renamed {index}" for index in order}
    rows = [dataclasses.replace(one, label=new[one.label] if one.label else None) for one in model.dataset.instances]
    adapter = with_reordered_classes(model.adapter, order, [new[old[index]] for index in order])
    yield Variant(adapter=adapter, dataset=_with_rows(model.dataset, rows, classes=tuple(sorted(new.values()))))


def _duplicated(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
    """Add a copy of every row, with another id and more white space."""
    copies = [
        dataclasses.replace(one, id=f"{one.id}-copy", text="  ".join(["", *one.text.split(), ""]))
        for one in model.dataset.instances
    ]
    yield Variant(adapter=model.adapter, dataset=_with_rows(model.dataset, [*model.dataset.instances, *copies]))


def _reordered(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
    yield Variant(adapter=model.adapter, dataset=_with_rows(model.dataset, model.dataset.instances[::-1]))


def _idle(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
    for count in IDLE_COUNTS:
        yield Variant(adapter=with_idle_tokens(model.adapter, count), dataset=model.dataset)


def _moved(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
    if model.moved_weights is not None:
        yield Variant(adapter=model.moved_weights, dataset=model.dataset)


def _shifted(model: InvarianceModel, _before: Measurements) -> Iterator[Variant]:
    if model.shifted_scores is not None:
        yield Variant(adapter=model.shifted_scores, dataset=model.dataset)


def _weights_added_tokens(check: Check) -> str:
    """Return why a check must give weight to the added tokens; "" if it need not."""
    if isinstance(check, WhereReplaced):
        return REARRANGED
    return WORSE_UNIFORM if isinstance(check, Pointing) and check.measure != "plain" else ""


LABEL_SHARES = "label shares changed"
INVARIANCES = (
    Invariance(name="logits × 0.1", variants=_scaled(0.1)),
    Invariance(name="logits × 10", variants=_scaled(10.0)),
    Invariance(name="bias per class", variants=_biased),
    Invariance(name="classes renamed and reordered", variants=_renamed),
    Invariance(name="rows duplicated", variants=_duplicated, redraws=True),
    Invariance(name="rows reordered", variants=_reordered),
    Invariance(name="idle tokens added", variants=_idle, redraws=True, inapplicable=_weights_added_tokens),
    Invariance(name="negligible weights moved", variants=_moved, allowed=NEGLIGIBLE),
    Invariance(name="constant added to all scores", variants=_shifted),
)
INVARIANCE_NAMES = (*(one.name for one in INVARIANCES[:4]), LABEL_SHARES, *(one.name for one in INVARIANCES[4:]))


def _with_other_shares(measurements: Measurements) -> Iterator[Measurements]:
    """Repeat the rows of one label at a time. The distribution of the texts of each label stays exactly the same."""
    for label in np.unique(measurements.labels):
        times = np.where(measurements.labels == label, REPEATS, 1)
        yield repeated(measurements, np.repeat(np.arange(len(times)), times))


def repeated(measurements: Measurements, rows: Integers) -> Measurements:
    """Return the measurements of some rows, which may be repeated. Every row gets its own id and source.

    Tables are left out, because they are computed from the whole data set.

    Args:
        measurements: The measurements of n instances.
        rows: The positions of the rows, from 0 to n - 1.
    """
    positions = rows.tolist()
    ids = [f"{measurements.instances[row].id}-{number}" for number, row in enumerate(positions)]
    return dataclasses.replace(
        measurements,
        instances=[
            dataclasses.replace(measurements.instances[row], id=name) for row, name in zip(positions, ids, strict=True)
        ],
        sources=ids,
        tokens=[measurements.tokens[row] for row in positions],
        labels=measurements.labels[rows],
        predicted=measurements.predicted[rows],
        scalars={name: column[rows] for name, column in measurements.scalars.items()},
        vectors={name: [column[row] for row in positions] for name, column in measurements.vectors.items()},
        tables={},
    )


def _with_rows(dataset: Dataset, rows: Sequence[Instance], *, classes: tuple[str, ...] | None = None) -> Dataset:
    return dataclasses.replace(dataset, instances=tuple(rows), classes=dataset.classes if classes is None else classes)


def _measured(adapter: Adapter, dataset: Dataset, needs: Sequence[str], seed: int) -> Measurements:
    labels = label_indices(dataset, adapter.capabilities.classes)
    return measure(adapter, dataset, needs, model="invariance", seed=seed, labels=labels)[0]


def _noise(
    model: InvarianceModel, checks: Sequence[Check], needs: Sequence[str], seed: int, values: dict[str, float | None]
) -> dict[str, float]:
    """Return, for each check, how much its value may differ because other random numbers were drawn."""
    drawn = {check.id: [values[check.id]] for check in checks}
    for other in range(1, OTHER_SEEDS + 1):
        again = _measured(model.adapter, model.dataset, needs, seed + other)
        for check in checks:
            drawn[check.id].append(check.evidence(again).value)
    numbers = {name: [value for value in found if value is not None] for name, found in drawn.items()}
    return {
        name: DEVIATIONS * float(np.std(found, ddof=1)) if len(found) > 1 else 0.0 for name, found in numbers.items()
    }
