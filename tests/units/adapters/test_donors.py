"""Erased units that are replaced by units of other rows, compared with plain PyTorch code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit.adapters import BagAdapter, InDistribution
from attnaudit.adapters.donors import REPLACED_BY, ROW, Donors, content_hash, donors_of
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.conformance.suite import Subject, cases
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError
from attnaudit.instances import Dataset, Instance
from tests.slow_cases import slow_except
from tests.small_pictures import pictures, small_image_classifier
from tests.small_recordings import LENGTH, recordings, small_recording_classifier, write_wave

WIDTH, DRAWS = 3, 4
ROWS = [Instance(id=str(number), text=str(number), file="unused") for number in range(6)]


def _inputs(donors: Donors, contents: Sequence[Tensor], ids: Sequence[str], width: int) -> Inputs:
    rows = [replace(ROWS[0], id=name) for name in ids]
    tokens = torch.zeros((len(rows), width), dtype=torch.long)
    entry = donors.row_entry(rows, contents, torch.device("cpu"))
    return Inputs(ids={TEXT: tokens}, mask={TEXT: tokens == 0}, special={TEXT: tokens == 1}, extra={ROW: entry})


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(0, 5), st.integers(0, 9), st.integers(0, 2**32 - 1)
)
def test_a_draw_has_the_place_is_never_the_row_itself_and_does_not_depend_on_the_batch(
    lengths: list[int], own: int, draw: int, seed: int
) -> None:
    values = [torch.full((length,), float(number)) for number, length in enumerate(lengths)]
    donors = Donors(InDistribution(donors=ROWS, seed=seed), values)
    counts = np.array([len(one) for one in donors.values])
    donors.set_places(np.arange(counts.max()) < counts[:, None])
    contents = values[own % len(values)]
    width = int(counts.max())
    places = torch.arange(width)[None]
    alone = donors.drawn(_inputs(donors, [contents], ["x"], width), places, draw)[0]
    many = _inputs(donors, [values[0], contents, values[-1]], ["a", "x", "b"], width)
    assert torch.equal(donors.drawn(many, places.expand(3, -1), draw)[1], alone)
    for place, chosen in enumerate(alone.tolist()):
        possible = [n for n in range(len(counts)) if counts[n] > place and not torch.equal(donors.values[n], contents)]
        if possible:
            assert chosen in possible


def test_all_donors_are_drawn_equally_often() -> None:
    values = [torch.full((1,), float(number)) for number in range(5)]
    donors = Donors(InDistribution(donors=ROWS), values)
    inputs = _inputs(donors, [values[2]] * 400, [str(number) for number in range(400)], 1)
    found = torch.cat([donors.drawn(inputs, torch.zeros((400, 1), dtype=torch.long), draw) for draw in range(10)])
    counts = np.bincount(found.flatten(), minlength=5)
    own = next(n for n in range(5) if torch.equal(donors.values[n], values[2]))
    assert counts[own] == 0
    assert all(abs(count - 1000) < 120 for n, count in enumerate(counts) if n != own)  # more than 4 standard errors


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_digest_ignores_order_and_repetition_but_no_contents(order: list[int], changed: int) -> None:
    values = [torch.full((2, 2), float(number)) for number in range(4)]
    chosen = InDistribution(donors=ROWS)
    known = Donors(chosen, values)
    again = Donors(chosen, [values[n] for n in (*order, changed)])
    assert known.configuration == again.configuration
    assert all(torch.equal(one, other) for one, other in zip(known.values, again.values, strict=True))
    other = Donors(chosen, [one + (n == changed) * 0.5 for n, one in enumerate(values)])
    assert known.digest != other.digest
    assert content_hash(torch.zeros(2, 3)) != content_hash(torch.zeros(3, 2))


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="has 1 donors; expected at least 2"):
        InDistribution(donors=ROWS[:1])
    with pytest.raises(AdapterError, match="draws is 1; expected a whole number from 2 to 1000"):
        InDistribution(donors=ROWS, draws=1)
    for draws in (2.5, "8", True):
        with pytest.raises(AdapterError, match=r"draws is .*; expected a whole number"):
            InDistribution(donors=ROWS, draws=draws)  # type: ignore[arg-type]
    for seed in (-1, 1.5, "1"):
        with pytest.raises(AdapterError, match=r"seed is .*; expected a whole number"):
            InDistribution(donors=ROWS, seed=seed)  # type: ignore[arg-type]
    for donors in (None, ["a.npy", "b.npy"], 3):
        with pytest.raises(AdapterError, match=r"donors must be a sequence of rows.*got (NoneType|list|int)"):
            InDistribution(donors=donors)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="all donors have the same contents"):
        Donors(InDistribution(donors=ROWS), [torch.zeros(2)] * 3)


# -- models ----------------------------------------------------------------------------------------------------------


class Pooling(nn.Module):
    """A softmax pooling of feature vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.score, self.decode = nn.Linear(WIDTH, 5), nn.Linear(5, 1), nn.Linear(5, 2)

    def attention(self, states: Tensor, allowed: Tensor) -> Tensor:
        return self.score(states)[..., 0].masked_fill(~allowed, -torch.inf).softmax(-1)

    def forward(self, vectors: Tensor, weights: Tensor | None = None) -> Tensor:
        states = self.encode(vectors)
        weights = self.score(states)[:, 0].softmax(0) if weights is None else weights
        logits: Tensor = self.decode(weights @ states)
        return logits.double().softmax(-1)


def _bags(folder: Path) -> list[Instance]:
    generator = np.random.default_rng(0)
    rows = []
    for number, count in enumerate((4, 6, 3, 5, 7)):
        np.save(folder / f"{number}.npy", generator.normal(size=(count, WIDTH)).astype("float32"))
        rows.append(Instance(id=str(number), text=str(number), file=str(folder / f"{number}.npy")))
    return rows


def _bag_adapter(rows: Sequence[Instance], independent: bool = True) -> BagAdapter:
    model = Pooling().eval()
    return BagAdapter(
        encoder=lambda vectors, _mask: model.encode(vectors),
        attention=model.attention,
        decoder=model.decode,
        classes=["a", "b"],
        features=WIDTH,
        baseline=InDistribution(donors=rows, draws=DRAWS, seed=3),
        independent=independent,
        modules=[model],
    )


def _patch_adapter(rows: Sequence[Instance]) -> Any:
    from attnaudit.adapters.huggingface import transformer

    return transformer(*small_image_classifier(), erased=InDistribution(donors=rows, draws=DRAWS))


def _recording_adapter(kind: str) -> Callable[[Sequence[Instance]], Any]:
    def build(rows: Sequence[Instance]) -> Any:
        from attnaudit.adapters.huggingface import transformer

        long = [one for one in rows if one.id in ("0", "3", "4")]
        return transformer(*small_recording_classifier(kind), erased=InDistribution(donors=long, draws=DRAWS))

    return build


def _short(folder: Path) -> list[Instance]:
    """Return recordings; the only one that is longer than all others has no donor for its end, and is left out."""
    return recordings(folder)[1:]


#: Name -> the adapter, the rows whose units are erased, and all rows.
MODELS: dict[
    str, tuple[Callable[[Sequence[Instance]], Any], Callable[[Path], list[Instance]], Callable[[Path], list[Instance]]]
] = {
    "bag": (_bag_adapter, _bags, _bags),
    "patches": (_patch_adapter, pictures, pictures),
    "spectrogram": (_recording_adapter("ast"), _short, recordings),
    "frames": (_recording_adapter("wav2vec2"), _short, recordings),
}


def _measured(adapter: Any, rows: Sequence[Instance], **settings: Any) -> Any:
    data = Dataset(name="rows", source="test", description="", instances=tuple(rows))
    needs = ["token_effect.live", "token_effect.held"]
    return measure(adapter, data, needs, model="m", seed=0, **settings)[0]


def _effects(adapter: Any, rows: Sequence[Instance], **settings: Any) -> dict[str, Any]:
    """Return the id of each row -> the effects of its units."""
    found = _measured(adapter, rows, **settings)
    values = found.vector("token_effect.held")
    return {one.id: values[i] for i, one in enumerate(found.instances)}


@pytest.mark.parametrize("name", slow_except(MODELS, lambda name: name != "frames"))
def test_the_adapter_keeps_the_contract(name: str, tmp_path: Path) -> None:
    build, rows, everything = MODELS[name]
    subject = Subject(name, lambda: build(everything(tmp_path)), rows(tmp_path))
    failures = [result for result in (case.result() for case in cases(subject)) if result.outcome == "fail"]
    assert failures == []


class DrawsOnce(BagAdapter):
    """Ignores the number of the draw."""

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        return super().substitute_draw(inputs, stream, rows, replaced, 0)


class DrawsByBatch(BagAdapter):
    """Draws other replacements for a row alone than for the same row in a batch."""

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        return super().substitute_draw(inputs, stream, rows, replaced, draw + len(inputs.ids[TEXT]))


@pytest.mark.parametrize(
    ("faulty", "message"), [(DrawsOnce, "in the same way in draws 0 and 1"), (DrawsByBatch, "a row alone")]
)
def test_conformance_rejects_draws_that_are_not_keyed(faulty: type, message: str, tmp_path: Path) -> None:
    rows = _bags(tmp_path)
    adapter = _bag_adapter(rows)
    adapter.__class__ = faulty
    results = [case.result() for case in cases(Subject("bag", lambda: adapter, rows))]
    found = [one for one in results if one.check == "substitution"]
    assert [one.outcome for one in found] == ["fail"]
    assert message in found[0].detail


@pytest.mark.parametrize(
    "name", ["bag", *(pytest.param(name, marks=pytest.mark.slow) for name in ("patches", "spectrogram", "frames"))]
)
def test_the_numbers_do_not_depend_on_the_order_or_the_batches(name: str, tmp_path: Path) -> None:
    build, rows, everything = MODELS[name]
    chosen = rows(tmp_path)[:3]
    known = _effects(build(everything(tmp_path)), chosen)
    backwards = _effects(build(everything(tmp_path)[::-1]), chosen[::-1], batch_tokens=8)
    for one in chosen:
        assert np.allclose(backwards[one.id], known[one.id], atol=1e-6)
    other = _effects(build(everything(tmp_path)), [replace(one, id=f"other {one.id}") for one in chosen])
    assert any(not np.allclose(other[f"other {one.id}"], known[one.id], atol=1e-6) for one in chosen)


def test_a_bag_by_hand(tmp_path: Path) -> None:
    rows, model = _bags(tmp_path), Pooling().eval()
    adapter = _bag_adapter(rows)
    found = _measured(adapter, rows[:1])
    inputs = adapter.collate(rows[:1])
    vectors = torch.from_numpy(np.load(str(rows[0].file)))
    others = torch.cat([torch.from_numpy(np.load(str(one.file))) for one in rows[1:]])
    everything = torch.ones((1, 4), dtype=torch.bool)
    drawn = []
    for draw in range(DRAWS):
        variant = adapter.substitute_draw(inputs, TEXT, torch.tensor([0]), everything, draw)
        drawn.append(torch.cat(adapter.donors.values)[variant.extra[REPLACED_BY][0]])  # type: ignore[union-attr]
        assert all(any(torch.equal(one, other) for other in others) for one in drawn[-1])
    with torch.no_grad():
        clean = model.score(model.encode(vectors))[:, 0].softmax(0)
        predicted = int(model(vectors).argmax())

        def erased(units: Sequence[int], weights: Tensor | None) -> Tensor:
            outputs = []
            for replacements in drawn:
                changed = vectors.clone()
                changed[list(units)] = replacements[list(units)]
                outputs.append(model(changed, weights))
            return torch.stack(outputs).mean(0)

        for weights, name in ((None, "token_effect.live"), (clean, "token_effect.held")):
            whole, nothing = model(vectors, weights), erased(range(4), weights)
            effects = []
            for unit in range(4):
                rest = [other for other in range(4) if other != unit]
                change = whole - erased([unit], weights) + erased(rest, weights) - nothing
                effects.append(float(change[predicted]) / 2)
            assert np.allclose(found.vector(name)[0], effects, atol=1e-5)


def test_patches_by_hand(tmp_path: Path) -> None:
    from PIL import Image

    rows, (model, processor) = pictures(tmp_path), small_image_classifier()
    adapter = _patch_adapter(rows)
    found = _measured(adapter, rows[:1]).vector("token_effect.live")[0]
    inputs = adapter.collate(rows[:1])

    def pixels(row: Instance) -> Tensor:
        with Image.open(str(row.file)) as picture:
            values: Tensor = processor(images=[picture.convert("RGB")], return_tensors="pt")["pixel_values"]
        return values

    own, others = pixels(rows[0]), [pixels(one) for one in rows[1:]]
    real = inputs.real()
    drawn = []
    for draw in range(DRAWS):
        variant = adapter.substitute_draw(inputs, TEXT, torch.tensor([0]), real, draw)
        values = adapter.runner.builder.donors.values
        chosen = [values[number] for number in variant.extra[REPLACED_BY][0, 1:].tolist()]
        assert all(any(torch.equal(one, other[0]) for other in others) for one in chosen)
        drawn.append(chosen)

    def erased(patches: Sequence[int]) -> Tensor:
        outputs = []
        for chosen in drawn:
            changed = own.clone()
            for patch in patches:
                top, left = 4 * (patch // 4), 4 * (patch % 4)
                area = (slice(None), slice(top, top + 4), slice(left, left + 4))
                changed[0][area] = chosen[patch][area]
            outputs.append(model(pixel_values=changed).logits[0].double().softmax(-1))
        return torch.stack(outputs).mean(0)

    with torch.no_grad():
        whole, nothing = model(pixel_values=own).logits[0].double().softmax(-1), erased(range(16))
        for patch in (0, 6, 15):
            rest = [other for other in range(16) if other != patch]
            change = whole - erased([patch]) + erased(rest) - nothing
            assert abs(found[patch] - float(change[int(whole.argmax())]) / 2) < 1e-5


def test_frames_by_hand(tmp_path: Path) -> None:
    rows, (model, _) = recordings(tmp_path), small_recording_classifier()
    adapter = _recording_adapter("wav2vec2")(rows)
    row = rows[2]
    found = _measured(adapter, [row]).vector("token_effect.live")[0]
    inputs, donors = adapter.collate([row]), adapter.runner.builder.donors
    inner = model.wav2vec2

    def embedded(waveform: Tensor) -> Tensor:
        frames: Tensor = inner.feature_projection(inner.feature_extractor(waveform[None]).transpose(1, 2))[0][0]
        return frames

    with torch.no_grad():
        own = embedded(adapter.runner.builder.waveforms(inputs)[0])
        frames = len(own)
        drawn = []
        for draw in range(DRAWS):
            variant = adapter.substitute_draw(inputs, TEXT, torch.tensor([0]), inputs.real(), draw)
            numbers = variant.extra[REPLACED_BY][0].tolist()
            drawn.append(torch.stack([embedded(donors.values[number])[t] for t, number in enumerate(numbers)]))

        def output(units: Tensor) -> Tensor:
            states = inner.encoder(units[None]).last_hidden_state
            logits: Tensor = model.classifier(model.projector(states).mean(1))[0]
            return logits.double().softmax(-1)

        def erased(places: Sequence[int]) -> Tensor:
            outputs = []
            for replacements in drawn:
                changed = own.clone()
                changed[list(places)] = replacements[list(places)]
                outputs.append(output(changed))
            return torch.stack(outputs).mean(0)

        whole, nothing = output(own), erased(range(frames))
        for frame in (0, 2, frames - 1):
            rest = [other for other in range(frames) if other != frame]
            change = whole - erased([frame]) + erased(rest) - nothing
            assert abs(found[frame] - float(change[int(whole.argmax())]) / 2) < 1e-5


def test_the_donors_are_declared_and_part_of_the_configuration(tmp_path: Path) -> None:
    rows = pictures(tmp_path)
    known, other = _patch_adapter(rows), _patch_adapter(rows[1:])
    assert known.configuration != other.configuration
    assert _patch_adapter(rows[::-1]).configuration == known.configuration
    assert "the patch at the same place of another row, drawn at random from 6 donor rows" in known.capabilities.erasure
    assert known.runner.builder.donors.digest[:12] in known.capabilities.erasure
    bags = _bags(tmp_path)
    assert _bag_adapter(bags).configuration != _bag_adapter(bags[1:]).configuration
    assert "drawn at random from 5 donor rows" in _bag_adapter(bags).capabilities.erasure


def test_a_row_longer_than_all_donors_is_refused(tmp_path: Path) -> None:
    rows = recordings(tmp_path)
    adapter = _recording_adapter("wav2vec2")(rows)
    with pytest.raises(AdapterError, match=r"InDistribution: no donor has a unit at place 20, so this unit of the row"):
        adapter.collate(rows[:1])


def test_a_donor_that_does_not_fit_is_an_error_of_the_model_and_is_named(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("bags", "recordings", "pictures")]
    for folder in folders:
        folder.mkdir()
    bags, sounds, drawings = _bags(folders[0]), recordings(folders[1]), pictures(folders[2])
    np.save(tmp_path / "wide.npy", np.zeros((4, WIDTH + 2), dtype="float32"))
    write_wave(tmp_path / "tiny.wav", np.linspace(-1, 1, 100))
    wide = replace(bags[0], id="wide", where="donors.csv:2", file=str(tmp_path / "wide.npy"))
    tiny = replace(sounds[0], where="donors.csv:2", file=str(tmp_path / "tiny.wav"))
    missing = replace(drawings[0], where="donors.csv:2", file=str(tmp_path / "no.png"))
    named = r"InDistribution: a donor cannot be used. donors.csv:2: "
    with pytest.raises(AdapterError, match=rf"{named}the units .* but the model reads {WIDTH} features"):
        _bag_adapter([*bags[1:], wide])
    for kind, fewest in (("ast", 400), ("wav2vec2", LENGTH)):
        with pytest.raises(AdapterError, match=rf"{named}.* 100 samples, but the model needs at least {fewest}"):
            _recording_adapter(kind)([tiny, *sounds[1:]])
    with pytest.raises(AdapterError, match=named):
        _patch_adapter([missing, *drawings[1:]])


def test_the_settings_of_the_donors_have_a_hash(tmp_path: Path) -> None:
    rows = _bags(tmp_path)
    found = [donors_of(_bag_adapter(some)) for some in (rows, rows[::-1], rows[1:])]
    hashes = [one.settings_hash for one in found if one is not None]
    assert hashes[0] == hashes[1] != hashes[2]
    assert donors_of(_patch_adapter(pictures(tmp_path))) is not None
    assert donors_of(object()) is None
