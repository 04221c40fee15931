"""Bags of feature vectors in files: units, erasure, and the numbers against plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attnaudit.adapters import BagAdapter
from attnaudit.checks import PermutationFragility, Pointing, check
from attnaudit.checks.evidence import WORST_INSTANCES
from attnaudit.conformance import full, quick
from attnaudit.data import load
from attnaudit.engine.joined_measurements import joined
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.unit_strings import FILES_AT_ONCE
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Dataset
from attnaudit.records import UnitNames
from attnaudit.targets import Target

FEATURES, STATES = 5, 4
SIZES = (1, 2, 7, 12, 3, 9)


class GatedAttention(nn.Module):
    """Attention-based multiple instance learning (Ilse et al. 2018)."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(FEATURES, STATES), nn.ReLU())
        self.v, self.u, self.w = nn.Linear(STATES, 3), nn.Linear(STATES, 3), nn.Linear(3, 1)
        self.decode = nn.Linear(STATES, outputs)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def encoded(self, vectors: Tensor, _mask: Tensor) -> Tensor:
        states: Tensor = self.encode(vectors)
        return states

    def attend(self, states: Tensor, allowed: Tensor) -> Tensor:
        scores = self.w(torch.tanh(self.v(states)) * torch.sigmoid(self.u(states)))[..., 0]
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    def forward(self, bag: Tensor, weights: Tensor | None = None) -> Tensor:
        states = self.encode(bag)
        own = self.attend(states[None], torch.ones(1, len(bag), dtype=torch.bool))[0] if weights is None else weights
        return self.decode(own @ states).double().softmax(-1)


def bag_adapter(outputs: int = 2, **changes: Any) -> BagAdapter:
    model = GatedAttention(outputs)
    given = {"encoder": model.encoded, "attention": model.attend, "decoder": model.decode, "modules": (model,)}
    return BagAdapter(**(given | {"classes": ("normal", "tumour"), "features": FEATURES} | changes))  # type: ignore[arg-type]


def write_bags(folder: Path, sizes: tuple[int, ...] = SIZES) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    rows = ["file,label"]
    for i, size in enumerate(sizes):
        bag = torch.randn((size, FEATURES), generator=generator)
        if size > 3:
            bag[1] = bag[0]  # duplicates
        np.save(folder / f"bag_{i}.npy", bag.numpy())
        rows.append(f"bag_{i}.npy,{('normal', 'tumour')[i % 2]}")
    (folder / "bags.csv").write_text("\n".join(rows) + "\n")
    return load(folder / "bags.csv")


@pytest.fixture
def bags(tmp_path: Path) -> Dataset:
    return write_bags(tmp_path)


def measured(adapter: BagAdapter, data: Dataset, *needs: str, **options: Any) -> Measurements:
    return measure(adapter, data, needs, model="m", seed=0, **options)[0]


@pytest.mark.parametrize("changes", [{}, {"independent": False}, {"baseline": torch.ones(FEATURES)}])
def test_conformance(bags: Dataset, changes: dict[str, Any]) -> None:
    assert not [one for one in full(bag_adapter(**changes), bags.instances) if one.outcome == "fail"]


def test_bags_of_equal_sizes_conform(tmp_path: Path) -> None:
    bags = write_bags(tmp_path, (6, 6, 6, 6, 6))
    assert not [one for one in full(bag_adapter(), bags.instances) if one.outcome == "fail"]


@check(title="Words per text", question="How many words has a text?", unit="words per text")
def words_per_text(measurements: Measurements) -> list[float]:
    return [float(length) for length in measurements.lengths]


def test_texts_of_users_keep_their_words(bags: Dataset) -> None:
    adapter = bag_adapter(classes=("nine's text", "other texts"))
    rows = [replace(one, label=adapter.capabilities.classes[i % 2]) for i, one in enumerate(bags.instances)]
    data = measured(adapter, replace(bags, instances=rows), *PermutationFragility(at_least=0.1).needs())
    custom = words_per_text(severity="report").judge(data)
    assert (custom.title, custom.unit) == ("Words per text", "words per text")
    found = PermutationFragility(at_least=0.1).judge(data)
    assert found.unit_names == UnitNames(unit="vector", row="bag")
    names = " ".join(part.name for one in found.breakdowns for part in one.parts)
    assert "mean where 'nine's text' is predicted" in found.details
    assert "vectors" in names
    assert "tokens" not in names


def test_a_label_of_a_bag(bags: Dataset) -> None:
    adapter = bag_adapter(classes=("tumour", "necrosis"), target=Target(kind="label", name="necrosis"))
    rows = [replace(one, label=None) for one in bags.instances]
    assert adapter.family == "bag of vectors, multi-label"
    assert adapter.capabilities.labels == ("tumour", "necrosis")
    assert not [one for one in quick(adapter, rows) if one.outcome == "fail"]
    with torch.no_grad():
        logit, logits = (one.run(one.collate(rows)).logits for one in (adapter, bag_adapter()))
    torch.testing.assert_close(logit, logits[:, 1:])


@pytest.mark.parametrize(
    ("baseline", "replacement"), [(None, "a vector of zeros"), (torch.ones(FEATURES), "the baseline vector")]
)
def test_the_report_says_how_units_are_erased(bags: Dataset, baseline: Tensor | None, replacement: str) -> None:
    _, record = measure(bag_adapter(baseline=baseline), bags, ("leave_one_out.inputs",), model="m", seed=0)
    assert f"A masked vector is replaced by {replacement}. A deleted vector is left out of the bag." in record.notes
    assert record.unit_names == UnitNames(unit="vector", row="bag")


def test_an_adapter_declares_the_names_of_units_and_rows(bags: Dataset) -> None:
    adapter = bag_adapter(unit_name="patch", row_name="slide")
    check = Pointing(severity="report")
    data, record = measure(adapter, bags, check.needs(), model="m", seed=0)
    assert (
        record.notes[0] == "A masked patch is replaced by a vector of zeros. A deleted patch is left out of the slide."
    )
    assert check.judge(data).title.startswith("Attention points at the influential patches")


@pytest.mark.parametrize("independent", [True, False])
def test_numbers_against_plain_pytorch(bags: Dataset, independent: bool) -> None:
    baseline = torch.full((FEATURES,), 0.5)
    adapter, model = bag_adapter(independent=independent, baseline=baseline), GatedAttention()
    data = measured(adapter, bags, "leave_one_out.inputs", "token_effect.held", "adversarial.0.05")
    assert data.facts["adversarial.method"] == "exact"
    for i, instance in enumerate(data.instances):
        bag = torch.from_numpy(np.load(str(instance.file)))
        count = len(bag)
        with torch.no_grad():
            clean = model(bag)
            weights = model.attend(model.encode(bag)[None], torch.ones(1, count, dtype=torch.bool))[0]
            np.testing.assert_allclose(data.vector("attention")[i], weights.double(), atol=1e-6)
            if count < 2:
                assert np.isnan(data.vector("token_effect.held")[i]).all()
                continue
            changes, effects = [], []
            nothing = baseline.expand(count, -1)
            top = int(clean.argmax())
            for t in range(count):
                changes.append(0.5 * (model(torch.cat([bag[:t], bag[t + 1 :]])) - clean).abs().sum().item())
                without, alone = bag.clone(), nothing.clone()
                without[t], alone[t] = baseline, bag[t]
                last = clean[top] - model(without, weights)[top]
                first = model(alone, weights)[top] - model(nothing, weights)[top]
                effects.append(((last + first) / 2).item())
        np.testing.assert_allclose(data.vector("leave_one_out.inputs.change")[i], changes, atol=1e-5)
        np.testing.assert_allclose(data.vector("token_effect.held")[i], effects, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"heads": 2, "reading": "own@heads=mean"}])
@pytest.mark.parametrize("sharpness", [1.0, 30.0, 400.0])
def test_masked_bags_from_shared_states(bags: Dataset, changes: dict[str, Any], sharpness: float) -> None:
    """With a sharpness of 400, most weights are rounded to 0, and the model runs again where none is left."""
    model, heads = GatedAttention(), changes.get("heads", 1)
    decode = nn.Linear(STATES * heads, 2)
    nn.init.orthogonal_(decode.weight)

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        rows = [states.roll(head, -1) @ torch.tensor([1.0, -0.5, 0.3, 0.7]) for head in range(heads)]
        scores = sharpness * torch.stack(rows, dim=1)
        weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        return weights[:, 0] if heads == 1 else weights

    adapter = bag_adapter(
        attention=attend, decoder=decode, modules=(model, decode), baseline=torch.full((FEATURES,), 0.3), **changes
    )
    inputs = adapter.collate(bags.instances)
    mask = inputs.mask["text"]
    generator = torch.Generator().manual_seed(0)
    rows, keeps = [], []
    for row, count in enumerate(mask.sum(1).tolist()):
        for subset in (*torch.eye(count, dtype=torch.bool), *~torch.eye(count, dtype=torch.bool)):
            rows, keeps = [*rows, row], [*keeps, nn.functional.pad(subset, (0, mask.shape[1] - count))]
        for share in (0.0, 0.3, 0.8, 1.0):
            subset = (torch.rand(mask.shape[1], generator=generator) < share) & mask[row]
            rows, keeps = [*rows, row], [*keeps, subset]
    which, keep = torch.tensor(rows), torch.stack(keeps)
    with torch.no_grad():
        found = adapter.logits_masked(inputs, adapter.share(inputs), which, keep)
        expected = adapter.run(adapter.substitute(inputs, "text", which, mask[which] & ~keep)).logits
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_effects_with_live_attention_do_not_depend_on_the_faster_computation(bags: Dataset) -> None:
    fast, slow = bag_adapter(), bag_adapter()
    slow._capabilities = replace(slow._capabilities, shares_masked=False)
    one, other = (measured(adapter, bags, "token_effect.live") for adapter in (fast, slow))
    for column in ("token_effect.live", "token_effect.live.logits"):
        for i in range(len(SIZES)):
            np.testing.assert_allclose(one.vector(column)[i], other.vector(column)[i], atol=1e-5)


@pytest.mark.parametrize(("sharpness", "limit"), [(1.0, 1), (1.0, 2), (30.0, 2)])
@pytest.mark.parametrize(
    "changes", [{}, {"heads": 2, "reading": "own@heads=mean"}, {"heads": 2, "reading": "own@heads=1"}]
)
def test_large_bags_have_the_effects_of_the_slower_computation(
    bags: Dataset, changes: dict[str, Any], sharpness: float, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, heads = GatedAttention(), changes.get("heads", 1)
    decode = nn.Sequential(nn.Linear(STATES * heads, 3), nn.Tanh(), nn.Linear(3, 2))

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        rows = [states.roll(head, -1) @ torch.tensor([1.0, -0.5, 0.3, 0.7]) for head in range(heads)]
        weights = (sharpness * torch.stack(rows, dim=1)).masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        return weights[:, 0] if heads == 1 else weights

    given = {
        "attention": attend,
        "decoder": decode,
        "modules": (model, decode),
        "baseline": torch.full((FEATURES,), 0.3),
    }
    needs = ("token_effect.held", "token_effect.live")
    slow = measured(bag_adapter(**given, **changes), bags, *needs)
    monkeypatch.setattr("attnaudit.engine.batches.batch.LARGE_ROW", limit)
    calls = []
    original = BagAdapter.logits_with_single_masks
    monkeypatch.setattr(
        BagAdapter,
        "logits_with_single_masks",
        lambda *given, **how: calls.append((how["alone"], how["held"])) or original(*given, **how),
    )
    fast = measured(bag_adapter(**given, **changes), bags, *needs)
    assert set(calls) >= {(True, False), (False, False)}
    assert ((True, True) in calls) == ((False, True) in calls) == ("heads" not in changes or heads == 2)
    for column in (f"{need}{output}" for need in needs for output in ("", ".logits")):
        for i in range(len(SIZES)):
            np.testing.assert_allclose(fast.vector(column)[i], slow.vector(column)[i], atol=2e-5, err_msg=column)


def test_masked_bags_are_compared_with_the_model_before_an_audit(bags: Dataset) -> None:
    class WrongBaseline(BagAdapter):
        def _with_baseline(self, inputs: Any) -> Any:
            found = super()._with_baseline(inputs)
            found.states = found.states + 0.1
            return found

    model = GatedAttention()
    adapter = WrongBaseline(
        encoder=model.encoded,
        attention=model.attend,
        decoder=model.decode,
        modules=(model,),
        classes=("normal", "tumour"),
        features=FEATURES,
    )
    with pytest.raises(AdapterError, match=r"logits_masked"):
        quick(adapter, bags.instances)


def test_batches_and_the_order_of_units_do_not_matter(bags: Dataset, tmp_path: Path) -> None:
    needs = ("leave_one_out.inputs", "pointing.held", "uniform")
    together = measured(bag_adapter(), bags, *needs)
    alone = measured(bag_adapter(), bags, *needs, batch_tokens=1)
    for column, values in together.scalars.items():
        np.testing.assert_allclose(values, alone.scalars[column], atol=1e-5, err_msg=column)
    backwards = tmp_path / "backwards"
    backwards.mkdir()
    for i in range(len(SIZES)):
        np.save(backwards / f"bag_{i}.npy", np.load(tmp_path / f"bag_{i}.npy")[::-1])
    (backwards / "bags.csv").write_text((tmp_path / "bags.csv").read_text())
    turned = measured(bag_adapter(), load(backwards / "bags.csv"), *needs)
    by_name = {one.text: i for i, one in enumerate(together.instances)}
    for j, instance in enumerate(turned.instances):
        i = by_name[instance.text]
        np.testing.assert_allclose(
            turned.vector("leave_one_out.inputs.change")[j][::-1],
            together.vector("leave_one_out.inputs.change")[i],
            atol=1e-5,
        )


def test_bags_with_the_same_vectors_repeat_each_other(tmp_path: Path) -> None:
    data = write_bags(tmp_path)
    array = np.load(tmp_path / "bag_3.npy")
    torch.save(torch.from_numpy(array), tmp_path / "copy.pt")
    (tmp_path / "bags.csv").write_text("file,label\nbag_3.npy,normal\ncopy.pt,normal\nbag_5.npy,tumour\n")
    sources = measured(bag_adapter(), load(tmp_path / "bags.csv")).sources
    assert len(set(sources)) == 2
    assert len(set(measured(bag_adapter(), data).sources)) == len(SIZES)


def test_names_and_boxes_reach_the_inputs(tmp_path: Path) -> None:
    boxes = torch.tensor([[0, 0, 0.5, 1], [0.5, 0, 0.5, 1]])
    tensors = {"features": torch.randn(2, FEATURES).half(), "boxes": boxes}
    save_file(tensors, tmp_path / "bag.safetensors", metadata={"names": '["left", "right"]'})
    (tmp_path / "bags.csv").write_text("file\nbag.safetensors\n")
    inputs = bag_adapter().collate(load(tmp_path / "bags.csv").instances)
    assert inputs.tokens["text"] == [["left", "right"]]
    assert inputs.boxes["text"] == [[(0, 0, 0.5, 1), (0.5, 0, 0.5, 1)]]


def test_units_without_names_are_named_by_their_times(tmp_path: Path) -> None:
    times = torch.tensor([[0.0, 0.25], [0.25, 1.5]])
    save_file({"features": torch.randn(2, FEATURES), "times": times}, tmp_path / "bag.safetensors")
    (tmp_path / "bags.csv").write_text("file\nbag.safetensors\n")
    inputs = bag_adapter().collate(load(tmp_path / "bags.csv").instances)
    assert inputs.tokens["text"] == [["0.00 to 0.25 s", "0.25 to 1.50 s"]]
    assert inputs.times["text"] == [[(0.0, 0.25), (0.25, 1.5)]]


def test_boxes_and_times_stay_with_their_bags_if_other_bags_have_none(tmp_path: Path) -> None:
    """More bags than are read at once: one part of them has a bag without places, the other part has none."""
    names = [f"bag_{number:03}.safetensors" for number in range(FILES_AT_ONCE + 4)]
    for number, name in enumerate(names):
        tensors = {"features": torch.randn(2, FEATURES)}
        if number == 1:
            tensors["boxes"] = torch.tensor([[0, 0, 0.5, 1], [0.5, 0, 0.5, 1]])
        elif number:
            tensors["times"] = torch.tensor([[0.0, 1.0], [1.0, 2.0]]) + number
        save_file(tensors, tmp_path / name)
    (tmp_path / "bags.csv").write_text("\n".join(["file", *names]))
    fragility = PermutationFragility(severity="report")
    data = measured(bag_adapter(), load(tmp_path / "bags.csv"), *fragility.needs())
    assert len(fragility.judge(data).worst) == WORST_INSTANCES
    places = {Path(str(one.file)).name: i for i, one in enumerate(data.instances)}
    for number, name in enumerate(names):
        i = places[name]
        assert data.times[i].tolist() == ([[number, number + 1], [number + 1, number + 2]] if number > 1 else [])
        assert len(data.boxes[i]) == (2 if number == 1 else 0)
    halves = data.only(np.arange(len(data)) < 1), data.only(np.arange(len(data)) >= 1)
    again = joined(halves[1], halves[0])
    assert [row.tolist() for row in again.times] == [row.tolist() for row in data.times]
    assert [row.tolist() for row in again.boxes] == [row.tolist() for row in data.boxes]


def test_all_weight_on_one_unit(bags: Dataset) -> None:
    adapter, model = bag_adapter(), GatedAttention()

    def one_hot(states: Tensor, allowed: Tensor) -> Tensor:
        return (states.sum(-1) * 200).masked_fill(~allowed, -torch.inf).softmax(-1)

    adapter.attention = one_hot
    model.attend = one_hot  # type: ignore[method-assign]
    data = measured(adapter, bags, "leave_one_out.inputs")
    for i, instance in enumerate(data.instances):
        bag = torch.from_numpy(np.load(str(instance.file)))
        if len(bag) > 1:
            with torch.no_grad():
                clean = model(bag)
                changes = [
                    0.5 * (model(torch.cat([bag[:t], bag[t + 1 :]])) - clean).abs().sum().item()
                    for t in range(len(bag))
                ]
            np.testing.assert_allclose(data.vector("leave_one_out.inputs.change")[i], changes, atol=1e-5)


def test_an_encoder_that_mixes_units_is_not_independent(bags: Dataset) -> None:
    model = GatedAttention()

    def mixing(vectors: Tensor, mask: Tensor) -> Tensor:
        mean = (vectors * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        states: Tensor = model.encode(vectors + mean)
        return states

    given = {"encoder": mixing, "attention": model.attend, "decoder": model.decode, "modules": (model,)}
    quick(bag_adapter(independent=False, **given), bags.instances)
    with pytest.raises(AdapterError, match=r"unitwise|logits_without"):
        quick(bag_adapter(**given), bags.instances)


def test_errors(bags: Dataset, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="expected one vector of 5 finite numbers"):
        bag_adapter(baseline=torch.zeros(4))
    with pytest.raises(DataError, match=r"bags.csv:2: the units of 'bag_0.npy' have the shape \(5,\), but the model"):
        bag_adapter(features=6, baseline=None).collate(bags.instances)
    with pytest.raises(DataError, match="12 units, but the model takes at most 10"):
        bag_adapter(max_tokens=10).collate(bags.instances)
    np.save(tmp_path / "bag_2.npy", np.zeros((2, FEATURES)))
    with pytest.raises(DataError, match="changed after the data were loaded"):
        measured(bag_adapter(), bags)
