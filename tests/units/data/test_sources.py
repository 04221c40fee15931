"""Loading registered data sets, and errors for unknown names."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnaudit.data import load, sources
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.registry import Registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """An empty registry that replaces the real one."""
    empty: Registry[Any] = Registry("data set", "attnaudit.no_such_group")
    monkeypatch.setattr(sources, "datasets", empty)
    return empty


def test_function_that_returns_a_data_set(registry: Registry[Any]) -> None:
    @registry.register("mine")
    def other() -> Dataset:
        return Dataset(
            name="other",
            source="s",
            description="d",
            instances=(Instance(id="a", text="one", label="y"), Instance(id="b", text="two", label="x")),
        )

    dataset = load("mine")
    assert (dataset.name, dataset.source, dataset.description) == ("mine", "s", "d")
    assert (dataset.rows, dataset.classes) == (2, ("x", "y"))
    assert [one.where for one in dataset.instances] == ["mine:1", "mine:2"]


def test_generator_of_rows(registry: Registry[Any]) -> None:
    @registry.register("mine")
    def rows() -> Iterator[dict[str, object]]:
        """Two rows.

        More words.
        """
        yield {"text": "one", "label": 1}
        yield {"text": "two", "label": 0}

    dataset = load("mine")
    assert [(one.text, one.label) for one in dataset.instances] == [("one", "1"), ("two", "0")]
    assert dataset.description == "Two rows."
    assert dataset.source.endswith("rows")


def test_list_of_instances_with_integer_labels(registry: Registry[Any]) -> None:
    registry.register("mine")(lambda: [Instance(id="a", text="one", label=1)])  # type: ignore[arg-type]
    assert load("mine").instances[0].label == "1"


def test_data_set_itself(registry: Registry[Any]) -> None:
    registry.register("mine")(Dataset(name="x", source="s", description="", instances=(Instance(id="a", text="one"),)))
    assert load("mine").instances[0].text == "one"


@pytest.mark.parametrize(
    ("produced", "message"),
    [
        ([], "mine: there are no rows"),
        (None, "returned NoneType. Expected a Dataset"),
        ("text", "returned str|mine:1: found 't'"),
        ([("one", "x")], r"mine:1: found \('one', 'x'\)"),
        ([{"text": "one"}, {1: "x"}], r"mine:2: found \{1: 'x'\}"),
        ([{"text": "one"}, {"txt": "x"}], "mine:2: column 'text' is missing.*Rename 'txt'"),
        ([{"text": "one"}, {"text": ""}], "mine:2: column 'text': found a blank text"),
        ([Instance(id="a", text="one"), Instance(id="a", text="two")], "mine:2: column 'id': 'a' was given before"),
        ([Instance(id="a", text="one", label=0.5)], "Write classes as integers"),  # type: ignore[arg-type]
        ([Instance(id="", text="one")], "column 'id': found no value"),
    ],
)
def test_unusable_return_values_are_refused(registry: Registry[Any], produced: object, message: str) -> None:
    registry.register("mine")(lambda: produced)
    with pytest.raises(DataError, match=message):
        load("mine")


def test_function_that_fails(registry: Registry[Any]) -> None:
    @registry.register("mine")
    def broken() -> Iterator[dict[str, str]]:
        yield {"text": "one"}
        raise ConnectionError("no network")

    with pytest.raises(DataError, match=r"data set 'mine'.*broken failed with ConnectionError: no network"):
        load("mine")


def test_a_function_that_ends_the_program_has_failed(registry: Registry[Any]) -> None:
    registry.register("mine")(lambda: sys.exit(0))
    with pytest.raises(DataError, match="failed with SystemExit: 0"):
        load("mine")


def test_a_generator_may_yield_the_same_dict_again(registry: Registry[Any]) -> None:
    @registry.register("mine")
    def refilled() -> Iterator[dict[str, str]]:
        row: dict[str, str] = {}
        for text in ("one", "two"):
            row["text"] = text
            yield row

    assert [instance.text for instance in load("mine").instances] == ["one", "two"]


def test_an_audit_error_of_the_function_is_passed_on(registry: Registry[Any]) -> None:
    @registry.register("mine")
    def broken() -> Dataset:
        raise AuditError("Set the folder of the corpus.")

    with pytest.raises(AuditError, match=r"^Set the folder of the corpus\.$"):
        load("mine")


def test_unknown_name_gives_near_names(registry: Registry[Any]) -> None:
    registry.register("movie-reviews")(lambda: [])
    with pytest.raises(DataError, match=r"Unknown data set 'movie-review'.*Did you mean 'movie-reviews'\?.*\.jsonl"):
        load("movie-review")


def test_a_name_that_is_registered_and_a_file_is_refused(
    registry: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").write_text("text\nfrom the file\n")
    monkeypatch.chdir(tmp_path)
    assert load("mine.csv").instances[0].text == "from the file"
    registry.register("mine.csv")(lambda: [{"text": "registered"}])
    with pytest.raises(
        DataError, match=r"both a registered data set and a file\. Write --data \./mine\.csv for the file"
    ):
        load("mine.csv")
    assert load("./mine.csv").instances[0].text == "from the file"
    (tmp_path / "mine.csv").unlink()
    assert load("mine.csv").instances[0].text == "registered"


def test_importing_and_reading_text_files_needs_neither_torch_nor_arrow(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\none\n")
    code = (
        "import sys; from attnaudit.data import load; from attnaudit.data.movie_reviews import movie_reviews\n"
        "assert load(sys.argv[1]).rows == 1 and movie_reviews().rows == 2026\n"
        "print(sorted({'torch', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "rows.csv")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_numpy_text_becomes_plain_text(registry: Registry[Any]) -> None:
    texts, labels = np.array(["one", "two"]), np.array(["x", "y"])
    registry.register("mine")(lambda: [{"text": t, "label": y} for t, y in zip(texts, labels, strict=True)])
    dataset = load("mine")
    assert {type(part) for one in dataset.instances for part in (one.text, one.label)} == {str}
    assert {type(name) for name in dataset.classes} == {str}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"description": None}, "its description is None"),
        ({"source": 5}, "its source is 5"),
        ({"classes": (0, 1)}, "its class 0 is not text"),
        ({"instances": ({"text": "a"},)}, "among its instances. Expected Instance"),
    ],
)
def test_fields_of_the_wrong_type_are_refused(registry: Registry[Any], changes: dict[str, Any], message: str) -> None:
    given = Dataset(name="x", source="s", description="", instances=(Instance(id="a", text="one"),))
    registry.register("mine")(dataclasses.replace(given, **changes))
    with pytest.raises(DataError, match=f"data set 'mine': .*{message}"):
        load("mine")


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(AuditError, match=r"--data x+\.\.\.: cannot be accessed \(File name too long\)"):
        load("x" * 300)
