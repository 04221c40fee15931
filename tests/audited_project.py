"""A small project that tests audit in processes of its own, and what has to be true of a run that is not green."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.conftest import PROJECT_CONFTEST, newest_run
from tests.forking_interpreter import Completed, ForkingInterpreter

#: Two gates, which both pass. Tests spoil one of them.
GREEN = """
from attnaudit import audit, checks
from attnaudit.registry import checks as known

PEAK = known.get("attention_peak")(at_most=0.99)
LENGTH = known.get("token_count")(at_least=1)

@audit(PEAK, LENGTH)
def test_faithful(check):
    check.enforce()
"""
#: The second gate fails.
RED = GREEN.replace("at_least=1)", "at_least=50)")
PEAK, LENGTH = "attention_peak", "token_count"


@dataclass(frozen=True)
class Run:
    """A run of pytest that has ended, and what it left.

    Attributes:
        root: The folder in which it was started.
        process: How the process ended.
    """

    root: Path
    process: Completed

    @property
    def status(self) -> int:
        """The exit status of the process."""
        return self.process.status

    @property
    def text(self) -> str:
        """Everything that it printed."""
        return f"{self.process.out}\n{self.process.err}"

    @cached_property
    def audit(self) -> dict[str, Any]:
        """The content of audit.json of the newest run."""
        content: dict[str, Any] = json.loads((newest_run(self.root) / "audit.json").read_text(encoding="utf-8"))
        return content

    def page(self, name: str) -> str:
        """Return the text of summary.md or report.html without escapes."""
        text = (newest_run(self.root) / name).read_text(encoding="utf-8")
        return html.unescape(text.replace("\\", ""))

    def gates(self) -> dict[str, tuple[str, str]]:
        """Return the state and the reason of each gate, by its check, and also by its model if there are several."""
        several = len({gate["model"] for gate in self.audit["gates"]}) > 1
        return {
            (f"{gate['model']}: " if several else "") + gate["check"]: (gate["state"], gate["reason"])
            for gate in self.audit["gates"]
        }

    def junit_failures(self) -> list[str]:
        """Return the name and the text of every test that failed according to JUnit's file, which has to agree."""
        suites = ElementTree.parse(self.root / "junit.xml").getroot()
        failed = [
            f"{case.get('classname')}::{case.get('name')}: {problem.get('message')} {problem.text}"
            for case in suites.iter("testcase")
            for problem in case
            if problem.tag in ("failure", "error")
        ]
        counted = sum(int(suite.get(kind, 0)) for suite in suites.iter("testsuite") for kind in ("failures", "errors"))
        assert counted == len(failed)
        return failed


class AuditedProject:
    """A project with the model `tiny`, the data `rows` and two gates, which pass.

    Args:
        root: Its folder.
        interpreter: What starts processes.
    """

    def __init__(self, root: Path, interpreter: ForkingInterpreter) -> None:
        self.root = root
        self._interpreter = interpreter
        self.write("pytest.ini", "[pytest]\naudit_data = rows\n")
        self.write("conftest.py", PROJECT_CONFTEST)
        self.write("test_audit.py", GREEN)

    def write(self, name: str, content: str) -> None:
        """Write a file of the project."""
        (self.root / name).write_text(content, encoding="utf-8")

    def extend(self, code: str, name: str = "conftest.py") -> None:
        """Add code to the end of a file, by default conftest.py."""
        with (self.root / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{code}\n")

    def set_options(self, *options: str) -> None:
        """Write options of pytest into the configuration file."""
        self.write("pytest.ini", f"[pytest]\naudit_data = rows\naddopts = {' '.join(options)}\n")

    def pytest(self, *arguments: str, models: Sequence[str] = ("tiny",), env: Mapping[str, str] | None = None) -> Run:
        """Run pytest in a new process, and let it write JUnit's file."""
        words = ["-p", "no:hypothesispytest", "--junitxml=junit.xml", *(f"--model={model}" for model in models)]
        if not any(word.startswith("--randomly") for word in arguments):
            words += ["-p", "no:randomly"]
        words += arguments
        return Run(self.root, self._interpreter.run("pytest", words, cwd=self.root, env=env))

    def verify(self, *arguments: str, models: Sequence[str] = ("tiny",)) -> Completed:
        """Run `attnaudit verify` in a new process."""
        return self.command("verify", *(f"--model={model}" for model in models), *arguments)

    def command(self, *arguments: str, timeout: float = 120) -> Completed:
        """Run `attnaudit` in a new process, for at most `timeout` seconds."""
        return self._interpreter.run("attnaudit", arguments, cwd=self.root, timeout=timeout)

    def assert_red(
        self,
        run: Run,
        gates: Mapping[str, str],
        *,
        status: int = 1,
        models: Sequence[str] = ("tiny",),
        in_junit: bool = True,
        in_terminal: bool = True,
    ) -> None:
        """Assert that every output of a run shows that it is not green, and names the gates that did not pass.

        Args:
            run: The run.
            gates: The name of each gate that did not pass -> its state, ": " and words of the reason.
            status: The exit status.
            models: What `attnaudit verify` is to expect.
            in_junit: Whether JUnit's file names the gates; False if pytest itself writes only another failure into it.
            in_terminal: Whether the terminal names them; False after an internal error, when pytest shows no summary.
        """
        assert run.status == status, run.text
        assert (run.audit["status"], run.audit["exit_status"]) == ("failed", status)
        found = {name: f"{state}: {why}" for name, (state, why) in run.gates().items() if state != "passed"}
        assert found.keys() == gates.keys(), found
        failures = run.junit_failures()
        assert failures
        summary, report = run.page("summary.md"), run.page("report.html")
        for name, expected in gates.items():
            state, _, reason = expected.partition(": ")
            assert found[name].startswith(f"{state}: ")
            assert reason in found[name], found[name]
            check = name.rpartition(": ")[2]
            assert not in_junit or state == "not selected" or any(check in failure for failure in failures), failures
            assert not in_terminal or check in run.process.out
            assert check in summary
            assert check in report
        shown = [one.removeprefix("failed: ") if one.startswith(UNSETTLED) else one for one in found.values()]
        counts = [f"{sum(one.startswith(state) for one in shown)} {words}" for state, words in COUNTED]
        for count in counts:
            if not count.startswith("0"):
                assert not in_terminal or count in run.process.out.partition("gates: ")[2].splitlines()[0]
                assert count in summary.partition("* gates: ")[2].splitlines()[0]
        assert "gates passed" not in summary
        self.assert_not_verified(*gates, models=models)

    def assert_not_verified(self, *words: str, models: Sequence[str] = ("tiny",), after: str = "") -> Completed:
        """Assert that `attnaudit verify` refuses the newest run, and that its reasons contain these words."""
        done = self.verify(*([f"--after={after}"] if after else []), models=models)
        assert done.status == 1, done
        for word in words:
            assert word.rpartition(": ")[2] in done.out
        return done


COUNTED = (
    ("failed", "failed"),
    ("inconclusive", "inconclusive"),
    ("undefined", "undefined"),
    ("open", "without a verdict"),
    ("not selected", "not selected"),
)
#: The gates that failed because their verdict is not settled. They are counted by this verdict.
UNSETTLED = ("failed: inconclusive", "failed: undefined")
