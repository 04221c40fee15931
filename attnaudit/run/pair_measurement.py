"""Measure one model on one data set, and write the part of the run that describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Dataset
from attnaudit.processes import return_free_memory
from attnaudit.records import ConformanceResult, DataRecord, MeasureRecord
from attnaudit.run.audit_items import item_by_id
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.audited_data import (
    accuracy_notes,
    comparison_notes,
    data_notes,
    data_record,
    indices_of_labels,
    model_record,
)
from attnaudit.run.environment import describe_environment
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.sequential_rows import BLOCK, SequentialGates, candidate_samples, usable
from attnaudit.run.shards.shard_setup import ShardedMeasurement
from attnaudit.run.shards.stored_shards import StoredShardRunner
from attnaudit.run.text_progress import TextProgress

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.arrays import Integers
    from attnaudit.data.draws import Draws
    from attnaudit.run.rounding_effects import Float32Rows


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """What was measured of a model on a data set.

    Attributes:
        measurements: The measurements.
        refused: The name of each measure that the model does not support -> the error.
        in_float32: Some rows of a model in half precision, measured again in float32; None for other models.
        model_sha256: The hash of the model.
        data: The record of the data.
    """

    measurements: Measurements
    refused: Mapping[str, AuditError]
    in_float32: Float32Rows | None
    model_sha256: str
    data: DataRecord


@dataclass(frozen=True, slots=True)
class _Sample:
    """Measured rows of the data set.

    Attributes:
        rows: The rows.
        measurements: Their measurements.
        cost: What measuring them took.
    """

    rows: Dataset
    measurements: Measurements
    cost: MeasureRecord


@dataclass(slots=True, kw_only=True)
class PairMeasurement:
    """Measures one model on one data set.

    Attributes:
        options: The options of the run.
        folder: The folder that the part is written to.
        worker: The name of this process.
        model: The id of the model.
        loaded: The model.
        conformance: The results of the test of its adapter. The test is run if there are none, and adds them.
        data: The id of the data set.
        draws: The rows of the data set.
        needs: The names of the measures.
        gates: The gates that decide after how many rows measuring stops.
        policy_sha256: The hash of the effective policy; "" if there is no policy.
        threads: The number of threads that torch uses.
        code_hashes: The hashes of custom code that were computed before in this run (see `custom_code`).
        progress: Shows the progress; None to show none.
    """

    options: AuditOptions
    folder: RunFolder
    worker: str
    model: str
    loaded: LoadedModel
    conformance: list[ConformanceResult]
    data: str
    draws: Draws
    needs: Sequence[str]
    gates: SequentialGates
    policy_sha256: str
    threads: int
    code_hashes: dict[str, str]
    progress: TextProgress | None
    _refused: dict[str, AuditError] = dataclasses.field(default_factory=dict, init=False)
    _runners: list[StoredShardRunner] = dataclasses.field(default_factory=list, init=False)

    def run(self) -> MeasuredPair:
        """Test the adapter if it was not tested before, measure the rows, and write the part.

        If a row of a sequential audit is invalid, the rows before it are written, and then the error is raised.

        Raises:
            AuditError: The model or the data cannot be audited.
        """
        from attnaudit.engine.planning import refusals

        self._test_adapter()
        self._refused.update(refusals(self.loaded.adapter, self.needs, self.options.engine_unit))
        sample: _Sample | None = None
        candidates = candidate_samples(
            self.draws,
            self.options.max_instances,
            self.gates,
            measure=lambda rows, done: self._measured(rows, self._needs_of_gates, rows_before=done).measurements,
            refuse=self._labels_of,
        )
        try:
            for rows, error in candidates:
                sample = self._measured(rows, {*self.needs, *self._needs_of_gates})
                if self.gates.are_settled(sample.measurements):
                    return self._written(sample, error)
        except DataError:
            if sample is not None:
                self._written(sample)
            raise
        assert sample is not None  # the last sample has all rows
        return self._written(sample)

    @property
    def _needs_of_gates(self) -> set[str]:
        return {need for gate in self.gates.gates for need in gate.needs_under_reading()}

    def _labels_of(self, rows: Dataset) -> Integers:
        """Return the class indices of rows. This refuses labels that the model does not know."""
        return indices_of_labels(rows, self.loaded.adapter.capabilities)

    def _test_adapter(self) -> None:
        """Test the adapter on the first rows, whose labels are tested first."""
        if not self.gates.gates or self.draws.hashed == "rows":
            first = self.draws.first(self.options.max_instances)
            self._labels_of(first)
        else:
            first, _ = usable(self.draws, BLOCK, self._labels_of)
        if self.conformance:
            return
        from attnaudit.conformance import quick

        if self.progress is not None:
            self.progress.phase(f"testing the adapter of {self.model}")
        self.conformance.extend(quick(self.loaded.adapter, first.instances))

    def _measured(self, rows: Dataset, needs: Iterable[str], *, rows_before: int | None = None) -> _Sample:
        """Measure rows. `rows_before` is the number of rows before a block; None for a sample from the first row on."""
        from attnaudit.engine.measuring import measure

        measurable = sorted(set(needs) - set(self._refused))
        runner = ShardedMeasurement(
            options=self.options,
            loaded=self.loaded,
            source=item_by_id(self.options.model_items(), self.model).source,
            model=self.model,
            data=self.data,
            data_sha256=self.draws.sha256((rows_before or 0) + len(rows.instances)),
            rows=len(rows.instances),
            rows_before=rows_before,
            needs=measurable,
            policy_sha256=self.policy_sha256,
            threads=self.threads,
            code_hashes=self.code_hashes,
        ).runner(self.folder.shards(self.worker), self.progress)
        self._runners.append(runner)
        measurements, cost = measure(
            self.loaded.adapter,
            dataclasses.replace(rows, name=self.data),
            measurable,
            model=self.model,
            seed=self.options.seed,
            labels=self._labels_of(rows),
            device=self.options.device,
            batch_tokens=self.options.batch_tokens,
            unit=self.options.engine_unit,
            progress=self.progress,
            worker=self.worker,
            sha256=self.loaded.parameters_sha256,
            rows_before=rows_before,
            run_shards=runner,
        )
        return _Sample(rows, measurements, cost)

    def _written(self, sample: _Sample, error: DataError | None = None) -> MeasuredPair:
        """Write the part, and return what was measured.

        Args:
            sample: The rows that the gates are judged on.
            error: An error in a row after them; None if no error was found.
        """
        from attnaudit.run.rounding_effects import measured_in_float32

        measured_needs = {*self.needs, *self._needs_of_gates} - set(self._refused)
        notes = [
            *sample.cost.notes,
            *comparison_notes(self.loaded.adapter),
            *data_notes(sample.rows, self.draws, error),
            *accuracy_notes(sample.cost, sample.measurements.labels),
        ]
        pair = MeasuredPair(
            measurements=sample.measurements,
            refused=self._refused,
            in_float32=measured_in_float32(self.loaded.adapter, sample.measurements, measured_needs, self.options),
            model_sha256=self.loaded.sha256,
            data=data_record(sample.rows, self.draws, name=self.data),
        )
        self.folder.write_part(
            sample.measurements,
            model_record(self.model, self.loaded, self.conformance, unit=self.options.unit),
            pair.data,
            msgspec.structs.replace(sample.cost, notes=notes),
            describe_environment(device=self.options.device, threads=self.threads),
        )
        return_free_memory()
        for runner in self._runners:  # those of the blocks of a sequential audit, too
            if runner.folder is not None:
                runner.folder.mark_complete()
        return pair
