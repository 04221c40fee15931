"""What the user asked for, checked as far as that goes without loading anything."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.devices import require_name
from attnaudit.errors import AuditError, ModelError, ReportError, require_seed
from attnaudit.run.targets import Named, resolve_datasets, resolve_models

if TYPE_CHECKING:
    from attnaudit.checks.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """models_near, data_near: the folders that relative paths start from. reports: where runs are written to."""

    models: tuple[str, ...]
    data: tuple[str, ...]
    models_near: Path
    data_near: Path
    reports: Path
    policy: Path | None = None
    device: str = "cpu"
    max_instances: int | None = None
    unit: str = "tokens"
    seed: int = 0
    _resolved: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises AuditError that names the option with a value that cannot be meant."""
        require_name("--audit-device", self.device)
        if self.max_instances is not None and self.max_instances < 1:
            raise AuditError(
                f"--audit-max-instances {self.max_instances}: expected 1 or more; leave it out to audit every instance."
            )
        if self.unit not in ("tokens", "words"):
            raise AuditError(f"--audit-unit {self.unit}: expected tokens or words.")
        require_seed("--audit-seed", self.seed)

    def named_models(self) -> tuple[Named, ...]:
        """The models of the run. Raises ModelError when there is none, or an unknown one."""
        if not self.models:
            raise ModelError(
                "No model to audit. Name one: --model demo (shipped), --model CHECKPOINT_FOLDER or "
                "--model package.module:factory; or set audit_model in pytest.ini."
            )
        if "models" not in self._resolved:
            self._resolved["models"] = resolve_models(self.models, base=self.models_near)
        resolved: tuple[Named, ...] = self._resolved["models"]
        return resolved

    def named_data(self) -> tuple[Named, ...]:
        """The data sets of the run. Raises DataError for an unknown one."""
        if "data" not in self._resolved:
            self._resolved["data"] = resolve_datasets(self.data, base=self.data_near)
        resolved: tuple[Named, ...] = self._resolved["data"]
        return resolved

    def policy_checks(self) -> Policy | None:
        """The checks of --policy, or None without one. Raises CheckError that names the file and the table."""
        if self.policy is None:
            return None
        if "policy" not in self._resolved:
            from attnaudit.checks import load_policy

            self._resolved["policy"] = load_policy(self.policy)
        checks: Policy = self._resolved["policy"]
        return checks

    def policy_words(self) -> str:
        """Where the thresholds come from, for audit.json."""
        if self.policy is None:
            return "declared in Python"
        checks = self.policy_checks()
        return f"{self.policy.name} (sha256 {checks.record.sha256 if checks else ''})"

    def require_writable_reports(self) -> None:
        """Raises ReportError when no run can be written. Creates the folder."""
        try:
            self.reports.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.reports):  # a name of its own: workers try at the same moment
                pass
        except OSError as error:
            raise ReportError(
                f"--audit-reports {self.reports}: cannot be written ({error.strerror or error}). Expected a folder "
                "that you may write to, or a name where one can be made."
            ) from error
