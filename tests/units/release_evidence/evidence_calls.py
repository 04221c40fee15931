"""Calls of `attnaudit evidence` in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from attnaudit import cli
from tests.consistent_runs import NAME
from tests.units.release_evidence.intoto_schemas import STATEMENT

VALIDATOR = Draft202012Validator(STATEMENT, format_checker=FormatChecker())


class Evidence:
    """A call of `attnaudit evidence` on the only run in reports/, about the files in model/.

    Attributes:
        run: The folder of the run.
        model: A folder with two files.
        status: The exit status of the last call.
        out: What it printed.
    """

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.run = root / "reports" / NAME
        self.model = root / "model"
        (self.model / "parts").mkdir(parents=True)
        (self.model / "weights.pt").write_bytes(b"weights")
        (self.model / "parts" / "words.txt").write_text("good\nbad\n", encoding="utf-8")
        self._capsys = capsys

    def write(self, *arguments: str) -> dict[str, Any]:
        """Call the command, require that it wrote all files, and return the statement."""
        self._call(*arguments)
        statement: dict[str, Any] = json.loads(self.text("statement.json"))
        assert f"result: {statement['predicate']['result']}" in self.out.splitlines()
        assert self.status == int(statement["predicate"]["result"] == "FAILED")
        VALIDATOR.validate(statement)
        assert statement["predicate"] == json.loads(self.text("predicate.json"))
        return statement

    def refuse(self, *arguments: str, status: int = 1) -> str:
        """Call the command, require its exit status and that it wrote nothing, and return its message."""
        self._call(*arguments)
        assert self.status == status
        assert not (self.run / "evidence").exists()
        return self.out

    def text(self, name: str) -> str:
        """Return the content of a file that the command wrote."""
        return (self.run / "evidence" / name).read_text(encoding="utf-8")

    def _call(self, *arguments: str) -> None:
        subjects = () if "--subject" in arguments else ("--subject", str(self.model))
        self.status = cli.main(["evidence", str(self.run.parent), *subjects, *arguments])
        self.out = self.printed()

    def printed(self) -> str:
        """Return what was printed since the last call."""
        return "".join(self._capsys.readouterr())
