"""Measures of models with layers and heads equal plain implementations of their definitions.

The plain implementations run one instance, one variant and one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import kendalltau
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, CheckError
from attnaudit.instances import Dataset
from attnaudit.measures import rank_agreement
from attnaudit.seeding import keyed_generator
from tests.units.conformance.conformance_models import INSTANCES, PLAIN, SOUND, SmallTransformer

SEED = 3
#: Permutations per instance; few, because the plain implementation runs each in a pass of its own.
DRAWS = 6


@pytest.fixture(autouse=True)
def few_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnaudit.measures.replaced_attention.PERMUTATIONS", DRAWS)
    monkeypatch.setattr("attnaudit.measures.replaced_attention.LAYER_PERMUTATIONS", DRAWS)


def rows_of(model: SmallTransformer) -> Dataset:
    rows = tuple((INSTANCES if model.cross else PLAIN)[::2])
    return Dataset(name="films", source="synthetic", description="", instances=rows)


def measured(model: SmallTransformer, *needs: str, **options: object) -> Measurements:
    return measure(model, rows_of(model), needs, model="small", seed=SEED, **options)[0]  # type: ignore[arg-type]


class Plain:
    """A plain implementation that runs one instance alone."""

    def __init__(self, model: SmallTransformer, one: object, layer: int, heads: list[int], query: str) -> None:
        self.model, self.one = model, one
        self.inputs = model.collate([one])  # type: ignore[list-item]
        self.real = self.inputs.real()[0].nonzero()[:, 0].tolist()
        self.trace = model.run(self.inputs, hidden=True)
        self.site = model.sites()[layer]
        self.heads = heads
        self.query = query
        stream = self.site.query or TEXT
        length = int(self.inputs.mask[stream][0].sum())
        self.queries = {"cls": [0], "last": [length - 1], "mean": self.inputs.real(stream)[0].nonzero()[:, 0].tolist()}[
            query
        ]
        if self.site.query != TEXT:
            self.queries = list(range(length))
        self.output = torch.softmax(self.trace.logits[0].double(), -1)
        self.predicted = int(self.output.argmax())

    def weights(self) -> Tensor:
        return self.trace.attention[self.site.key][0].double()

    def shown(self) -> np.ndarray:
        mean = torch.stack([self.weights()[h, q] for h in self.heads for q in self.queries]).mean(0)[self.real]
        return (mean / mean.sum()).detach().numpy()

    def under(self, change: Callable[[Tensor, Tensor], Tensor], where: str = "reading", frozen: bool = False) -> Tensor:
        """Return the class probabilities with each row in scope replaced by `change(row (K,), allowed (K,))`."""
        clean = self.trace.attention

        def intervene(site: Site, live: Tensor, allowed: Tensor) -> Tensor | None:
            same_stack = site.kind == self.site.kind
            inside = site.key == self.site.key or (where == "everywhere" and same_stack)
            if not inside:
                return None
            weights = (clean[site.key] if frozen else live).detach().clone()
            heads = self.heads if where == "reading" else range(site.heads)
            queries = self.queries if where == "reading" else range(live.shape[2])
            for h in heads:
                for q in queries:
                    weights[0, h, q] = change(weights[0, h, q].double(), allowed[0, 0, q]).to(weights.dtype)
            return weights

        return torch.softmax(self.model.run(self.inputs, intervene=intervene).logits[0].double(), -1)

    def tvd(self, output: Tensor) -> float:
        return 0.5 * (output - self.output).detach().abs().sum().item()

    def free(self, allowed: Tensor) -> list[int]:
        return [p for p in self.real if bool(allowed[p])]

    def permuted(self, draws: np.ndarray) -> Callable[[Tensor, Tensor], Tensor]:
        """Permute the weights of the real tokens that a row may attend to into the order of their draws."""
        order = [self.real[i] for i in draws.argsort()]

        def change(row: Tensor, allowed: Tensor) -> Tensor:
            free = self.free(allowed)
            moved = row.clone()
            moved[free] = row[[p for p in order if p in free]]
            return moved

        return change

    def uniform(self, row: Tensor, allowed: Tensor) -> Tensor:
        free = self.free(allowed)
        even = row.clone()
        if free:
            even[free] = row[free].sum() / len(free)
        return even

    def without(self, gone: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
        def change(row: Tensor, allowed: Tensor) -> Tensor:
            left = row.clone()
            left[gone] = 0.0
            return left / left.sum() * row.sum() if left.sum() > 0 else left

        return change


CASES = [
    ("both ways", "cls@layer=-1", 1, [0, 1], "cls"),
    ("both ways", "cls@layer=0,heads=1", 0, [1], "cls"),
    ("both ways", "mean@layer=1", 1, [0, 1], "mean"),
    ("causal", "last@layer=-1", 1, [0, 1], "last"),
    ("causal", "last@layer=0,heads=0", 0, [0], "last"),
    ("within a window", "cls@layer=0", 0, [0, 1], "cls"),
    ("with sinks", "cls@layer=-1", 1, [0, 1], "cls"),
    ("cross", "mean@layer=0,stack=cross", 2, [0, 1], "mean"),
]


@pytest.fixture(params=CASES, ids=lambda c: f"{c[0]}, {c[1]}", scope="module")
def case(request: pytest.FixtureRequest) -> tuple[SmallTransformer, str, list[Plain]]:
    kind, reading, layer, heads, query = request.param
    model = SOUND[kind]()
    plain = [Plain(model, one, layer, heads, query) for one in rows_of(model).instances]
    return model, reading, plain


def under(measurements: Measurements, reading: str) -> Measurements:
    (name,) = measurements.readings_of(reading)
    return measurements.under(name)


def named(reading: str, *needs: str) -> list[str]:
    return [f"{need}/{reading}" for need in needs]


def test_the_reading_is_the_mean_of_the_named_rows_over_real_tokens(
    case: tuple[SmallTransformer, str, list[Plain]],
) -> None:
    model, reading, plain = case
    measurements = under(measured(model, *named(reading, "attention")), reading)
    for i, one in enumerate(plain):
        np.testing.assert_allclose(measurements.vector("attention")[i], one.shown(), atol=1e-6)
        mean = torch.stack([one.weights()[h, q] for h in one.heads for q in one.queries]).mean(0)
        assert measurements.scalar("attention.special_mass")[i] == pytest.approx(
            1 - mean[one.real].sum().item(), abs=1e-6
        )


def test_permuted_uniform_and_dropped_weights(case: tuple[SmallTransformer, str, list[Plain]]) -> None:
    model, reading, plain = case
    measurements = under(
        measured(model, *named(reading, "permutation", "uniform", "leave_one_out.hidden", "top_token")), reading
    )
    for i, one in enumerate(plain):
        draws = keyed_generator(SEED, "permutation", one.one.id).random((DRAWS, len(one.real)))  # type: ignore[attr-defined]
        some = [one.tvd(one.under(one.permuted(draw))) for draw in draws]
        assert measurements.scalar("permutation.tvd")[i] == pytest.approx(float(np.median(some)), abs=2e-5)
        assert measurements.scalar("uniform.tvd")[i] == pytest.approx(one.tvd(one.under(one.uniform)), abs=2e-5)
        if len(one.real) > 1:
            dropped = [one.tvd(one.under(one.without([p]))) for p in one.real]
            np.testing.assert_allclose(measurements.vector("leave_one_out.hidden.change")[i], dropped, atol=2e-5)


@pytest.mark.parametrize("kind", ["both ways", "causal", "within a window", "with sinks", "cross"])
@pytest.mark.parametrize("place", ["layer", "everywhere.live", "everywhere.frozen"])
def test_changed_layers_keep_causal_and_window_structure(kind: str, place: str) -> None:
    model = SOUND[kind]()
    needs = [f"permutation.{place}", f"uniform.{place}"]
    measurements = measured(model, *needs)
    where, _, replacement = place.partition(".")
    layer = 2 if kind == "cross" else 1
    for i, one in enumerate(rows_of(model).instances):
        plain = Plain(model, one, layer, [0, 1], "cls")
        frozen = replacement == "frozen"
        draws = keyed_generator(SEED, "permutation", one.id).random((DRAWS, len(plain.real)))
        moved = [plain.tvd(plain.under(plain.permuted(d), where, frozen)) for d in draws]
        assert measurements.scalar(f"permutation.{place}.tvd")[i] == pytest.approx(float(np.median(moved)), abs=2e-5)
        even = plain.tvd(plain.under(plain.uniform, where, frozen))
        assert measurements.scalar(f"uniform.{place}.tvd")[i] == pytest.approx(even, abs=2e-5)


def test_live_and_frozen_replacement_differ_in_a_deep_model() -> None:
    measurements = measured(SmallTransformer(), "permutation.everywhere.live", "permutation.everywhere.frozen")
    live, frozen = (measurements.scalar(f"permutation.everywhere.{kind}.tvd") for kind in ("live", "frozen"))
    assert np.nanmax(np.abs(live - frozen)) > 1e-4


def test_replay_gives_the_numbers_of_whole_passes() -> None:
    needs = [*named("cls@layer=0", "permutation", "uniform", "flip", "leave_one_out.hidden"), "permutation", "flip"]
    fast, slow = measured(SmallTransformer(), *needs), measured(SmallTransformer(replays=False), *needs)
    for name in fast.scalars:
        np.testing.assert_allclose(fast.scalars[name], slow.scalars[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("reading", ["cls@layer=-1", "cls@layer=0,heads=1"])
def test_the_searched_adversary_is_feasible(reading: str) -> None:
    model = SmallTransformer()
    (measurements,) = [under(measured(model, *named(reading, "adversarial.0.05")), reading)]
    assert measurements.facts["adversarial.method"] == "searched"
    moved, jsd = measurements.scalar("adversarial.0.05.tvd"), measurements.scalar("adversarial.0.05.jsd")
    defined = measurements.lengths > 1
    assert (moved[defined] <= 0.05 + 1e-5).all()
    assert (jsd[defined] > 0.01).mean() > 0.5
    for i in np.flatnonzero(defined):
        own, other = measurements.vector("attention")[i], measurements.vector("adversarial.0.05.attention")[i]
        assert other.sum() == pytest.approx(1, abs=1e-6)
        assert jsd[i] == pytest.approx(jensenshannon(own, other) ** 2, abs=1e-6)


def test_no_adversary_is_searched_for_a_reading_of_many_rows() -> None:
    measurements = under(measured(SmallTransformer(), "adversarial.0.05/rollout@query=cls"), "rollout@query=cls")
    assert np.isnan(measurements.scalar("adversarial.0.05.jsd")).all()
    assert measurements.facts["adversarial.method"] == "not possible for this reading"


def test_agreement_is_tau_of_the_reading_with_shared_gradients() -> None:
    reading = "cls@layer=0,heads=1"
    measurements = measured(SmallTransformer(), *named(reading, "agreement.gradient.meister.inputs"))
    own = under(measurements, reading)
    assert "gradient.meister.inputs" in measurements.vectors, "measured once, under no reading"
    for i, length in enumerate(measurements.lengths):
        if length > 1:
            expected = kendalltau(
                own.vector("attention")[i], measurements.vector("gradient.meister.inputs")[i]
            ).statistic
            assert own.scalar("agreement.gradient.meister.inputs.tau")[i] == pytest.approx(expected, abs=1e-9)


def test_readings_share_what_agreement_computes_without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "agreement.gradient.meister.inputs"
    readings = [f"cls@layer=0,heads={head}" for head in range(2)]
    alone = [under(measured(SmallTransformer(), *named(reading, name)), reading) for reading in readings]
    calls: list[str] = []
    shared = rank_agreement.near_tied_pairs
    monkeypatch.setattr(rank_agreement, "near_tied_pairs", lambda *a, **k: calls.append("") or shared(*a, **k))
    together = measured(SmallTransformer(), *(need for reading in readings for need in named(reading, name)))
    assert len(calls) == 1
    for reading, expected in zip(readings, alone, strict=True):
        for column in ("tau", "p_value", "floor", "gradient_loo", "near_ties"):
            found = under(together, reading).scalar(f"{name}.{column}")
            np.testing.assert_array_equal(found, expected.scalar(f"{name}.{column}"))


def test_rollout_multiplies_the_layers() -> None:
    model = SmallTransformer()
    measurements = under(measured(model, "attention/rollout@query=mean"), "rollout@query=mean")
    for i, one in enumerate(PLAIN[::2]):
        plain = Plain(model, one, 1, [0, 1], "cls")
        total = torch.eye(plain.weights().shape[-1], dtype=torch.float64)
        for site in model.sites():
            mixed = 0.5 * plain.trace.attention[site.key][0].double().mean(0) + 0.5 * torch.eye(len(total))
            total = mixed / mixed.sum(-1, keepdim=True) @ total
        row = total[plain.real].mean(0)[plain.real].detach()
        np.testing.assert_allclose(measurements.vector("attention")[i], row / row.sum(), atol=1e-6)


def test_norms_are_of_the_weighted_transformed_values() -> None:
    model = SmallTransformer()
    measurements = under(measured(model, "attention/norms@query=cls,layer=0"), "norms@query=cls,layer=0")
    block = model.model.blocks[0]
    for i, one in enumerate(PLAIN[::2]):
        plain = Plain(model, one, 0, [0, 1], "cls")
        values = block.value(plain.trace.hidden["layer 0"][0])
        scores = []
        for p in plain.real:
            mixed = torch.cat([plain.weights()[h, 0, p] * values[p, 4 * h : 4 * h + 4].double() for h in (0, 1)])
            scores.append(float((block.output.weight.double() @ mixed).norm()))
        np.testing.assert_allclose(measurements.vector("attention")[i], np.array(scores) / sum(scores), atol=1e-6)


def test_gradient_weighted_attention_keeps_positive_products() -> None:
    model = SmallTransformer()
    reading = "gradients@query=cls,layer=0"
    measurements = under(measured(model, f"attention/{reading}"), reading)
    for i, one in enumerate(PLAIN[::2]):
        plain = Plain(model, one, 0, [0, 1], "cls")
        held: list[Tensor] = []

        def hold(site: Site, live: Tensor, _allowed: Tensor, held: list[Tensor] = held) -> Tensor | None:
            if site.key != "layer 0":
                return None
            held.append(live.detach().requires_grad_())
            return held[0]

        output = torch.softmax(model.run(plain.inputs, intervene=hold).logits[0].double(), -1)[plain.predicted]
        (slope,) = torch.autograd.grad(output, held)
        scores = (held[0] * slope)[0, :, 0].clamp_min(0).mean(0)[plain.real].detach().double()
        expected = scores / scores.sum() if scores.sum() > 0 else torch.full_like(scores, torch.nan)
        np.testing.assert_allclose(measurements.vector("attention")[i], expected, atol=1e-5)


def test_words_are_read_erased_and_differentiated_as_units() -> None:
    model = SmallTransformer()
    pieces, words = (
        measured(model, "leave_one_out.inputs", "gradient.meister.inputs", unit=u) for u in ("tokens", "words")
    )
    for i, one in enumerate(PLAIN[::2]):
        plain = Plain(model, one, 1, [0, 1], "cls")
        groups = [
            [p for p in plain.real if int(plain.inputs.words[TEXT][0, p]) == w] for w in range(len(one.text.split()))
        ]
        assert [len(g) for g in groups] == [-(-len(w) // 4) for w in one.text.split()]
        assert len(words.tokens[i]) == len(groups)
        first = {p: n for n, p in enumerate(plain.real)}
        summed = [sum(pieces.vector("attention")[i][first[p]] for p in g) for g in groups]
        np.testing.assert_allclose(words.vector("attention")[i], summed, atol=1e-6)
        norms = [np.sqrt(sum(pieces.vector("gradient.meister.inputs")[i][first[p]] ** 2 for p in g)) for g in groups]
        np.testing.assert_allclose(words.vector("gradient.meister.inputs")[i], np.array(norms) / sum(norms), atol=1e-6)
        if len(groups) > 1:
            for g, change in zip(groups, words.vector("leave_one_out.inputs.change")[i], strict=True):
                keep = torch.ones_like(plain.inputs.mask[TEXT])
                keep[0, g] = False
                left = model.keep(plain.inputs, TEXT, torch.tensor([0]), keep)
                output = torch.softmax(model.run(left).logits[0].double(), -1)
                assert change == pytest.approx(plain.tvd(output), abs=2e-5)


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("cross", "tokens"),
        ("both ways", "words"),
        *(pytest.param(kind, "tokens", marks=pytest.mark.slow) for kind in SOUND if kind != "cross"),
        pytest.param("cross", "words", marks=pytest.mark.slow),
    ],
)
def test_numbers_do_not_depend_on_the_batch_size(kind: str, unit: str) -> None:
    needs = [
        *("permutation", "uniform.everywhere.live", "flip", "top_token", "leave_one_out.hidden", "influence.hidden"),
        *("gradient.meister.hidden", "gradient.jain_wallace.inputs", "conicity", "token_probability"),
        *("comprehensiveness.deletion", "sufficiency.mask"),
    ]
    one, many = (measured(SOUND[kind](), *needs, unit=unit, batch_tokens=b) for b in (1, 4096))
    for name in one.scalars:
        # States after a layer norm have almost equal norms, so the gradient of their norm is mostly rounding error.
        near = 2e-3 if name.startswith("influence") else 2e-5
        if name == "influence.hidden.co_indexed_entropy":
            near = 2e-2  # this column uses one such gradient per state; the others average over states
        np.testing.assert_allclose(one.scalars[name], many.scalars[name], atol=near, err_msg=name)


def test_a_sweep_expands_to_every_layer_and_head() -> None:
    measurements = measured(SmallTransformer(), "uniform/cls@layer=*,heads=*", "uniform/cls@layer=*")
    assert measurements.readings_of("cls@layer=*,heads=*") == [
        f"cls@layer={n},heads={h}" for n in (0, 1) for h in (0, 1)
    ]
    assert measurements.readings_of("cls@layer=*") == ["cls@layer=0,heads=mean", ""], "the last is the model's own"
    single = measured(SmallTransformer(), "uniform/cls@layer=0,heads=1")
    np.testing.assert_allclose(
        measurements.under("cls@layer=0,heads=1").scalar("uniform.tvd"),
        under(single, "cls@layer=0,heads=1").scalar("uniform.tvd"),
        atol=1e-6,
    )


@pytest.mark.parametrize(("kind", "query"), [("both ways", "cls"), ("causal", "last"), ("cross", "mean")])
def test_own_means_the_query_of_the_models_own_reading(kind: str, query: str) -> None:
    stack = ",stack=cross" if kind == "cross" else ""
    measurements = measured(SOUND[kind](), "uniform/own@layer=*,heads=*")
    layers = (0,) if kind == "cross" else (0, 1)
    assert measurements.readings_of("own@layer=*,heads=*") == [
        f"{query}@layer={n},heads={h}{stack}" for n in layers for h in (0, 1)
    ]


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ("uniform/cls@layer=2", "has layers 0 to 1"),
        ("uniform/cls@layer=0,heads=2", "has heads 0 to 1"),
        ("uniform/cls@layer=0,stack=cross", "has these attention stacks: encoder"),
    ],
)
def test_a_reading_that_the_model_lacks_is_refused(need: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        measured(SmallTransformer(), need)


def test_a_model_with_many_sites_must_name_its_reading() -> None:
    with pytest.raises(AdapterError, match="name no reading"):
        measured(SmallTransformer(reading=""))


@pytest.mark.parametrize("text", ["cls@layer=one", "csl@layer=0", "cls@layers=0", "cls@heads=-1", "norms@query=first"])
def test_an_invalid_reading_is_named(text: str) -> None:
    with pytest.raises(CheckError, match="reading"):
        measured(SmallTransformer(), f"uniform/{text}")
