"""Comparing labels with a model's classes."""

from __future__ import annotations

import pytest

from attnaudit.data import label_indices, require_two_classes, sample
from attnaudit.data.row_parsing import ordered_classes
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.targets import Target


def dataset(*labels: str | None) -> Dataset:
    instances = tuple(
        Instance(id=str(n), text="t", label=label, where=f"rows.csv:{n}") for n, label in enumerate(labels, start=2)
    )
    return Dataset(
        name="rows", source="rows.csv", description="", instances=instances, classes=ordered_classes(instances)
    )


@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        (("negative", "positive", None), ("negative", "positive"), [0, 1, -1]),
        (("positive", "negative"), ("positive", "negative"), [0, 1]),
        (("1", "0", None), ("negative", "positive"), [1, 0, -1]),
        (("1", "negative"), ("negative", "positive"), [1, 0]),
        (("1", "2"), ("1", "2"), [0, 1]),
        (("2", "0"), ("0", "1", "2"), [2, 0]),
        (("-1", "1"), ("-1", "1"), [0, 1]),
    ],
)
def test_indices(labels: tuple[str | None, ...], classes: tuple[str, ...], indices: list[int]) -> None:
    assert label_indices(dataset(*labels), classes) == indices


@pytest.mark.parametrize(
    ("label", "classes", "message"),
    [
        ("postive", ("negative", "positive"), "Did you mean 'positive'?"),
        ("Positive", ("negative", "positive"), r"Did you mean 'positive'\? Labels are case-sensitive\."),
        ("POSITIVE", ("negative", "positive"), r"Did you mean 'positive'\? Labels are case-sensitive\."),
        ("2", ("negative", "positive"), r"\(0 'negative', 1 'positive'\)"),
        ("-1", ("negative", "positive"), "leave it empty if the row is unlabelled"),
        ("01", ("negative", "positive"), "is not one of the model's classes"),
        ("0", ("1", "2"), r"\(0 '1', 1 '2'\)"),
        ("positive", ("LABEL_0", "LABEL_1"), r"Name them under 'id2label' in its config\.json"),
    ],
)
def test_unknown_label_names_row_and_classes(label: str, classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        label_indices(dataset(classes[0], label), classes)
    assert f"rows.csv:3: column 'label': '{label}'" in str(caught.value)


def test_an_unknown_tag_says_what_the_model_does() -> None:
    with pytest.raises(
        DataError, match=r"'negative' is not one of the model's tags \(0 'O', 1 'PERSON'\)\. This .*targets\.md#a-tag"
    ):
        label_indices(dataset("O", "negative"), ("O", "PERSON"), Target(kind="tag"))


@pytest.mark.parametrize("labels", [("x" * 1_000_000,), ("-" * 1_000_000,)])
def test_messages_shorten_long_labels_and_long_lists(labels: tuple[str]) -> None:
    classes = ["y" * 1_000, *map(str, range(1_000))]
    with pytest.raises(
        DataError, match=r"column 'label': '.{37}\.\.\.' is not .*0 'y{37}\.\.\.', 1 '0', .*, \.\.\.\)"
    ) as one:
        label_indices(dataset(*labels), classes)
    multi_label = rows(Instance(id="i" * 1_000, text="t", labels=labels))
    with pytest.raises(
        DataError, match=r"column 'labels': '.{37}\.\.\.' is not .*\(y{37}\.\.\., 0, .*, \.\.\.\)"
    ) as several:
        label_indices(multi_label, TOXIC.classes, TOXIC, classes)
    with pytest.raises(DataError, match=r"every label is '.{37}\.\.\.'") as same:
        require_two_classes(dataset(*labels))
    assert max(len(str(caught.value)) for caught in (one, several, same)) < 600


def test_a_single_class_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"rows\.csv.*every label is 'x'.*Add rows of another class, or remove the labels"
    ):
        require_two_classes(dataset("x", "x", None))


@pytest.mark.parametrize("labels", [("x", "y"), ("x", "y", None), (None, None)])
def test_two_classes_or_no_label_are_accepted(labels: tuple[str | None, ...]) -> None:
    assert require_two_classes(dataset(*labels)) is None


def test_a_sample_with_one_of_two_classes_is_accepted() -> None:
    subset = sample(dataset("x", "y"), 1, 0)
    assert len({one.label for one in subset.instances}) == 1
    assert require_two_classes(subset) is None


def test_training_needs_a_label_in_every_row() -> None:
    with pytest.raises(DataError, match=r"rows\.csv:4: column 'label' is empty\. Training"):
        require_two_classes(dataset("x", "y", None), labelled=True)
    with pytest.raises(DataError, match="every label is 'x'"):
        require_two_classes(dataset("x", "x"), labelled=True)


TOXIC = Target(kind="label", name="toxic")


def rows(*instances: Instance) -> Dataset:
    return Dataset(name="rows", source="rows.csv", description="", instances=instances)


def test_the_label_of_a_multi_label_model_is_whether_it_applies() -> None:
    dataset = rows(
        Instance(id="1", text="t", labels=("toxic", "insult")),
        Instance(id="2", text="t", labels=("insult",)),
        Instance(id="3", text="t", labels=()),
        Instance(id="4", text="t"),
    )
    assert label_indices(dataset, TOXIC.classes, TOXIC, ("toxic", "insult")) == [1, 0, 0, -1]


@pytest.mark.parametrize(
    ("instance", "target", "message"),
    [
        (Instance(id="1", text="t", label="toxic"), TOXIC, "id '1': column 'label' is filled.*any number of labels"),
        (Instance(id="1", text="t", labels=("toxc",)), TOXIC, "'toxc' is not one of the model's labels.*'toxic'"),
        (Instance(id="1", text="t", labels=("x",)), Target(), "column 'labels' is filled.*assigns one label"),
    ],
)
def test_the_column_must_fit_the_target(instance: Instance, target: Target, message: str) -> None:
    with pytest.raises(DataError, match=message):
        label_indices(rows(instance), ("x", "y"), target, ("toxic", "insult"))


def test_a_target_without_decisions_has_no_labels() -> None:
    string = Target(kind="string")
    assert label_indices(dataset("x", "y"), string.classes, string) == [-1, -1]
