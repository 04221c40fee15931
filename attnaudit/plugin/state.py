"""What one pytest process knows of the audit: options as pytest gives them, the cases, the verdicts."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit.errors import AuditError

if TYPE_CHECKING:
    from attnaudit.records import PolicyRecord, RunRecord
    from attnaudit.run import AuditOptions, AuditSession, Case, Ledger, RunFolder
    from attnaudit.run.run_folder import PlannedCase


@dataclass
class Imperative:
    """A test over the fixture `measurements`: a model, a data set, what it needs, and no verdict of ours."""

    model: str
    data: str
    session: AuditSession
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<measurements of {self.model} on {self.data}>"


@dataclass
class State:
    """What one pytest process knows of the audit."""

    options: AuditOptions
    folder: RunFolder
    session: AuditSession
    ledger: Ledger
    created: str
    problems: dict[str, str] = field(default_factory=dict)
    planned: list[PlannedCase] = field(default_factory=list)
    policy: PolicyRecord | None = None
    finished: RunRecord | None = None
    complaint: str = ""
    declared_in: set[Path] = field(default_factory=set)


STATE = pytest.StashKey[State]()
CASE = pytest.StashKey["Case | Imperative"]()

#: Whether SIGTERM is ours to take.
TERMINATES: pytest.StashKey[bool] = pytest.StashKey()
#: For `pytest_runtest_logreport`, which is not given the config.
current: dict[str, State] = {}


def state_of(config: pytest.Config) -> State:
    """Made at the first case, or by the controller of xdist, whose workers meet the cases."""
    if STATE not in config.stash:
        from attnaudit.run import AuditSession, Ledger, RunFolder, new_run_name
        from attnaudit.run.finish_run import now

        options = options_of(config)
        carried: dict[str, Any] = getattr(config, "workerinput", {})
        folder = RunFolder(options.reports, carried.get("attnaudit_run") or new_run_name())
        session = AuditSession(
            options,
            folder,
            worker=carried.get("workerid", "main"),
            workers=int(carried.get("workercount", 1)),
            progress=lambda: _progress(config),
        )
        state = State(options=options, folder=folder, session=session, ledger=Ledger(), created=now())
        config.stash[STATE] = state
        if not is_worker(config):
            current["state"] = state
    return config.stash[STATE]


def options_of(config: pytest.Config) -> AuditOptions:
    """Raises pytest.UsageError for a value of the configuration file that is no number."""
    from attnaudit.run import AuditOptions

    here = config.invocation_params.dir
    # Without a configuration file pytest takes for root what all paths on the command line share, --data's included.
    root = here if config.inipath is None else config.inipath.parent

    def near(option: str) -> Path:
        """What a path is relative to: this folder on the command line, and else the configuration file."""
        return root if config.getoption(option) is None else here

    policy = option_of(config, "--policy", "audit_policy")
    limit = option_of(config, "--audit-max-instances", "audit_max_instances")
    return AuditOptions(
        models=tuple(option_of(config, "--model", "audit_model")),
        data=tuple(option_of(config, "--data", "audit_data")),
        models_near=near("--model"),
        data_near=near("--data"),
        reports=near("--audit-reports") / option_of(config, "--audit-reports", "audit_reports"),
        policy=None if policy is None else near("--policy") / policy,
        device=str(option_of(config, "--audit-device", "audit_device")),
        max_instances=None if limit == "" else _whole(limit, "audit_max_instances"),
        unit=str(option_of(config, "--audit-unit", "audit_unit")),
        seed=_whole(option_of(config, "--audit-seed", "audit_seed"), "audit_seed"),
    )


def option_of(config: pytest.Config, option: str, ini: str) -> Any:
    value = config.getoption(option)
    return value if value is not None else config.getini(ini)


def _whole(value: Any, ini: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise pytest.UsageError(f"{ini} = {value} in the configuration file: expected a whole number.") from None


def case_of(item: pytest.Item) -> Case | Imperative | None:
    from attnaudit.run import Case

    callspec = getattr(item, "callspec", None)
    found = [v for v in callspec.params.values() if isinstance(v, (Case, Imperative))] if callspec else []
    return found[0] if found else None


def needs_of(item: pytest.Item) -> tuple[str, ...]:
    """What @pytest.mark.attnaudit(needs=[...]) asks for. Raises AuditError that names the test."""
    mark = item.get_closest_marker("attnaudit")
    if mark is None:
        return ()
    here, form = f"{item.nodeid}: @pytest.mark.attnaudit", 'Write @pytest.mark.attnaudit(needs=["uniform"]).'
    for name in mark.kwargs:
        if name != "needs":
            raise AuditError(f"{here} has no argument '{name}'. {form}")
    needs = mark.kwargs.get("needs", ())
    if mark.args or isinstance(needs, str) or not all(isinstance(need, str) for need in needs):
        raise AuditError(f"{here} is given {mark.args[0] if mark.args else needs!r}: expected a list of names. {form}")
    return tuple(needs)


def interrupt_when_terminated(config: pytest.Config) -> None:
    """SIGTERM, with which CI cancels a run, ends it as Ctrl-C does: what was judged until then is written."""
    if is_worker(config) or not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _interrupt)
    config.stash[TERMINATES] = True

    def restore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    config.add_cleanup(restore)


def _interrupt(_number: int, _frame: object) -> None:
    """Once: who cancels a run often sends a second signal, which must not stop the writing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def ignore_terminations(config: pytest.Config) -> None:
    """From now on, SIGTERM waits for the run to be written; what cannot wait sends SIGKILL."""
    if config.stash.get(TERMINATES, False) and _in_main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


#: What -k takes as one word.
SELECTABLE = re.compile(r"[\w:+.\[\]\\/][\w:+.\[\]\\/-]*")


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Whether this process hands the cases to workers."""
    return config.pluginmanager.hasplugin("dsession")


def reason_of(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    return str(getattr(crash, "message", longrepr) or report.outcome)


def shown_path(path: Path, config: pytest.Config) -> str:
    """A path as the user would type it: relative where that stays inside the folder they are in."""
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)


def command_of(config: pytest.Config, nodeid: str) -> str:
    """The command that runs one case again, in the folder where this run was started. Where the policy is in several
    files all of them are collected again, since a failure is corrected for the number of gated checks."""
    path, separator, rest = nodeid.rpartition("@")[0].partition("::") if _grouped(nodeid) else nodeid.partition("::")
    words = ["pytest", f"{shown_path(config.rootpath / path, config)}{separator}{rest}"]
    if len(config.stash[STATE].declared_in) > 1:
        chosen = [word for word in dict.fromkeys(SELECTABLE.findall(rest)) if word not in ("and", "or", "not")]
        words = ["pytest", *config.args, "-k", " and ".join(chosen)]
    for option in ("--model", "--data"):
        words += [word for value in config.getoption(option) or () for word in (option, value)]
    for option in (
        "--policy",
        "--audit-device",
        "--audit-reports",
        "--audit-max-instances",
        "--audit-unit",
        "--audit-seed",
    ):
        value = config.getoption(option)
        words += [] if value is None else [option, str(value)]
    return " ".join(
        f'"{w}"' if os.name == "nt" and " " in w else w if os.name == "nt" else shlex.quote(w) for w in words
    )


def _grouped(nodeid: str) -> bool:
    """Whether xdist's loadgroup has added "@group" to the name."""
    return "]@" in nodeid


def _progress(config: pytest.Config) -> AbstractContextManager[Any]:
    @contextmanager
    def shown() -> Iterator[Any]:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        capture = config.pluginmanager.getplugin("capturemanager")
        if (
            is_worker(config)
            or reporter is None
            or not reporter.isatty
            or os.environ.get("CI")
            or config.option.verbose < 0
        ):
            yield None
            return
        from attnaudit.progress import progress_bar

        with ExitStack() as stack:
            if capture is not None:
                stack.enter_context(capture.global_and_fixture_disabled())
            yield stack.enter_context(progress_bar()) if sys.stderr.isatty() else None

    return shown()
