"""Time the engine on a BiLSTM with additive attention, in comparison with plain PyTorch and with Captum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from attnaudit.engine import measuring, shard_measuring
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.declared_measures import MeasureDeclaration
from attnaudit.engine.repeated_pass import FirstPass
from attnaudit.engine.shard_measuring import BATCH_TOKENS
from attnaudit.measures.adversarial_attention import adversarial
from attnaudit.measures.replaced_attention import PERMUTATIONS, permutation
from attnaudit.metrics import jensen_shannon
from attnaudit.seeding import keyed_generator
from benchmarks.speed import device
from benchmarks.speed import plain as rivals
from benchmarks.speed.ranks import largest_difference
from benchmarks.speed.subjects import Subject, bilstm, in_order, long_texts, short_texts
from benchmarks.speed.timing import CHECKS, Clock, Comparison

Found = tuple[Any, Any]
#: The functions that check that the model does not change, by the module or class that has them.
CHECKING: tuple[tuple[Any, str], ...] = (
    (shard_measuring, "identity_of"),
    (measuring, "_repeat_over_shards"),
    (FirstPass, "add"),
    (FirstPass, "repeat"),
)
#: The four measures of Jain & Wallace's published code.
FOUR = ("gradient.meister.inputs", "permutation", "leave_one_out.inputs", "adversarial.0.01")


def audited(subject: Subject, *needs: str) -> Found:
    """Measure the instances of a subject. `CHECKS` counts the time of the checks that the model does not change.

    Returns:
        The measurements, and the record of how they were computed.
    """
    with ExitStack() as stack:
        for owner, name in CHECKING:
            stack.enter_context(mock.patch.object(owner, name, CHECKS.around(getattr(owner, name))))
        return measuring.measure(subject.adapter, subject.data, needs, model="benchmark", seed=0, device=device.name())


def passes_of(found: Found) -> Mapping[str, int]:
    """Return name of a kind of pass -> number of passes that the engine made."""
    counts: Mapping[str, int] = found[1].passes
    return counts


def rows_apart(ours: Any, theirs: Any) -> float:
    """Return the largest difference between two lists of rows. The rows may have different lengths."""
    return max(largest_difference(a, b) for a, b in zip(ours, theirs, strict=True))


def substitutions(
    subject: Subject, texts: list[list[int]], counts: Counter[str], budget: int
) -> list[NDArray[np.float64]]:
    """Return how much the probability of class 1 falls when the engine replaces each token by the mask token.

    Args:
        subject: The model and its instances.
        texts: The token ids of each instance, with the special tokens at both ends. These get no value.
        counts: The counts of passes, which are reset first.
        budget: The number of tokens in one forward pass.
    """
    counts.clear()
    instances = in_order(subject.data)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = [np.empty(0)] * len(texts)
    size = max(1, budget // len(texts[order[-1]]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        batch = Batch(
            subject.adapter,
            [instances[i] for i in places],
            places,
            seed=0,
            keep_graph=False,
            budget=budget,
            pass_counts=counts,
        )
        change = (batch.probabilities[:, None, 1] - batch.leave_one_out("mask")[..., 1]).cpu().numpy()
        for row, i in enumerate(places):
            found[i] = change[row, 1 : len(texts[i]) - 1]
    return found


class Pooled:
    """The comparisons on one set of texts.

    Args:
        label: The length of the texts, such as "n≈20".
        count: The number of instances.
        few: The number of instances in slow comparisons.
        steps: The number of steps of the published search for adversarial attention.
    """

    def __init__(self, label: str, count: int, few: int, *, steps: int = rivals.STEPS) -> None:
        self.label, self.steps = label, steps
        self.long = label != "n≈20"
        make = long_texts if self.long else short_texts
        self.full, self.part = bilstm(label, make(count)), bilstm(label, make(few))
        self.plain = rivals.Plain(self.full.model)

    def reader(self, subject: Subject) -> Callable[[], list[list[int]]]:
        """Return a function that tokenises the texts of a subject. The rivals call it, as a user's own code would."""
        instances = in_order(subject.data)
        return lambda: rivals.encoded(subject.adapter, instances)

    def comparison(
        self,
        what: str,
        rival: str,
        subject: Subject,
        needs: tuple[str, ...],
        theirs: Callable[[], Any],
        difference: Callable[[Any, Any], float],
        tolerance: float = 1e-5,
        measure_alone: MeasureDeclaration | None = None,
        **more: Any,
    ) -> Comparison:
        """Return a comparison of attnaudit with a rival.

        If `measure_alone` is given, only the computation of this measure is timed. The forward pass before it is not
        timed, because both sides start from its results.
        """
        clock = Clock() if measure_alone else None

        def ours() -> Found:
            if measure_alone is None or clock is None:
                return audited(subject, *needs)
            with mock.patch.object(measure_alone, "body", clock.around(measure_alone.body)):
                return audited(subject, *needs)

        def counted() -> Any:
            self.plain.passes = Counter()
            return theirs()

        return Comparison(
            name=f"{what}, {self.label}",
            rival=rival,
            instances=len(subject.data.instances),
            ours=ours,
            part=clock,
            theirs=counted,
            difference=difference,
            tolerance=tolerance,
            our_passes=passes_of,
            their_passes=lambda: dict(self.plain.passes),
            **more,
        )

    def forward(self) -> Iterator[Comparison]:
        held, texts = self.full, self.reader(self.full)

        def apart(ours: Found, theirs: NDArray[np.float64]) -> float:
            return float(np.abs(_probability(ours) - theirs).max())

        yield self.comparison(
            "forward pass",
            f"plain PyTorch, batches of {rivals.batch()}",
            held,
            (),
            lambda: rivals.forward(self.plain, texts()),
            apart,
        )

    def gradient(self) -> Iterator[Comparison]:
        texts = self.reader(self.full)
        name = "gradient.meister.inputs"

        def apart(ours: Found, theirs: Any) -> float:
            return rows_apart(ours[0].vectors[name], theirs)

        yield self.comparison(
            "gradient",
            f"plain PyTorch, batches of {rivals.batch()}",
            self.full,
            (name,),
            lambda: rivals.gradient(self.plain, texts()),
            apart,
        )
        yield self.comparison(
            "gradient",
            f"Captum Saliency, batches of {rivals.batch()}",
            self.full,
            (name,),
            lambda: captum_saliency(self.plain, texts()),
            apart,
        )

    def permutations(self) -> Iterator[Comparison]:
        texts, subject = self.reader(self.full)(), self.full
        held = rivals.states_of(self.plain, texts)
        instances = in_order(subject.data)

        def own_draws(number: int, weights: Any) -> Any:
            """Return the orders that an audit draws. With the same orders, both sides must give the same numbers."""
            order = np.tile(np.arange(weights.shape[1]), (PERMUTATIONS, len(weights), 1))
            for row, i in enumerate(held[number][0]):
                n = len(texts[i]) - 2
                keys = keyed_generator(0, "permutation", instances[i].id).random((PERMUTATIONS, n))
                order[:, row, 1 : n + 1] = 1 + keys.argsort(axis=1)
            return device.there(torch.from_numpy(order))

        def apart(ours: Found, _theirs: Any) -> float:
            again = rivals.permutations(self.plain, held, PERMUTATIONS, own_draws)
            return largest_difference(ours[0].scalars["permutation.tvd"], again)

        yield self.comparison(
            f"{PERMUTATIONS} permutations",
            f"plain PyTorch, one decode of {rivals.batch()} texts each",
            subject,
            ("permutation",),
            lambda: rivals.permutations(self.plain, held, PERMUTATIONS, rivals.shuffles(held, PERMUTATIONS)),
            apart,
            measure_alone=permutation,
            note="without the shared forward pass",
        )
        alone = [
            (
                [i],
                states[r : r + 1, : len(texts[i])],
                w[r : r + 1, : len(texts[i])],
                real[r : r + 1, : len(texts[i])],
                o[r : r + 1],
            )
            for places, states, w, real, o in held
            for r, i in enumerate(places)
        ]
        yield self.comparison(
            f"{PERMUTATIONS} permutations",
            "plain PyTorch, one decode of one text each",
            subject,
            ("permutation",),
            lambda: rivals.permutations(self.plain, alone, PERMUTATIONS, rivals.shuffles(alone, PERMUTATIONS)),
            apart,
            measure_alone=permutation,
            target=20.0,
            note="without the shared forward pass",
        )

    def adversary(self) -> Iterator[Comparison]:
        texts, subject = self.reader(self.part)(), self.part
        held = rivals.states_of(self.plain, texts)
        name = f"adversarial.{rivals.EPSILON}"

        def above(ours: Found, theirs: Any) -> float:
            """Return by how much the result of the exact adversary is wrong, or 0 if it is right.

            Its TVD must be at most ε. Its JSD must be at least the JSD of every search result whose TVD is at most ε.
            """
            attentions, moved = theirs
            own, optimum = ours[0].vectors["attention"], ours[0].scalars[f"{name}.jsd"]
            worst = float(np.nanmax(ours[0].scalars[f"{name}.tvd"])) - rivals.EPSILON
            for i, tried in enumerate(attentions):
                reading = torch.tensor(own[i]).expand(len(tried), -1)
                far = jensen_shannon(tried.double().cpu(), reading).numpy()
                feasible = far[moved[i] <= rivals.EPSILON]
                worst = max(worst, float(feasible.max(initial=-1.0)) - float(optimum[i]))
            return max(0.0, worst)

        yield self.comparison(
            "adversary, exact against searched",
            f"plain PyTorch, {self.steps} steps × {rivals.STARTS} starts, batches of {rivals.batch()}",
            subject,
            (name,),
            lambda: rivals.search(self.plain, held, self.steps),
            above,
            tolerance=1e-6,
            measure_alone=adversarial,
            target=100.0,
            note="without the shared forward pass; the difference is how far any feasible search is above the optimum",
        )

    def deletion(self) -> Iterator[Comparison]:
        texts, subject = self.reader(self.part), self.part
        name = "leave_one_out.inputs"

        def apart(ours: Found, theirs: Any) -> float:
            return rows_apart(ours[0].vectors[f"{name}.change"], theirs)

        yield self.comparison(
            "leave-one-out by deletion",
            "plain PyTorch, one by one",
            subject,
            (name,),
            lambda: rivals.leave_one_out(self.plain, texts()),
            apart,
            target=2.5 if self.long else 1.0,
            limit_ms=200.0 if self.long else None,
        )
        yield self.comparison(
            "leave-one-out by deletion",
            f"plain PyTorch, the i-th token of {rivals.batch()} texts at once",
            subject,
            (name,),
            lambda: rivals.leave_one_out_by_place(self.plain, texts()),
            apart,
        )

    def substitution(self) -> Iterator[Comparison]:
        read, subject = self.reader(self.part), self.part
        texts, counts = read(), Counter[str]()
        budget = BATCH_TOKENS["cuda" if device.on_gpu() else "cpu"]
        yield Comparison(
            name=f"leave-one-out by substitution, {self.label}",
            rival="Captum FeatureAblation, perturbations_per_eval = n",
            instances=len(texts),
            ours=lambda: substitutions(subject, texts, counts, budget),
            theirs=lambda: captum_ablation(self.plain, read()),
            difference=rows_apart,
            tolerance=1e-5,
            our_passes=lambda _: dict(counts),
            their_passes=lambda: dict(self.plain.passes),
        )

    def influence(self) -> Iterator[Comparison]:
        texts, subject = self.reader(self.part), self.part

        def apart(ours: Found, theirs: Any) -> float:
            return largest_difference(ours[0].scalars["influence.hidden.entropy"], np.concatenate(theirs))

        loops = {"plain PyTorch, n backward passes for each text": rivals.influence}
        if not self.long:  # On long texts, this loop is the slower one.
            loops[f"plain PyTorch, n backward passes for {rivals.batch()} texts at once"] = rivals.influence_by_place
        for rival, work in loops.items():
            yield self.comparison(
                "input influence",
                rival,
                subject,
                ("influence.hidden",),
                lambda work=work: work(self.plain, texts()),
                apart,
                target=1.8,
            )

    def pipeline(self) -> Iterator[Comparison]:
        """Yield the comparison of all four published measures together. Each side computes them in its usual way."""
        read, subject = self.reader(self.part), self.part

        def theirs() -> Any:
            texts = read()
            held = rivals.states_of(self.plain, texts)
            rivals.gradient(self.plain, texts)
            rivals.permutations(self.plain, held, PERMUTATIONS, rivals.shuffles(held, PERMUTATIONS))
            rivals.search(self.plain, held, self.steps)
            return rivals.leave_one_out_by_place(self.plain, texts)

        yield self.comparison(
            "gradient, permutations, leave-one-out and adversary",
            "plain PyTorch, as published",
            subject,
            FOUR,
            theirs,
            lambda ours, found: rows_apart(ours[0].vectors["leave_one_out.inputs.change"], found),
            target=10.0,
        )

    def every(self) -> Iterator[Comparison]:
        """Yield all comparisons."""
        for part in (
            self.forward,
            self.gradient,
            self.permutations,
            self.adversary,
            self.deletion,
            self.substitution,
            self.influence,
            self.pipeline,
        ):
            yield from part()


def _probability(found: Found) -> NDArray[np.float64]:
    """Return the (n,) probabilities of the second class."""
    return np.stack(found[0].vectors["probabilities"])[:, 1]


def captum_saliency(plain: rivals.Plain, texts: list[list[int]]) -> list[NDArray[np.float64]]:
    """Return Captum's saliency at the embeddings: the norm of each token, divided by the sum of the norms."""
    from captum.attr import Saliency

    method = Saliency(plain.from_embeddings)
    found: list[NDArray[np.float64]] = [np.empty(0)] * len(texts)
    for places, ids, lengths in rivals.batches(texts):
        plain.passes["backward"] += 1
        embedded = plain.embedding(ids).requires_grad_()
        norms = method.attribute(embedded, abs=False, additional_forward_args=(ids, lengths)).double().norm(dim=-1)
        norms = norms.cpu()
        for row, i in enumerate(places):
            kept = norms[row, 1 : lengths[row] - 1].detach()
            found[i] = (kept / kept.sum()).numpy()
    return found


def captum_ablation(plain: rivals.Plain, texts: list[list[int]]) -> list[NDArray[np.float64]]:
    """Return Captum's FeatureAblation with the unknown word as the baseline.

    All tokens of a text are ablated in one forward pass, each in its own row.
    """
    from captum.attr import FeatureAblation

    from attnaudit.models.vocabulary import UNKNOWN

    plain.passes = Counter()

    def run(ids: torch.Tensor) -> torch.Tensor:
        return plain(ids, torch.full((len(ids),), ids.shape[1]))

    method = FeatureAblation(run)
    found = []
    with torch.no_grad():
        for ids in texts:
            full = device.there(torch.tensor([ids]))
            # SOS and EOS share one feature. Its value is dropped.
            features = device.there(torch.arange(len(ids))[None].clone())
            features[:, -1] = 0
            changed = method.attribute(full, baselines=UNKNOWN, feature_mask=features, perturbations_per_eval=len(ids))
            found.append(changed[0, 1:-1].double().cpu().numpy())
    return found


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of this module. If `quick` is True, they use fewer instances."""
    more = 1 if quick else device.times(2)
    yield from Pooled("n≈20", 64 if quick else 320 * more, 24 if quick else 64 * more).every()
    yield from Pooled("n≈124", 8 if quick else 64 * more, 3 if quick else 8 * more).every()
