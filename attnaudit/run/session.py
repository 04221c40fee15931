"""Loads each model and data set once, measures each pair once for all the cases that need it, and judges."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from attnaudit.devices import require_device
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord, ConformanceResult, DataRecord, ModelRecord
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.environment import describe_environment
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.targets import Named

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel


@contextmanager
def quiet() -> Iterator[ProgressCallback | None]:
    """No progress."""
    yield None


class AuditSession:
    """The measuring half of a run, in one process.

    worker: the name of the process. workers: how many share the machine's cores. progress: a context that gives a
    callable (done, total, description), or None.
    """

    def __init__(
        self,
        options: AuditOptions,
        folder: RunFolder,
        *,
        worker: str = "main",
        workers: int = 1,
        progress: Callable[[], AbstractContextManager[ProgressCallback | None]] = quiet,
    ) -> None:
        self.options = options
        self.folder = folder
        self.worker = worker
        self.workers = workers
        self.progress = progress
        self._needs: dict[tuple[str, str], set[str]] = {}
        self._gated: set[str] = set()
        self._pending: dict[str, set[str]] = {}
        self._models: dict[str, tuple[LoadedModel, list[ConformanceResult]]] = {}
        self._datasets: dict[str, tuple[Dataset, str]] = {}
        self._measured: dict[tuple[str, str], Measurements] = {}
        self._refused: dict[tuple[str, str], dict[str, AuditError]] = {}
        self._broken: dict[object, Exception] = {}
        self._threads: int | None = None

    def want(self, model: str, data: str, needs: Iterable[str]) -> None:
        """Announce what a case will need. Everything announced for a pair is measured in one pass."""
        self._needs.setdefault((model, data), set()).update(needs)
        self._pending.setdefault(model, set()).add(data)

    def declare(self, check: Any) -> None:
        """Announce a check of the policy, whether or not its case is selected: failures are corrected for the number
        of gated checks, so that a verdict does not depend on what else runs."""
        if check.severity == "gate":
            self._gated.add(check.id)

    def judge(self, check: Any, model: str, data: str, *, test: str = "") -> CheckRecord:
        """The record of a check. Raises AuditError when the model or the data cannot be audited."""
        measurements = self.measurements(model, data, check.needs_under_reading())
        record: CheckRecord = check.judge(measurements, gated=max(1, len(self._gated)))
        return msgspec.structs.replace(record, test=test)

    def measurements(self, model: str, data: str, needs: Iterable[str] = ()) -> Measurements:
        """What was announced for the pair, measured on first use. An error is raised again for every case; what the
        model cannot serve is raised for the cases with those needs, and the others are measured all the same."""
        pair = (model, data)
        if pair not in self._measured:
            self._measured[pair] = self._once(pair, lambda: self._measure(model, data))
            self._pending.get(model, set()).discard(data)
            if not self._pending.get(model):
                self._models.pop(model, None)  # its weights are not needed again
        refused = self._refused.get(pair, {})
        for need in needs:
            if need in refused:
                raise refused[need]
        return self._measured[pair]

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key in self._broken:
            raise self._broken[key]
        try:
            return make()
        except Exception as error:
            self._broken[key] = error
            raise

    def _measure(self, model: str, data: str) -> Measurements:
        from attnaudit.data import label_indices
        from attnaudit.engine.measuring import measure, refusals, refuse_unauditable

        dataset, full_sha256 = self._dataset(data)
        self._prepare_torch()
        loaded, conformance = self._model(model)
        refuse_unauditable(loaded.adapter)
        classes = loaded.adapter.capabilities.classes
        labels = label_indices(dataset, classes)
        if not conformance:
            from attnaudit.conformance import quick

            conformance.extend(quick(loaded.adapter, dataset.instances))
        needs = sorted(self._needs.get((model, data), set()))
        refused = self._refused[(model, data)] = refusals(loaded.adapter, needs)
        with self.progress() as progress:
            measurements, measured = measure(
                loaded.adapter,
                dataset,
                [need for need in needs if need not in refused],
                model=model,
                seed=self.options.seed,
                labels=labels,
                device=self.options.device,
                unit="words" if self.options.unit == "words" else "tokens",
                progress=progress,
                worker=self.worker,
            )
        self.folder.keep(
            measurements,
            ModelRecord(
                name=model,
                source=loaded.source,
                description=loaded.description,
                classes=list(classes),
                parameters=loaded.parameters,
                sha256=loaded.sha256,
                linear_decoder=loaded.adapter.capabilities.linear_decoder,
                conformance=conformance,
                family=str(getattr(loaded.adapter, "family", "")),
            ),
            _data_record(dataset, full_sha256),
            measured,
            describe_environment(device=self.options.device, threads=self._threads or 1),
        )
        return measurements

    def _model(self, name: str) -> tuple[LoadedModel, list[ConformanceResult]]:
        if name not in self._models:
            from attnaudit.adapters.loading import load_model

            named = _by_id(self.options.named_models(), name)
            self._models[name] = self._once(("model", name), lambda: (load_model(named.target), []))
        return self._models[name]

    def _dataset(self, name: str) -> tuple[Dataset, str]:
        """The sampled data set, and the hash of the whole."""
        if name not in self._datasets:
            named = _by_id(self.options.named_data(), name)

            def read() -> tuple[Dataset, str]:
                from attnaudit.data import load, require_two_classes, sample

                whole = dataclasses.replace(load(named.target), name=name)
                require_two_classes(whole)
                limit = self.options.max_instances
                return whole if limit is None else sample(whole, limit, self.options.seed), whole.sha256()

            self._datasets[name] = self._once(("data", name), read)
        return self._datasets[name]

    def _prepare_torch(self) -> None:
        import torch

        if self._threads is None:
            cores = os.cpu_count() or 1
            if self.workers > 1:
                torch.set_num_threads(max(1, cores // self.workers))
            self._threads = torch.get_num_threads()
        require_device("--audit-device", self.options.device)


def _by_id(named: Iterable[Named], name: str) -> Named:
    return next(one for one in named if one.id == name)


def _data_record(dataset: Dataset, full_sha256: str) -> DataRecord:
    return DataRecord(
        name=dataset.name,
        source=dataset.source,
        description=dataset.description,
        rows=dataset.rows if dataset.rows >= 0 else len(dataset.instances),
        audited=len(dataset.instances),
        labelled=sum(one.label is not None for one in dataset.instances),
        classes=list(dataset.classes),
        sha256=full_sha256,
        sample_seed=dataset.sample_seed,
        sample_sha256=None if dataset.sample_seed is None else dataset.sha256(),
    )
