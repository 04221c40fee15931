"""The rule that decides whether a reading of a planted model is right. No check uses these interventions.

The rule is applied to the model itself, without an adapter and without the engine. A reading is *right* on a row if it
meets two conditions:

* **Used.** The weights of the reading are rotated along the units, by several distances, while the states stay the
  same. The *margin* is the logit of the predicted class minus the largest other logit. Averaged over the rotations, the
  margin is less than half as large as with the original weights.
* **Points.** The units with 80% of the reading's weight are replaced by those of a *donor*, a row with another
  predicted class. The weights of the reading's site (the heads at the same place in the model) stay the same. The
  prediction becomes that of the donor. If all other units are replaced instead, the prediction stays that of the row.
  Both must hold for at least half of the donors.

A reading is faithful if it is right on at least 90% of the rows. It is unfaithful if it is right on at most 10% of the
rows. It then *fails* each question whose condition holds on at most 10% of the rows. Between these limits, it is
graded, and its share is the share of rows on which it is right. A reading gets no label in two cases: if the model
predicts the label of fewer than 90% of the rows, or if the reading is right on at most 10% of the rows although each
condition alone holds on more.

Shapes: B rows, T units, d features of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from attnaudit.research.planted_units.planted_pool import Pooled, Replace, two_logits

#: The share of a reading's weight that the exchanged units have.
COVERED = 0.8
#: The mean margin with rotated weights must be less than this share of the margin with the original weights.
MARGIN_LEFT = 0.5
ROTATIONS, DONORS = 16, 4
#: A faithful reading is right on at least the first share of the rows, an unfaithful one on at most the second.
FAITHFUL_FROM, UNFAITHFUL_TO = 0.9, 0.1

Truth = Literal["faithful", "unfaithful", "graded", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTruth:
    """What the rule says about a reading.

    Attributes:
        truth: "faithful", "unfaithful" or "graded"; "" if the reading gets no label.
        share: The share of the rows on which the reading is right.
        used: The share of the rows on which the first condition holds.
        points: The share of the rows on which the second condition holds.
        accuracy: The share of the rows whose label the model predicts.
        fails: The questions that an unfaithful or graded reading fails.
        reason: Why the reading gets no label; "" if it has one.
    """

    truth: Truth
    share: float
    used: float
    points: float
    accuracy: float
    fails: tuple[Literal["used", "points"], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRows:
    """Rows of units.

    Attributes:
        vectors: (B, T, d) vectors.
        mask: (B, T) which units are real.
        labels: (B,) numbers of the classes.
        marked: (B,) whether a row has a marker. A donor has a marker if the row has one.
    """

    vectors: Tensor
    mask: Tensor
    labels: Tensor
    marked: Tensor


class Runs(Protocol):
    """A model that runs without an adapter (see `PlantedPool.run`)."""

    def run(self, vectors: Tensor, mask: Tensor, replace: Replace | None = None, *, hops: bool = False) -> Pooled:
        """Return the logits and the weights, which `replace` may change."""
        ...


def known_truth(model: Runs, rows: UnitRows, *, heads: Sequence[int] | None, hops: bool, seed: int) -> KnownTruth:
    """Apply the rule to a reading.

    Args:
        model: The model.
        rows: The rows.
        heads: The heads of the reading. Its weights are the mean over them. None for the head of the predicted class.
        hops: Whether the heads of the model are hops. If they are, each head is at a site of its own. Otherwise, all
            heads are at one site.
        seed: The seed of the choice of donors.
    """
    with torch.no_grad():
        plain = model.run(rows.vectors, rows.mask, hops=hops)
        logits = two_logits(plain.logits)
        predicted = logits.argmax(-1)
        accuracy = float((predicted == rows.labels).double().mean())
        count = len(plain.weights)
        of_row = torch.zeros(count, len(predicted), dtype=torch.bool)  # which heads the reading shows in each row
        if heads is None:
            of_row[predicted, torch.arange(len(predicted))] = True
        else:
            of_row[list(heads)] = True
        held = set(heads) if hops and heads is not None else set(range(count))
        shown = torch.stack(plain.weights) * of_row[..., None]
        reading = shown.sum(0) / of_row.sum(0)[:, None]
        used = _used(model, rows, plain.weights, of_row, hops, logits, predicted)
        points = _points(model, rows, plain.weights, held, hops, reading, predicted, seed)
    return judged(used, points, accuracy)


def judged(used: Tensor, points: Tensor, accuracy: float) -> KnownTruth:
    """Return the truth of a reading from the rows (B,) on which each condition holds.

    Examples:
        >>> rows = torch.ones(10, dtype=torch.bool)
        >>> judged(rows, rows, 1.0).truth, judged(~rows, rows, 1.0).fails
        ('faithful', ('used',))
    """
    shares: dict[Literal["used", "points"], float] = {
        "used": float(used.double().mean()),
        "points": float(points.double().mean()),
    }
    share = float((used & points).double().mean())
    truth: Truth = "graded"
    fails = tuple(question for question, value in shares.items() if value < FAITHFUL_FROM)
    reason = ""
    if share >= FAITHFUL_FROM:
        truth, fails = "faithful", ()
    elif share <= UNFAITHFUL_TO:
        truth, fails = "unfaithful", tuple(question for question, value in shares.items() if value <= UNFAITHFUL_TO)
        if not fails:
            reason = (
                f"it is right on {share:.0%} of the rows, but it is used on {shares['used']:.0%} and points at what "
                f"matters on {shares['points']:.0%}"
            )
    if accuracy < FAITHFUL_FROM:
        reason = f"the model predicts the label of {accuracy:.0%} of the rows"
    return KnownTruth(
        truth="" if reason else truth,
        share=share,
        used=shares["used"],
        points=shares["points"],
        accuracy=accuracy,
        fails=fails,
        reason=reason,
    )


def _used(
    model: Runs,
    rows: UnitRows,
    weights: Sequence[Tensor],
    of_row: Tensor,
    hops: bool,
    logits: Tensor,
    predicted: Tensor,
) -> Tensor:
    """Return (B,) whether rotated weights make the margin of the predicted class less than half as large."""
    before = _margin(logits, predicted)
    lengths = rows.mask.sum(1)
    places = torch.arange(rows.mask.shape[1])
    after = torch.zeros_like(before)
    for turn in range(1, ROTATIONS + 1):
        shift = (lengths * turn // (ROTATIONS + 1)).clamp_min(1)
        source = torch.where(rows.mask, (places[None] + shift[:, None]) % lengths[:, None], places[None])

        def rotated(head: int, own: Tensor, source: Tensor = source) -> Tensor:
            return torch.where(of_row[head][:, None], weights[head].gather(1, source), own)

        after += _margin(two_logits(model.run(rows.vectors, rows.mask, rotated, hops=hops).logits), predicted)
    return after / ROTATIONS < MARGIN_LEFT * before


def _points(
    model: Runs,
    rows: UnitRows,
    weights: Sequence[Tensor],
    held: set[int],
    hops: bool,
    reading: Tensor,
    predicted: Tensor,
    seed: int,
) -> Tensor:
    """Return (B,) whether the prediction follows the attended units of donors, but not their other units."""
    attended = smallest_set(reading)
    order = reading.argsort(dim=1, descending=True)
    donors, has_donor = draw_donors(predicted, rows.marked, seed)

    def hold(head: int, own: Tensor) -> Tensor:
        return weights[head] if head in held else own

    follows = torch.zeros(len(predicted))
    for donor in donors.T:
        answers = []
        for inside in (True, False):
            changed = rows.vectors.clone()
            for row in range(len(predicted)):
                mine = _in_order(order[row], attended[row] if inside else ~attended[row] & rows.mask[row])
                giver = int(donor[row])
                theirs = _in_order(order[giver], attended[giver] if inside else ~attended[giver] & rows.mask[giver])
                if len(mine) and len(theirs):
                    changed[row, mine] = rows.vectors[giver, theirs[torch.arange(len(mine)) % len(theirs)]]
            answers.append(two_logits(model.run(changed, rows.mask, hold, hops=hops).logits).argmax(-1))
        follows += ((answers[0] == predicted[donor]) & (answers[1] == predicted)).float()
    return (2 * follows >= DONORS) & has_donor


def draw_donors(predicted: Tensor, marked: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw rows with another predicted class, and equally marked, for each row.

    Args:
        predicted: (B,) predicted classes.
        marked: (B,) whether a row is marked.
        seed: The seed.

    Returns:
        (B, D) the numbers of the donors, and (B,) whether a row has any. If not, its donors are any rows.
    """
    other = (predicted[:, None] != predicted) & (marked[:, None] == marked)
    has_donor = other.any(1)
    chances = torch.where(has_donor[:, None], other, torch.ones_like(other)).double()
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(chances, DONORS, replacement=True, generator=generator), has_donor


def _in_order(order: Tensor, chosen: Tensor) -> Tensor:
    """Return the numbers of the chosen units, in descending order of their weights."""
    return order[chosen[order]]


def _margin(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the logit of the predicted class minus the largest other logit (B,), given logits (B, C)."""
    own = logits.gather(1, predicted[:, None])[:, 0]
    return own - logits.scatter(1, predicted[:, None], -torch.inf).amax(1)


def smallest_set(weights: Tensor) -> Tensor:
    """Return (B, T) True at the smallest set of units with 80% of the weight, given weights (B, T) that sum to one."""
    ordered, index = weights.sort(dim=1, descending=True)
    before = ordered.cumsum(1) - ordered
    return torch.zeros_like(weights, dtype=torch.bool).scatter(1, index, before < COVERED)
