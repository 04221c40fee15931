"""Sources: rows that the model cannot distinguish are one source, however they are written, ordered or declared."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.merged_sources import merged_rows, merged_sources
from attnaudit.engine.unit_strings import encode_instances
from attnaudit.instances import Dataset, Instance
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval
from tests.small_models import TEXTS, adapter, dataset, tokenize

#: A row as its text and its source.
Row = tuple[str, str | None]

BOUNDS = (-10.0, 10.0)


def instances_of(rows: list[Row]) -> list[Instance]:
    return [Instance(id=f"{i:03d}", text=text, source=source) for i, (text, source) in enumerate(rows)]


def merged(rows: list[Row]) -> list[str]:
    """The sources of rows whose texts are read in lower case, word by word."""
    return merged_sources(instances_of(rows), [tuple(text.lower().split()) for text, _ in rows])


def grouped(sources: list[str]) -> Groups:
    return Groups.of(sources, [f"{i:03d}" for i in range(len(sources))], np.ones(len(sources), dtype=bool))


def interval(values: np.ndarray, sources: list[str]) -> IntervalEstimate:
    generator = np.random.default_rng(1)
    found = mean_interval(values, grouped(sources), confidence=0.95, generator=generator, bounds=BOUNDS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", None), ("b", None), ("A ", None)], ["row 000", "row 001", "row 000"]),
        ([("a", "s"), ("b", "s"), ("c", None)], ["source s", "source s", "row 002"]),
        # An id and a source of the same name are not one source.
        ([("a", None), ("b", "000")], ["row 000", "source 000"]),
        # A row without a source belongs to the declared source that contains it.
        ([("a", "s"), ("b", "s"), (" b", None)], ["source s"] * 3),
        # Declared sources that say nothing of their own are merged.
        ([("a", "t"), ("A", "s"), (" a", "r")], ["source r"] * 3),
        ([("a", "s"), ("b", "s"), ("b", "r"), ("a", "r")], ["source r"] * 4),
        ([("b", "r"), ("a", "s"), ("b", "s")], ["source s"] * 3),
        # Sources that share one row and differ in others stay apart.
        ([("a", "s"), ("b", "s"), ("a", "r"), ("c", "r")], ["source s", "source s", "source r", "source r"]),
        # If several sources contain it, the first by name counts.
        ([("a", "s"), ("b", "s"), ("a", "r"), ("c", "r"), ("a", "t")], ["source s", "source s", *["source r"] * 3]),
        # A chain ends at the source that contains all the others.
        ([("a", None), ("a", "r"), ("b", "r"), ("a", "s"), ("b", "s"), ("c", "s")], ["source s"] * 6),
        ([], []),
    ],
)
def test_sources_merge_only_if_one_contains_the_other(rows: list[Row], expected: list[str]) -> None:
    assert merged(rows) == expected


rows_of_few_words = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "a b", "b c"]), st.sampled_from([None, "r", "s", "t"])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100)
@given(rows=rows_of_few_words, data=st.data())
def test_the_order_of_the_rows_does_not_matter(rows: list[Row], data: st.DataObject) -> None:
    instances, texts = instances_of(rows), [text for text, _ in rows]
    order = data.draw(st.permutations(range(len(rows))))
    again = merged_sources([instances[i] for i in order], [texts[i] for i in order])
    assert again == [merged_sources(instances, texts)[i] for i in order]


@settings(max_examples=100)
@given(rows=rows_of_few_words)
def test_no_source_left_contains_another_and_declared_sources_stay_whole(rows: list[Row]) -> None:
    sources = merged(rows)
    contents = {name: {text for (text, _), one in zip(rows, sources, strict=True) if one == name} for name in sources}
    assert not [(a, b) for a in contents for b in contents if a != b and contents[a] <= contents[b]]
    for declared in {source for _, source in rows if source}:
        assert len({one for (_, source), one in zip(rows, sources, strict=True) if source == declared}) == 1


@settings(max_examples=100)
@given(rows=rows_of_few_words, data=st.data())
def test_variants_of_rows_add_no_group_whatever_source_they_declare(rows: list[Row], data: st.DataObject) -> None:
    before = grouped(merged(rows))
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=20))
    variants: list[Row] = []
    for number, i in enumerate(picked):
        text, source = rows[i]
        written = data.draw(st.sampled_from([text.upper(), f" {text}", text.replace(" ", "\t"), f"{text}\n"]))
        variants.append((written, data.draw(st.sampled_from([source, None, f"variant {number}"]))))
    after = grouped(merged([*rows, *variants]))
    assert len(after) == len(before)
    assert after.effective <= len(before) + 1e-9


@settings(max_examples=50)
@given(values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30), copies=st.integers(2, 5))
def test_an_interval_is_the_same_if_every_row_is_repeated(values: list[float], copies: int) -> None:
    rows: list[Row] = [(f"w{i}", None) for i in range(len(values))]
    variants: list[Row] = [(f"{' ' * copy}W{i}", None) for copy in range(1, copies) for i in range(len(values))]
    once = interval(np.array(values), merged(rows))
    repeated = interval(np.tile(values, copies), merged([*rows, *variants]))
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    assert grouped(merged([*rows, *variants])).effective == pytest.approx(len(values))


def test_sixty_variants_of_one_text_do_not_narrow_an_interval() -> None:
    values = np.random.default_rng(0).normal(size=20)
    rows: list[Row] = [(f"w{i}", None) for i in range(20)]
    variants: list[Row] = [(f"{' ' * n}w0", f"declared {n}") for n in range(60)]
    found, once = (
        interval(np.append(values, np.full(60, values[0])), merged([*rows, *variants])),
        interval(values, merged(rows)),
    )
    as_distinct = interval(np.append(values, np.full(60, values[0])), [f"{i}" for i in range(80)])
    assert found.high - found.low > once.high - once.low
    assert as_distinct.high - as_distinct.low < (once.high - once.low) / 1.5


# -- in an audit -------------------------------------------------------------------------------------------------------


def measured(data: Dataset, model: object = None, **options: object) -> tuple[Measurements, list[str]]:
    found, record = measure(model or adapter(), data, ["uniform"], model="m", seed=0, **options)  # type: ignore[arg-type]
    return found, record.notes


def with_variants(data: Dataset) -> Dataset:
    variants = [
        replace(one, id=f"{one.id} {number}", text=written.format(one.text.replace(" ", "  ")))
        for number, written in enumerate(["  {}", "{}\n", "\t{} "])
        for one in data.instances
    ]
    return replace(data, instances=(*data.instances, *variants))


@pytest.mark.parametrize("unit", ["tokens", "words"])
@pytest.mark.parametrize("batch_tokens", [1, 20, None])
def test_variants_are_one_source_in_any_batch_and_unit(unit: str, batch_tokens: int | None) -> None:
    found, notes = measured(with_variants(dataset()), unit=unit, batch_tokens=batch_tokens)
    assert found.sources == [f"row {one.id[:3]}" for one in found.instances]
    n = len(TEXTS)
    assert [note for note in notes if "same tokens" in note] == [
        f"{3 * n} of {4 * n} texts have the same tokens as an earlier one. A source that only repeats another one is "
        "merged into it and does not narrow an interval."
    ]


def test_texts_that_differ_are_sources_of_their_own_and_give_no_note() -> None:
    found, notes = measured(dataset())
    assert found.sources == [f"row {one.id}" for one in found.instances]
    assert notes == []


def test_words_that_the_model_does_not_know_are_the_same_to_it() -> None:
    found, _ = measured(dataset(["the film is x", "the film is y", "the film is good"]))
    assert found.sources == ["row 000", "row 000", "row 002"]
    assert found.tokens[0] != found.tokens[1]


def test_texts_that_are_equal_up_to_the_limit_of_the_model_are_one_source() -> None:
    def truncating(text: str) -> object:
        return tokenize(" ".join(text.split()[:3]))

    found, _ = measured(dataset(["the film is good", "the film is bad", "bad film"]), adapter(tokenize=truncating))
    assert found.sources == ["row 000", "row 000", "row 002"]


def test_a_pair_is_repeated_only_if_text_and_query_are() -> None:
    model = adapter(
        query=lambda embeddings, mask: (embeddings * mask[..., None]).sum(1),
        attention=lambda states, allowed, query: allowed / allowed.sum(1, keepdim=True),
    )
    pairs = [("good film", "is it"), (" good  film", "is it "), ("good film", "is film"), ("good film is", "it")]
    instances = [Instance(id=f"{i}", text=text, query=query) for i, (text, query) in enumerate(pairs)]
    sequences = encode_instances(model, instances, "tokens").sequences
    assert merged_sources(instances, sequences) == ["row 0", "row 0", "row 2", "row 3"]


def test_the_chosen_rows_keep_their_sources() -> None:
    found, _ = measured(with_variants(dataset()))
    chosen = np.array([" 1" in one.id or one.id == "001" for one in found.instances])
    assert list(found.only(chosen).sources) == [found.sources[i] for i in np.flatnonzero(chosen)]
    assert len(found.groups(chosen)) == len(TEXTS)


@given(st.lists(st.sampled_from(["one", "two", "three"]), max_size=20), st.randoms(use_true_random=False))
def test_rows_without_sources_are_grouped_as_if_each_had_its_own(texts: list[str], random: Random) -> None:
    rows = instances_of([(text, None) for text in texts])
    random.shuffle(rows)
    sequences = [one.text for one in rows]
    found = merged_sources([replace(one, source=one.id) for one in rows], sequences)
    assert merged_sources(rows, sequences) == [name.replace("source", "row") for name in found]


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=20), st.integers(1, 5))
def test_many_rows_without_sources_have_the_same_groups_in_blocks_of_any_size(texts: list[str], at_once: int) -> None:
    rows = instances_of([(text, None) for text in texts])
    sequences = [text.ljust(8).encode() for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnaudit.disk_arrays.filed_blocks.BLOCK", at_once)
        found = merged_rows([one.id for one in rows], np.frombuffer(b"".join(sequences), dtype="V8"))
    assert list(found) == merged_sources(rows, sequences)
    assert found.distinct() == len(set(texts))
