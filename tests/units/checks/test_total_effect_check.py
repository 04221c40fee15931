"""The check of the total effect: its records, and models whose use of attention is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.instances import Instance
from attnaudit.verdict_text import failure_message
from tests.small_models import adapter, dataset
from tests.units.checks.synthetic_measurements import measured, reordered
from tests.units.checks.test_readings import measured as measured_small


def plain_index(changes: np.ndarray, outputs: np.ndarray, classes: np.ndarray) -> float:
    """Return the total-effect index with equally weighted classes, by its definition."""
    counts = {one: int((classes == one).sum()) for one in set(classes.tolist())}
    weights = np.array([1 / len(counts) / counts[one] for one in classes.tolist()])
    variance = sum(w * ((row - weights @ outputs) ** 2).sum() for w, row in zip(weights, outputs, strict=True))
    return float(weights @ changes / (2 * variance))


@pytest.mark.parametrize("labelled", ["all", "some", "none"])
@pytest.mark.parametrize("on", ["probabilities", "logits"])
def test_the_value_is_a_ratio_of_means_over_the_texts_with_several_tokens(on: str, labelled: str) -> None:
    m = measured(labelled=labelled != "none")
    if labelled == "some":
        m.labels[3] = -1
    for column in ("logits", "probabilities"):
        m.scalars[f"rearrangement.{column}"][:7] = np.nan
    m.tokens[:7] = [["w0"]] * 7
    outputs, changes = np.stack(m.vectors[on])[7:], m.scalars[f"rearrangement.{on}"][7:]
    if on == "logits":
        outputs = outputs - outputs.mean(1, keepdims=True)
    classes = (m.labels if labelled == "all" else m.predicted)[7:]
    record = checks.TotalEffect(severity="report", on=on).judge(m)  # type: ignore[arg-type]
    assert record.value == pytest.approx(plain_index(changes, outputs, classes))
    assert record.check == f"total_effect.{on}"
    assert (record.n, record.n_defined) == (120, 113)
    assert record.undefined == {"a single token": 7}
    missing = {"all": 0, "some": 1, "none": 120}[labelled]
    assert (f"{missing} of 120 rows have no label" in record.note) == (missing > 0)
    sampled = checks.TotalEffect(severity="report", on=on, classes="as_sampled").judge(m)  # type: ignore[arg-type]
    assert sampled.value == pytest.approx(changes.mean() / (2 * outputs.var(0).sum()))
    assert sampled.check == f"total_effect.{on}.as_sampled"
    assert sampled.details[f"standard deviation of the {on}"] == pytest.approx(np.sqrt(outputs.var(0).sum()))
    for one in (record, sampled):
        assert one.interval.low < one.value < one.interval.high


@pytest.mark.parametrize("on", ["probabilities", "logits", "standardised"])
def test_texts_with_equal_weights_count_as_unchanged(on: str) -> None:
    """The index is the limit of that of nearly equal weights, whose rearrangements hardly change the output."""
    limit, equal, check = measured(), measured(), checks.TotalEffect(severity="report", on=on)  # type: ignore[arg-type]
    for column in ("logits", "probabilities"):
        limit.scalars[f"rearrangement.{column}"][:20] = 0.0
        equal.scalars[f"rearrangement.{column}"][:20] = np.nan
    for i in range(20):
        limit.vectors["rearrangement.centred_logits"][i] = np.tile(equal.vectors["logits"][i], 16)
        limit.vectors["rearrangement.decisions"][i] = np.eye(2)[limit.predicted[i]]
        equal.vectors["rearrangement.centred_logits"][i] = np.full(32, np.nan)
        equal.vectors["rearrangement.decisions"][i] = np.full(2, np.nan)
    expected, found = check.judge(limit), check.judge(equal)
    assert (found.value, found.interval, found.n_defined) == (expected.value, expected.interval, 120)
    assert found.details == expected.details
    assert "20 texts whose attention weights are all equal count as unchanged" in found.note
    for column in ("logits", "probabilities"):
        equal.scalars[f"rearrangement.{column}"][:] = np.nan
    uniform = check.judge(equal)
    assert (uniform.value, uniform.undefined) == (None, {"all attention weights are equal": 120})


def some_logits(classes: int, n: int = 60) -> Measurements:
    """Return measurements of a model with the classes, whose logits under rearranged weights vary in number."""
    random = np.random.default_rng(classes)
    m = measured(n)
    m.classes = tuple(f"class {i}" for i in range(classes))
    m.labels = random.integers(0, classes, n)
    logits = random.normal(size=(n, classes)) * random.gamma(2, 1, classes) + 3 * np.eye(classes)[m.labels]
    m.predicted = logits.argmax(1)
    m.vectors["logits"] = list(logits)
    m.vectors["rearrangement.decisions"] = list(np.eye(classes)[m.predicted])
    m.vectors["probabilities"] = list(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    m.vectors["rearrangement.centred_logits"] = []
    for row in logits:
        moved = row + random.normal(size=(16, classes))
        moved -= moved.mean(1, keepdims=True)
        moved[int(random.integers(1, 17)) :] = np.nan
        m.vectors["rearrangement.centred_logits"].append(moved.ravel())
    return m


def changed_logits(m: Measurements, factor: float, bias: np.ndarray, order: list[int]) -> Measurements:
    """Return the measurements with scaled logits, a bias per class, and renamed classes."""
    shift = bias - bias.mean()
    found = replace(m, labels=np.argsort(order)[m.labels], vectors=dict(m.vectors), scalars=dict(m.scalars))
    logits = (factor * np.stack(m.vectors["logits"]) + bias)[:, order]
    found.vectors["logits"], found.predicted = list(logits), logits.argmax(1)
    found.vectors["rearrangement.centred_logits"] = [
        (factor * row.reshape(-1, len(order)) + shift)[:, order].ravel()
        for row in m.vectors["rearrangement.centred_logits"]
    ]
    return found


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_index_of_standardised_probabilities_follows_its_definition(classes: int) -> None:
    m = some_logits(classes)
    logits, weights = np.stack(m.vectors["logits"]), 1 / np.bincount(m.labels)[m.labels] / classes
    logits = logits - logits.mean(1, keepdims=True)
    mean = sum(w * row for w, row in zip(weights, logits, strict=True))
    deviation = np.sqrt(sum(w * ((row - mean) ** 2).mean() for w, row in zip(weights, logits, strict=True)))

    def standardised(row: np.ndarray) -> np.ndarray:
        exponentials = np.exp((row - mean) / deviation)
        return np.asarray(exponentials / exponentials.sum())

    outputs = np.array([standardised(row) for row in logits])
    changes = []
    for i, flat in enumerate(m.vectors["rearrangement.centred_logits"]):
        variants = [row for row in flat.reshape(-1, classes) if not np.isnan(row).any()]
        changes.append(np.mean([((standardised(row) - outputs[i]) ** 2).sum() for row in variants]))
    check = checks.TotalEffect(severity="report", on="standardised")
    record = check.judge(m)
    assert record.value == pytest.approx(plain_index(np.array(changes), outputs, m.labels), rel=1e-9)
    assert (record.check, check.needs()) == ("total_effect.standardised", ("rearrangement",))
    assert record.interval.low < record.value < record.interval.high
    if classes == 2:
        assert np.sqrt(np.diff(logits - mean, axis=1)[:, 0] ** 2 @ weights) / deviation == pytest.approx(2)


@settings(max_examples=25)
@given(
    classes=st.integers(2, 4), factor=st.sampled_from([0.01, 0.1, 10.0, 1000.0]), shift=st.floats(-3, 3), data=st.data()
)
def test_standardised_probabilities_do_not_depend_on_scale_bias_or_names(
    classes: int, factor: float, shift: float, data: st.DataObject
) -> None:
    m = some_logits(classes)
    order = data.draw(st.permutations(range(classes)))
    bias = factor * shift * np.linspace(-1, 2, classes)
    check = checks.TotalEffect(severity="report", on="standardised")
    assert check.judge(changed_logits(m, factor, bias, order)).value == pytest.approx(check.judge(m).value, rel=1e-9)
    logits = checks.TotalEffect(severity="report", on="logits")
    scaled = changed_logits(m, factor, bias, order)
    scaled.scalars["rearrangement.logits"] = factor**2 * m.scalars["rearrangement.logits"]
    assert logits.judge(scaled).value == pytest.approx(logits.judge(m).value, rel=1e-9)


@pytest.mark.parametrize("on", ["probabilities", "logits", "standardised"])
@pytest.mark.parametrize("copies", [(1, 5), (4, 1), (3, 3)])
def test_neither_the_shares_of_the_labels_nor_the_order_of_rows_matter(on: str, copies: tuple[int, int]) -> None:
    m = measured()
    check = checks.TotalEffect(severity="report", on=on)  # type: ignore[arg-type]
    rows = np.repeat(np.arange(len(m)), np.array(copies)[m.labels])
    more = reordered(m, np.random.default_rng(0).permutation(rows))
    more.instances = [Instance(id=f"{i:05d}", text=one.text) for i, one in enumerate(more.instances)]
    more.sources = [one.id for one in more.instances]
    assert check.judge(more).value == pytest.approx(check.judge(m).value, rel=1e-9)


def test_the_interval_with_balanced_classes_is_that_of_separate_samples_of_the_classes() -> None:
    """The share of a class that a sample happens to have is no source of error."""
    m = measured(2000)
    m.scalars["rearrangement.logits"] = 0.5 + 4.0 * m.labels + 0.01 * m.scalars["rearrangement.logits"]
    m.vectors["logits"] = [
        np.array([0.0, 4.0 * label + noise])
        for label, noise in zip(m.labels, np.random.default_rng(1).normal(size=2000) / 100, strict=True)
    ]
    widths = [
        record.interval.high - record.interval.low
        for classes in ("balanced", "as_sampled")
        for record in [checks.TotalEffect(severity="report", on="logits", classes=classes).judge(m)]  # type: ignore[arg-type]
    ]
    assert widths[0] < widths[1] / 10


def test_the_logit_of_a_sigmoid_counts_as_two_logits() -> None:
    two, one = measured(), measured()
    one.vectors["logits"] = [np.array([z[1] - z[0]]) for z in two.vectors["logits"]]
    for on in ("logits", "standardised"):
        check = checks.TotalEffect(severity="report", on=on)  # type: ignore[arg-type]
        assert check.judge(one).value == pytest.approx(check.judge(two).value)


def test_the_details_contain_kappa_and_the_index_of_the_other_output() -> None:
    m = measured()
    m.vectors["rearrangement.decisions"] = [np.eye(2)[(i * 7) % 5 // 3] for i in range(len(m))]
    changed = [int(row.argmax()) for row in m.vectors["rearrangement.decisions"]]
    details = checks.TotalEffect(severity="report").judge(m).details
    kappa = details["Cohen's κ of the decisions"]
    assert kappa == pytest.approx(cohen_kappa_score(m.predicted, changed))
    low, high = str(details["Cohen's κ, 95% interval"]).split(" to ")
    assert float(low) < kappa < float(high)
    assert details["share of decisions changed"] == pytest.approx((np.array(changed) != m.predicted).mean())
    other = checks.TotalEffect(severity="report", on="logits").judge(m)
    assert details["total-effect index of the logits"] == pytest.approx(other.value)


def test_outputs_that_do_not_vary_leave_the_index_undefined() -> None:
    m = measured()
    for name in ("logits", "probabilities"):
        m.vectors[name] = [np.array([0.25, 0.75])] * len(m)
    record = checks.TotalEffect(at_least=0.1).judge(m)
    assert (record.verdict, record.value, record.blocks) == ("undefined", None, True)
    assert record.undefined == {"the probabilities do not vary": 120}
    assert "the probabilities are the same for every text" in record.note
    assert "undefined" in failure_message(record)


@pytest.mark.parametrize("on", ["probabilities", "logits", "standardised"])
def test_a_model_that_ignores_attention_fails(on: str) -> None:
    """The decoder reads only the part of the states that is the mean of the embeddings, the same for every token."""

    class MeanAndToken(nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            mean = (embeddings * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
            return torch.cat([mean.expand_as(embeddings), embeddings[..., :4]], dim=-1)

    random = np.random.default_rng(0)
    torch.manual_seed(0)
    words = ["the", "film", "is", "not", "good", "bad", "very", "a", "dull", "bright"]
    rows = dataset([" ".join(random.choice(words, 6)) for _ in range(400)])
    for decoder in (nn.Linear(10, 2), nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))):
        first = decoder if isinstance(decoder, nn.Linear) else decoder[0]
        with torch.no_grad():
            first.weight[:, 6:] = 0
        m = measure(adapter(2, encoder=MeanAndToken(), decoder=decoder), rows, ["rearrangement"], model="m", seed=0)[0]
        # Few texts may be predicted as one of the classes.
        record = checks.TotalEffect(at_least=0.3, on=on, classes="as_sampled").judge(m)  # type: ignore[arg-type]
        assert record.value == 0
        assert record.verdict == "fail"
        assert record.interval.low == 0 < record.interval.high
        assert record.details["share of decisions changed"] == 0


@pytest.mark.parametrize("where", ["reading", "layer", "everywhere"])
def test_it_works_under_every_reading(where: str) -> None:
    check = checks.TotalEffect(severity="report", reading="cls@layer=*,heads=*", where=where)  # type: ignore[arg-type]
    record = check.judge(measured_small(check))
    assert record.matrix is not None
    assert all(value is not None and value >= 0 for row in record.matrix.values for value in row)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "logit"}, "unknown on 'logit'. Did you mean 'logits'?"),
        ({"at_most": 0.5}, "with at_most, the check would pass in the very case it warns of"),
        ({"at_least": 0}, "at_least=0 can never fail"),
        ({"at_least": -1}, "at_least is -1; expected"),
        ({"where": "layers"}, "unknown where 'layers'"),
        ({"replacement": "live"}, "applies only to where='everywhere'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(CheckError) as caught:
        checks.TotalEffect(**{"at_least": 0.1} | arguments if "at_most" not in arguments else arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_distinct_draws_have_their_own_id_and_measure() -> None:
    check = checks.PermutationFragility(severity="report", draws="distinct", where="layer")
    assert (check.id, check.needs()) == ("permutation_fragility.tvd.layer.distinct", ("rearrangement.layer",))
    assert checks.PermutationFragility(severity="report").id == "permutation_fragility.tvd"
    with pytest.raises(CheckError, match="unknown draws 'all'"):
        checks.PermutationFragility(severity="report", draws="all")  # type: ignore[arg-type]


def test_distinct_draws_leave_out_the_permutations_that_change_nothing() -> None:
    """Of two tokens, one rearrangement exists: its distance is the value, whatever the seed."""
    model, rows = adapter(2), dataset(["good bad", "dull film", "bad", "very good"])
    tvd = []
    for seed in range(3):
        m = measure(model, rows, ["permutation", "rearrangement"], model="m", seed=seed)[0]
        record = checks.PermutationFragility(severity="report", draws="distinct").judge(m)
        assert record.undefined == {"a single token, or equal attention weights": 1}
        tvd.append(record.value)
        published = m.scalar("permutation.tvd")
        assert (published <= np.nan_to_num(m.scalar("rearrangement.tvd")) + 1e-7).all()
    assert tvd[0] == tvd[1] == tvd[2]
