"""Load each model and data set once, measure each pair once for all of its cases, and judge the cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from attnaudit.devices import chosen_device, require_device
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError, ChangedModelError, CheckError, DataError
from attnaudit.instances import Dataset
from attnaudit.model_families import audited_family, is_informational, validation_remark
from attnaudit.processes import allow_threads, limit_caches, return_free_memory
from attnaudit.progress import ProgressCallback
from attnaudit.records import (
    CheckRecord,
    ConformanceResult,
    DataRecord,
    MeasureRecord,
    PolicyValidation,
)
from attnaudit.records.unit_names import TOKENS_OF_TEXTS
from attnaudit.run.audit_items import item_by_id
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.audited_data import accuracy_notes, data_notes, data_record, indices_of_labels, model_record
from attnaudit.run.environment import describe_environment
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.sequential_rows import BLOCK, SequentialGates, candidate_samples, usable
from attnaudit.run.shards.shard_setup import ShardedMeasurement, refuse_two_pools, refuse_unused_shards, threads_of
from attnaudit.run.shards.stored_shards import StoredShardRunner
from attnaudit.run.text_progress import TextProgress

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.arrays import Integers
    from attnaudit.checks.paired_gate import BaselineNumbers, PairedGate
    from attnaudit.data.draws import Draws
    from attnaudit.records import Baseline
    from attnaudit.run.rounding_effects import Float32Rows


#: The first part of the keys under which failures to load a model, and to read data, are kept.
_MODEL, _DATA = object(), object()


class AuditSession:
    """Measures and judges in one process of a run.

    Args:
        options: The options of the run.
        folder: The folder that parts are written to.
        worker: The name of this process.
        workers: The number of processes that share the cores of the machine.
        progress: Returns a context manager that yields a callback for progress, or None to show no progress.
    """

    def __init__(
        self,
        options: AuditOptions,
        folder: RunFolder,
        *,
        worker: str = "main",
        workers: int = 1,
        progress: Callable[[], AbstractContextManager[ProgressCallback | None]] = nullcontext,
    ) -> None:
        self.options = options
        self.folder = folder
        self.worker = worker
        self.workers = workers
        self.progress = progress
        self._needs: dict[tuple[str, str], set[str]] = {}
        self._declared: dict[str, Any] = {}
        self._gates: set[str] = set()
        #: The families on which the gates were validated. They are known after the collection.
        self.validations: list[PolicyValidation] = []
        #: The hash of the effective policy, which is known after the collection, too; "" without a policy.
        self.policy_sha256 = ""
        self._families: dict[str, str] = {}
        self._model_sha256: dict[str, str] = {}
        self._baselines: dict[str, Baseline | None] = {}
        self._unmeasured_data: dict[str, set[str]] = {}
        self._models: dict[str, tuple[LoadedModel, list[ConformanceResult]]] = {}
        self._code_hashes: dict[str, str] = {}
        self._draws: dict[str, Draws] = {}
        self._audited: dict[tuple[str, str], DataRecord] = {}
        self._measured: dict[tuple[str, str], Measurements] = {}
        self._in_float32: dict[tuple[str, str], Float32Rows | None] = {}
        self._refused: dict[tuple[str, str], dict[str, AuditError]] = {}
        self._failures: dict[object, Exception] = {}
        self._records: dict[tuple[str, str, str], CheckRecord] = {}
        self._threads: int | None = None
        self._texts_measured = 0
        self.unit_names = TOKENS_OF_TEXTS

    def request(self, model: str, data: str, needs: Iterable[str]) -> None:
        """Request the measures that a case needs. All requests for a model and a data set are measured together.

        Args:
            model: The id of the model.
            data: The id of the data set.
            needs: The names of measures.
        """
        self._needs.setdefault((model, data), set()).update(needs)
        self._unmeasured_data.setdefault(model, set()).add(data)

    def register_check(self, check: Any) -> None:
        """Register a declared check. A gate is counted, even if its case is not selected.

        The confidence of failures is corrected for the number of gates. All gates are counted, so that a verdict does
        not depend on which other cases are selected.
        """
        self._declared[check.id] = check
        if check.severity == "gate":
            self._gates.add(check.id)

    def judge(self, check: Any, model: str, data: str, *, test: str = "") -> CheckRecord:
        """Judge a check on a model and a data set, which are measured on first use.

        A verdict is final: a case that is judged again, for example by pytest-rerunfailures, keeps its first verdict.

        A gate that the policy makes informational for the family of the model gets an informational record.

        Args:
            check: The declared check.
            model: The id of the model.
            data: The id of the data set.
            test: The node id of the test, for the record.

        Raises:
            AuditError: The model or the data cannot be audited, or the check was declared with different arguments.
        """
        if check != self._declared.get(check.id, check):
            raise CheckError(
                f"{check.id}: the test judged this check with other arguments than it was declared with. Change its "
                "arguments in @audit or in the policy file, not in the test."
            )
        key = (model, data, check.id)
        if key not in self._records:
            from attnaudit.checks.paired_gate import PairedGate
            from attnaudit.run.rounding_effects import with_rounding

            measurements = self.measurements(model, data, check.needs_under_reading())
            if is_informational(check.id, self._families[model], self.validations):
                check = dataclasses.replace(check, severity="report")
            if isinstance(check, PairedGate):
                check = dataclasses.replace(check, baseline=self._baseline(check, model, data))
            record: CheckRecord = check.judge(measurements, gated=max(1, len(self._gates)))
            record = with_rounding(record, check, measurements, self._in_float32[model, data])
            return_free_memory()
            note = "; ".join(filter(None, (record.note, self.validation_remark(check.id, model))))
            self._records[key] = msgspec.structs.replace(record, test=test, note=note)
        return self._records[key]

    def _baseline(self, gate: PairedGate, model: str, data: str) -> BaselineNumbers:
        """Return the numbers of the baseline that a measured model is compared with. Each file is read once.

        Raises:
            ReportError: The baseline file is invalid.
        """
        from attnaudit import __version__
        from attnaudit.run.baselines.baseline_comparison import AuditedPair, compared
        from attnaudit.run.baselines.baseline_file import baseline_path, read_baseline
        from attnaudit.run.judge_models import code_fingerprint

        folder = Path(gate.folder or "")
        key = str(baseline_path(folder, gate.baseline_name))
        if key not in self._baselines:
            self._baselines[key] = self._once(key, lambda: read_baseline(folder, gate.baseline_name))
        described = self._audited[model, data]
        audited = AuditedPair(
            model=model,
            model_sha256=self._model_sha256[model],
            data=data,
            data_sha256=described.sha256,
            sample_sha256=described.sample_sha256,
            policy_sha256=self.policy_sha256,
            measures_sha256=code_fingerprint(),
            attnaudit=__version__,
            seed=self.options.seed,
            unit=self.options.unit,
        )
        return compared(gate, self._baselines[key], audited, self._measured[model, data], run=self.folder.path)

    def record(self, check: Any, model: str, data: str) -> CheckRecord | None:
        """Return the verdict of a case; None if it was not judged."""
        return self._records.get((model, data, check.id))

    def family(self, model: str) -> str:
        """Return the family of a model. The model is loaded if its family is not known yet.

        Raises:
            AuditError: The model cannot be loaded. `judge` raises the same error for each case of the model.
        """
        if model not in self._families:
            loaded, _ = self._model(model)
            self._families[model] = audited_family(loaded.family, self.options.unit)
            if self.workers > 1 or len(self.options.model_items()) > 1:
                self._models.pop(model)  # it is loaded again for measuring; keeping several models would take memory
        return self._families[model]

    def validation_remark(self, check: str, model: str) -> str:
        """Return a remark on a gate that was not validated on the family of a measured model; "" if there is none."""
        return validation_remark(check, self._families.get(model, ""), self.validations)

    def scope_of(self, error: BaseException) -> tuple[str, str] | None:
        """Return what an error concerns: a model, a data set, or a pair of both. The error then fails all of its cases.

        Returns:
            (model, data) if the pair cannot be measured, (model, "") if the model cannot be loaded on any data set, and
            ("", data) if the data cannot be read for any model. None if the error concerns a single case.
        """
        keys = [key for key, failure in self._failures.items() if failure is error]
        for kind, name in (key for key in keys if isinstance(key, tuple)):
            if kind is _MODEL:
                return name, ""
            if kind is _DATA:
                return "", name
        return next((key for key in keys if isinstance(key, tuple)), None)

    def measurements(self, model: str, data: str, needs: Iterable[str] = ()) -> Measurements:
        """Return all measures that were requested for a model and a data set, measured on first use.

        A measurement that failed is not repeated: its error is raised for every case of this model and data set. If the
        model does not support one of the measures, an error is raised only for the cases that need this measure.

        Args:
            model: The id of the model.
            data: The id of the data set.
            needs: The names of the measures that the case needs.

        Raises:
            AuditError: The model or the data cannot be audited, or the model does not support one of `needs`.
        """
        pair = (model, data)
        if pair not in self._measured:
            try:
                self._measured[pair] = self._once(pair, lambda: self._measure(model, data))
            except ChangedModelError as error:
                self._models.pop(model, None)  # It has changed, so its results on other data would be wrong.
                self._failures[_MODEL, model] = error
                raise
            self._unmeasured_data.get(model, set()).discard(data)
            if not self._unmeasured_data.get(model):
                self._models.pop(model, None)  # frees the weights, which no other pair needs
        refused = self._refused.get(pair, {})
        for need in needs:
            if need in refused:
                raise refused[need]
        return self._measured[pair]

    def _once(self, key: object, action: Callable[[], Any]) -> Any:
        """Run an action and return its result. If it has failed before, raise the same error again."""
        if key in self._failures:
            raise self._failures[key]
        try:
            return action()
        except Exception as error:
            self._failures[key] = error
            raise

    def _measure(self, model: str, data: str) -> Measurements:
        """Measure a model on a data set, and write the part. Before the first measurement, test the adapter briefly."""
        self._rows_of(data)
        self._prepare_torch()
        with self.progress() as shown:
            if shown is None:
                return self._measure_rows(model, data, None)
            pairs = sum(map(len, self._unmeasured_data.values())) if self.workers == 1 else 1
            progress = TextProgress(shown, model=model, data=data, before=self._texts_measured, pairs=max(1, pairs))
            progress.phase(f"loading {model}")
            return self._measure_rows(model, data, progress)

    def _measure_rows(self, model: str, data: str, progress: TextProgress | None) -> Measurements:
        """Measure a model on a data set that can be read, as `_measure` does."""
        from attnaudit.engine.measuring import measure, unit_names
        from attnaudit.engine.planning import refusals, refuse_unauditable
        from attnaudit.run.rounding_effects import measured_in_float32

        draws, limit = self._rows_of(data), self.options.max_instances
        loaded, conformance = self._model(model)
        refuse_unauditable(loaded.adapter)
        capabilities = loaded.adapter.capabilities
        self.unit_names = unit_names(capabilities, self.options.engine_unit)
        self._families[model] = audited_family(loaded.family, self.options.unit)
        self._model_sha256[model] = loaded.sha256
        gates = SequentialGates(self._sequential_gates(model), gated=max(1, len(self._gates)))

        def labels_of(rows: Dataset) -> Integers:  # refuses labels that the model does not know
            return indices_of_labels(rows, capabilities)

        if not gates.gates or draws.hashed == "rows":
            first = draws.first(limit)
            labels_of(first)  # before anything is measured
        else:
            first, _ = usable(draws, BLOCK, labels_of)
        if not conformance:
            from attnaudit.conformance import quick

            if progress is not None:
                progress.phase(f"testing the adapter of {model}", self.unit_names)
            conformance.extend(quick(loaded.adapter, first.instances))
        needs = sorted(self._needs.get((model, data), set()))
        refused = self._refused[(model, data)] = refusals(loaded.adapter, needs, self.options.engine_unit)
        measured: tuple[Dataset, Measurements, MeasureRecord] | None = None
        runner: StoredShardRunner | None = None

        def write(error: DataError | None = None) -> Measurements:
            rows, measurements, cost = cast(tuple[Dataset, Measurements, MeasureRecord], measured)
            again = {*needs, *needs_of_gates} - set(refused)
            doubts = [*data_notes(rows, draws, error), *accuracy_notes(cost, measurements.labels)]
            self._in_float32[model, data] = measured_in_float32(loaded.adapter, measurements, again, self.options)
            self._audited[model, data] = data_record(rows, draws, name=data)
            self._texts_measured += len(rows.instances)
            self.folder.write_part(
                measurements,
                model_record(model, loaded, conformance, unit=self.options.unit),
                self._audited[model, data],
                msgspec.structs.replace(cost, notes=[*cost.notes, *doubts]),
                describe_environment(device=self.options.device, threads=self._threads or 1),
            )
            return_free_memory()
            if runner is not None and runner.folder is not None:
                runner.folder.mark_complete()
            return measurements

        def measure_rows(
            rows: Dataset, needs: Iterable[str], rows_before: int | None = None
        ) -> tuple[Measurements, MeasureRecord]:
            nonlocal runner
            measurable = sorted(set(needs) - set(refused))
            runner = ShardedMeasurement(
                options=self.options,
                loaded=loaded,
                source=item_by_id(self.options.model_items(), model).source,
                model=model,
                data=data,
                data_sha256=draws.sha256((rows_before or 0) + len(rows.instances)),
                rows=len(rows.instances),
                rows_before=rows_before,
                needs=measurable,
                policy_sha256=self.policy_sha256,
                threads=self._threads or 1,
                code_hashes=self._code_hashes,
            ).runner(self.folder.shards(self.worker), progress)
            return measure(
                loaded.adapter,
                dataclasses.replace(rows, name=data),
                measurable,
                model=model,
                seed=self.options.seed,
                labels=labels_of(rows),
                device=self.options.device,
                batch_tokens=self.options.batch_tokens,
                unit=self.options.engine_unit,
                progress=progress,
                worker=self.worker,
                sha256=loaded.parameters_sha256,
                rows_before=rows_before,
                run_shards=runner,
            )

        needs_of_gates = {need for gate in gates.gates for need in gate.needs_under_reading()}
        candidates = candidate_samples(
            draws,
            limit,
            gates,
            measure=lambda rows, done: measure_rows(rows, needs_of_gates, done)[0],
            refuse=labels_of,
        )
        try:
            for rows, error in candidates:
                measured = (rows, *measure_rows(rows, {*needs, *needs_of_gates}))
                if gates.are_settled(measured[1]):
                    return write(error)
        except DataError:
            if measured is not None:  # write the rows before the invalid one
                write()
            raise
        return write()

    def _sequential_gates(self, model: str) -> list[Any]:
        """Return the gates that decide after how many rows measuring stops; empty if all rows are measured.

        These are all gates of the policy, whether or not their cases are selected, so that the number of rows does not
        depend on the selection. A gate that needs all rows makes stopping pointless.
        """
        gates = [self._declared[name] for name in sorted(self._gates)]
        gates = [gate for gate in gates if not is_informational(gate.id, self._families[model], self.validations)]
        return gates if all(gate.sampling == "sequential" for gate in gates) else []

    def _model(self, name: str) -> tuple[LoadedModel, list[ConformanceResult]]:
        """Return a model, which is loaded once, and a list to which `_measure` adds its conformance results."""
        if name not in self._models:
            from attnaudit.adapters.loading import load_model

            item = item_by_id(self.options.model_items(), name)
            self._models[name] = self._once((_MODEL, name), lambda: (load_model(item.source), []))
        return self._models[name]

    def _rows_of(self, name: str) -> Draws:
        """Return the rows of a data set, which are kept after they are drawn."""
        if name not in self._draws:
            item = item_by_id(self.options.data_items(), name)
            sequential = bool(self._gates) and all(self._declared[one].sampling == "sequential" for one in self._gates)

            def read() -> Draws:
                from attnaudit.data import require_two_classes
                from attnaudit.data.draws import open_draws

                draws = open_draws(item.source, self.options.seed, lazily=sequential)
                if draws.hashed == "rows":
                    require_two_classes(draws.first(None))
                return_free_memory()
                return draws

            self._draws[name] = self._once((_DATA, name), read)
        return self._draws[name]

    def _prepare_torch(self) -> None:
        """Limit the threads to this process's share of the cores (once), and check that the device exists."""
        import torch

        if self._threads is None:
            limit_caches()
            refuse_two_pools(self.options, self.workers)
            refuse_unused_shards(self.options, self.worker)
            torch.set_num_threads(threads_of(self.options, self.workers))
            self._threads = torch.get_num_threads()
            allow_threads(self._threads * self.options.workers)
            self.options = dataclasses.replace(self.options, device=chosen_device(self.options.device))
        require_device("--audit-device", self.options.device)
