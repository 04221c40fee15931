"""Load each model and data set once, measure each pair once for all of its cases, and judge the cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnaudit.devices import chosen_device, require_device
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ChangedModelError
from attnaudit.processes import allow_threads, limit_caches, return_free_memory
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord
from attnaudit.records.unit_names import TOKENS_OF_TEXTS
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.checks_of_run import DeclaredChecks
from attnaudit.run.pair_measurement import MeasuredPair, PairMeasurement
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.run_inputs import RunInputs
from attnaudit.run.sequential_rows import SequentialGates
from attnaudit.run.shards.shard_setup import refuse_two_pools, refuse_unused_shards, threads_of
from attnaudit.run.text_progress import TextProgress

if TYPE_CHECKING:
    from attnaudit.checks.paired_gate import BaselineNumbers, PairedGate
    from attnaudit.data.draws import Draws
    from attnaudit.records import Baseline


class AuditSession:
    """Measures and judges in one process of a run.

    Args:
        options: The options of the run.
        folder: The folder that parts are written to.
        worker: The name of this process.
        workers: The number of processes that share the cores of the machine.
        progress: Returns a context manager that yields a callback for progress, or None to show no progress.

    Attributes:
        declared: The declared checks of the run.
        inputs: The models and data sets of the run.
        unit_names: What the audited units are called, such as tokens of texts.
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
        self.declared = DeclaredChecks()
        self.inputs = RunInputs(options)
        self.unit_names = TOKENS_OF_TEXTS
        self._needs: dict[tuple[str, str], set[str]] = {}
        self._measured: dict[tuple[str, str], MeasuredPair] = {}
        self._records: dict[tuple[str, str, str], CheckRecord] = {}
        self._baselines: dict[str, Baseline | None] = {}
        self._code_hashes: dict[str, str] = {}
        self._threads: int | None = None

    def request(self, model: str, data: str, needs: Iterable[str]) -> None:
        """Request the measures that a case needs. All requests for a model and a data set are measured together.

        Args:
            model: The id of the model.
            data: The id of the data set.
            needs: The names of measures.
        """
        self._needs.setdefault((model, data), set()).update(needs)

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
        self.declared.require_unchanged(check)
        key = (model, data, check.id)
        if key not in self._records:
            from attnaudit.checks.paired_gate import PairedGate
            from attnaudit.run.rounding_effects import with_rounding

            measurements = self.measurements(model, data, check.needs_under_reading())
            check = self.declared.applied_to(self.inputs.family(model), check)
            if isinstance(check, PairedGate):
                check = dataclasses.replace(check, baseline=self._baseline(check, model, data))
            record: CheckRecord = check.judge(measurements, gated=self.declared.gated)
            record = with_rounding(record, check, measurements, self._measured[model, data].in_float32)
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
            self._baselines[key] = self.inputs.once(key, lambda: read_baseline(folder, gate.baseline_name))
        pair = self._measured[model, data]
        audited = AuditedPair(
            model=model,
            model_sha256=pair.model_sha256,
            data=data,
            data_sha256=pair.data.sha256,
            sample_sha256=pair.data.sample_sha256,
            policy_sha256=self.declared.policy_sha256,
            measures_sha256=code_fingerprint(),
            attnaudit=__version__,
            seed=self.options.seed,
            unit=self.options.unit,
        )
        return compared(gate, self._baselines[key], audited, pair.measurements, run=self.folder.path)

    def record(self, check: Any, model: str, data: str) -> CheckRecord | None:
        """Return the verdict of a case; None if it was not judged."""
        return self._records.get((model, data, check.id))

    def family(self, model: str) -> str:
        """Return the family of a model. The model is loaded if its family is not known yet.

        Raises:
            AuditError: The model cannot be loaded. `judge` raises the same error for each case of the model.
        """
        if not self.inputs.knows_family(model):
            self.inputs.model(model)
            if self.workers > 1 or len(self.options.model_items()) > 1:
                self.inputs.release(model)  # it is loaded again for measuring; several models would take memory
        return self.inputs.family(model)

    def validation_remark(self, check: str, model: str) -> str:
        """Return a remark on a gate that was not validated on the family of a measured model; "" if there is none."""
        return self.declared.remark(check, self.inputs.family(model))

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
                self._measured[pair] = self.inputs.once(pair, lambda: self._measure(model, data))
            except ChangedModelError as error:
                self.inputs.reject(model, error)  # its results on other data would be wrong
                raise
            if not any(one == model for one, _ in self._unmeasured()):
                self.inputs.release(model)
        refused = self._measured[pair].refused
        for need in needs:
            if need in refused:
                raise refused[need]
        return self._measured[pair].measurements

    def _unmeasured(self) -> list[tuple[str, str]]:
        """Return the requested pairs that have not been measured."""
        return [pair for pair in self._needs if pair not in self._measured]

    def _measure(self, model: str, data: str) -> MeasuredPair:
        """Measure a model on a data set, and write the part."""
        draws = self.inputs.rows(data, lazily=self.declared.are_sequential)
        self._prepare_torch()
        with self.progress() as shown:
            if shown is None:
                return self._measure_rows(model, data, draws, None)
            pairs = len(self._unmeasured()) if self.workers == 1 else 1
            before = sum(len(pair.measurements) for pair in self._measured.values())
            progress = TextProgress(shown, model=model, data=data, before=before, pairs=max(1, pairs))
            progress.phase(f"loading {model}")
            return self._measure_rows(model, data, draws, progress)

    def _measure_rows(self, model: str, data: str, draws: Draws, progress: TextProgress | None) -> MeasuredPair:
        """Measure a model on rows that can be read, and write the part."""
        from attnaudit.engine.measuring import unit_names
        from attnaudit.engine.planning import refuse_unauditable

        loaded, conformance = self.inputs.model(model)
        refuse_unauditable(loaded.adapter)
        self.unit_names = unit_names(loaded.adapter.capabilities, self.options.engine_unit)
        if progress is not None:
            progress.names = self.unit_names
        gates = self.declared.sequential_gates(self.inputs.family(model))
        return PairMeasurement(
            options=self.options,
            folder=self.folder,
            worker=self.worker,
            model=model,
            loaded=loaded,
            conformance=conformance,
            data=data,
            draws=draws,
            needs=sorted(self._needs.get((model, data), set())),
            gates=SequentialGates(gates, gated=self.declared.gated),
            policy_sha256=self.declared.policy_sha256,
            threads=self._threads or 1,
            code_hashes=self._code_hashes,
            progress=progress,
        ).run()

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
