"""The check of the total effect: its records, and models whose use of attention is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.verdict_text import failure_message
from tests.small_models import adapter, dataset
from tests.units.checks.synthetic_measurements import measured
from tests.units.checks.test_readings import measured as measured_small


@pytest.mark.parametrize("on", ["probabilities", "logits"])
def test_the_value_is_a_ratio_of_means_over_the_texts_that_can_be_rearranged(on: str) -> None:
    m = measured()
    m.scalars[f"rearrangement.{on}"][:7] = np.nan
    outputs, changes = np.stack(m.vectors[on])[7:], m.scalars[f"rearrangement.{on}"][7:]
    if on == "logits":
        outputs = outputs - outputs.mean(1, keepdims=True)
    record = checks.TotalEffect(severity="report", on=on).judge(m)  # type: ignore[arg-type]
    assert record.value == pytest.approx(changes.mean() / (2 * outputs.var(0).sum()))
    assert record.check == f"total_effect.{on}"
    assert (record.n, record.n_defined) == (120, 113)
    assert record.undefined == {"all attention weights are equal": 7}
    assert record.details[f"standard deviation of the {on}"] == pytest.approx(np.sqrt(outputs.var(0).sum()))


def test_the_logit_of_a_sigmoid_counts_as_two_logits() -> None:
    two, one = measured(), measured()
    one.vectors["logits"] = [np.array([z[1] - z[0]]) for z in two.vectors["logits"]]
    check = checks.TotalEffect(severity="report", on="logits")
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


@pytest.mark.parametrize("on", ["probabilities", "logits"])
def test_a_model_that_ignores_attention_fails(on: str) -> None:
    """The decoder reads only the part of the states that is the mean of the embeddings, the same for every token."""

    class MeanAndToken(nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            mean = (embeddings * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
            return torch.cat([mean.expand_as(embeddings), embeddings[..., :4]], dim=-1)

    random = np.random.default_rng(0)
    words = ["the", "film", "is", "not", "good", "bad", "very", "a", "dull", "bright"]
    rows = dataset([" ".join(random.choice(words, 6)) for _ in range(400)])
    for decoder in (nn.Linear(10, 2), nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))):
        first = decoder if isinstance(decoder, nn.Linear) else decoder[0]
        with torch.no_grad():
            first.weight[:, 6:] = 0
        m = measure(adapter(2, encoder=MeanAndToken(), decoder=decoder), rows, ["rearrangement"], model="m", seed=0)[0]
        record = checks.TotalEffect(at_least=0.3, on=on).judge(m)  # type: ignore[arg-type]
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
