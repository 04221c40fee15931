"""Boxes and times of units reach measurements.parquet. Runs of texts keep their columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.checks.evidence import box_in_words
from attnaudit.engine.joined_measurements import joined
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from attnaudit.report.run_files import MeasurementsFile
from attnaudit.run.measurements_file import SCHEMA, merge_measurements, write_measurements
from tests.small_pictures import pictures, small_image_classifier
from tests.units.checks.synthetic_measurements import measured


@pytest.fixture(scope="module")
def of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    instances = tuple(pictures(tmp_path_factory.mktemp("pictures")))
    data = Dataset(name="pictures", source="test", description="", instances=instances)
    return measure(transformer(*small_image_classifier()), data, ["attention"], model="vit", seed=0)[0]


def test_boxes_are_written_with_the_tokens_and_read_again(of_pictures: Measurements, tmp_path: Path) -> None:
    assert all(
        len(boxes) == len(tokens) == 16 for boxes, tokens in zip(of_pictures.boxes, of_pictures.tokens, strict=True)
    )
    write_measurements(of_pictures, tmp_path / "measurements.parquet")
    pairs = [(("vit", "pictures", 0), "1"), (("vit", "pictures", 0), "2")]
    found = MeasurementsFile(tmp_path).instances(pairs, ["attention"])[pairs[0]]
    assert found.boxes[1] == pytest.approx(list(of_pictures.boxes[1][1]), abs=1e-6)
    assert found.file == of_pictures.instances[1].file
    assert found.times == []


def test_a_run_of_texts_keeps_its_columns(tmp_path: Path) -> None:
    write_measurements(measured(), tmp_path / "measurements.parquet")
    assert pq.read_schema(tmp_path / "measurements.parquet").names == SCHEMA.names


def test_parts_with_and_without_places_are_merged(of_pictures: Measurements, tmp_path: Path) -> None:
    write_measurements(measured(), tmp_path / "a")
    write_measurements(of_pictures, tmp_path / "b")
    merge_measurements([tmp_path / "a", tmp_path / "b"], tmp_path / "measurements.parquet")
    table = pq.read_table(tmp_path / "measurements.parquet")
    assert table.num_rows == pq.read_table(tmp_path / "a").num_rows + pq.read_table(tmp_path / "b").num_rows
    assert "boxes" in table.column_names
    (tmp_path / "none").mkdir()
    merge_measurements([], tmp_path / "none" / "measurements.parquet")
    assert pq.read_schema(tmp_path / "none" / "measurements.parquet").names == SCHEMA.names


def test_boxes_stay_with_their_instances(of_pictures: Measurements) -> None:
    halves = [of_pictures.only(of_pictures.predicted == of_pictures.predicted[0])]
    halves.append(of_pictures.only(of_pictures.predicted != of_pictures.predicted[0]))
    again = joined(*halves) if len(halves[1]) else halves[0]
    assert [one.id for one in again.instances] == of_pictures.ids
    assert [row.tolist() for row in again.boxes] == [row.tolist() for row in of_pictures.boxes]
    assert replace(of_pictures, boxes=()).only(of_pictures.predicted >= 0).boxes == ()


def test_a_box_in_words() -> None:
    assert box_in_words((0.25, 0.5, 0.25, 0.1)) == "25% to 50% of the width and 50% to 60% of the height"
