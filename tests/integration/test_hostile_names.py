"""An audit whose names and texts contain control characters, markup and commands of CI systems."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec
import pytest
import torch
from markdown_it import MarkdownIt

from attnaudit import cli
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from attnaudit.records import RunRecord
from attnaudit.report.markdown import FOLD, UNFOLD
from attnaudit.run.verdict_table import verdict_table
from attnaudit.verdict_text import failure_message
from tests.conftest import newest_run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows allows no such file names")

#: What names of files and folders may contain on Linux and macOS.
NASTY = "x\x1b[31m\n::error::forged\r::notice::cr ##[group]g ##vso[task.complete]\u202e\u2028<img src=x onerror=y>|`@a`"
#: Other texts may contain slashes too.
NASTIER = f"{NASTY} </script></title></style><script>alert(1)</script> https://x.example"

AUDIT = f"""
import attnaudit, pytest
from attnaudit import audit
from attnaudit.errors import AuditError

NASTY = {NASTIER!r}

@attnaudit.checks.check(title=NASTY, question=NASTY)
def long_texts(measurements):
    return measurements.lengths

@attnaudit.checks.check(title="Broken", question="?")
def broken(measurements):
    raise ValueError(NASTY)

@attnaudit.checks.check(title="Refused", question="?")
def refused(measurements):
    raise AuditError(NASTY)

@audit(long_texts(at_least=50), broken(at_least=0), refused(at_least=0))
def test_audit(check):
    check.enforce()

@audit(long_texts(at_least=50))
def test_foreign(check):
    print(NASTY)
    raise RuntimeError(NASTY)

def test_measurements(measurements):
    pytest.skip(NASTY)
"""


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


class HostileRun(NamedTuple):
    """What a run printed, its folder, and the folder in which it was started."""

    output: str
    run: Path
    root: Path

    def file(self, name: str) -> str:
        return (self.run / name).read_text(encoding="utf-8")


def save_model(folder: Path) -> None:
    """Write an untrained model with hostile class names."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([*RESERVED, "good", "bad", "film"])
    architecture = Architecture(encoder="average", embedding_size=4, hidden_size=4, attention_size=4)
    model = PooledClassifier(architecture, vocabulary_size=len(vocabulary), classes=2)
    checkpoint_folder.save(folder, model, vocabulary, (f"neg{NASTIER}", f"pos{NASTIER}"))


def audit(root: Path, *arguments: str) -> HostileRun:
    """Audit a hostile model on hostile data in a new process."""
    save_model(root / f"model{NASTY}")
    rows = [
        {"id": f"{i}{NASTIER}", "text": f"good ::error::{i} {NASTIER}", "label": f"{('neg', 'pos')[i % 2]}{NASTIER}"}
        for i in range(12)
    ]
    data = root / f"data{NASTY}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (root / "test_audit.py").write_text(AUDIT, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model", f"model{NASTY}", "--data", data.name, "--junitxml=junit.xml"]
    environment = {**os.environ, "CI": "1"}  # pytest then shows whole messages in the short summary
    done = subprocess.run([*command, "-rA", *arguments], cwd=root, env=environment, capture_output=True, check=False)
    output = f"{done.stdout.decode()}\n{done.stderr.decode()}"  # not as text, which would translate line breaks
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, output
    return HostileRun(output, newest_run(root), root)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileRun:
    return audit(tmp_path_factory.mktemp("hostile"))


def assert_clean(text: str) -> None:
    """No line is a command of a CI system, and no character acts on a terminal."""
    for line in text.split("\n"):
        assert not CONTROL.search(line), repr(line)
        assert not line.strip().startswith("::"), repr(line)
        assert not re.search(r"##[a-z]*\[", line), repr(line)


def test_the_terminal_shows_no_command_and_no_control_character(hostile: HostileRun) -> None:
    assert_clean(hostile.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["-n2", "--dist=loadgroup"], ["--full-trace", "-v", "-l"]], ids=["xdist", "trace"]
)
def test_the_terminal_is_clean_with_other_options(tmp_path: Path, arguments: list[str]) -> None:
    assert_clean(audit(tmp_path, *arguments).output)


def test_the_table_of_verdicts_is_clean(hostile: HostileRun) -> None:
    run = msgspec.json.decode(hostile.file("audit.json"), type=RunRecord)
    for width in (70, 80, 200):
        table = verdict_table(run.checks, run.missing, width=width, color=False)
        assert_clean(table)
        colored = verdict_table(run.checks, run.missing, width=width, color=True)
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored).split() == table.split()


def test_the_failure_messages_are_clean(hostile: HostileRun) -> None:
    run = msgspec.json.decode(hostile.file("audit.json"), type=RunRecord)
    assert run.checks
    for record in run.checks:
        message = failure_message(record)
        assert_clean(message)
        assert "  0x␛[31m␊::error::forged␍::notice::cr ##\\[group]g" in message


def test_the_summary_is_clean_and_has_no_markup(hostile: HostileRun) -> None:
    summary = hostile.file("summary.md")
    assert_clean(summary)
    tokens = MarkdownIt("commonmark", {"linkify": True}).enable(["table", "strikethrough"]).parse(summary)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert not kinds & {"html_inline", "link_open", "image", "code_inline", "fence"}
    html = "".join(token.content for token in tokens if token.type == "html_block")
    assert html.splitlines() == [*FOLD, UNFOLD]
    assert sum(token.type == "heading_open" for token in tokens) == 1


def test_the_report_is_clean_and_names_add_no_elements_or_attributes(hostile: HostileRun) -> None:
    report = hostile.file("report.html")
    assert not CONTROL.search(report)
    tags: set[str] = set()
    attributes: set[str] = set()
    scripts: list[str] = []

    class Collector(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            if tag == "script":
                scripts.append(dict(attrs).get("type") or "")
            attributes.update(name for name, _ in attrs)
            for name, value in attrs:
                assert name not in ("src", "href", "style") or re.fullmatch(
                    r"data:,|#explorer[\w.%&=~()!*'-]*|#[\w.-]+|--h:[\d.]+", value or ""
                ), (name, value)

    Collector().feed(report)
    assert "title" in tags
    assert scripts == ["", *["text/plain"] * (len(scripts) - 1)][::-1]  # data, and the script of the explorer
    assert not tags & {"img", "iframe", "object", "base", "form"}
    assert not [name for name in attributes if name.startswith("on") or name == "srcdoc"]
    assert "x␛[31m" in report


def test_the_evidence_is_clean_and_has_no_markup(hostile: HostileRun, capsys: pytest.CaptureFixture[str]) -> None:
    for subject, status, message in (
        (f"model{NASTY}", 2, "the name contains an invisible character"),
        ("test_audit.py", 1, "result: FAILED"),
    ):
        assert cli.main(["evidence", str(hostile.run), "--subject", str(hostile.root / subject)]) == status
        output = "\n".join(capsys.readouterr())
        assert message in output
        assert_clean(output)
    for name in ("statement.json", "predicate.json", "subjects.sha256", "model-card.md", "test-report.md"):
        assert_clean(hostile.file(f"evidence/{name}"))
    for name in ("model-card.md", "test-report.md"):
        section = hostile.file(f"evidence/{name}").split("\n---\n")[-1]
        tokens = MarkdownIt("commonmark", {"linkify": True}).enable(["table", "strikethrough"]).parse(section)
        kinds = {token.type for token in tokens} | {child.type for one in tokens for child in one.children or ()}
        assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "fence"}


def test_junit_is_clean(hostile: HostileRun) -> None:
    for element in junit(hostile).iter():
        assert_clean("\n".join([element.text or "", *element.attrib.values()]))


def test_junit_is_valid(hostile: HostileRun) -> None:
    assert len(junit(hostile).findall(".//testcase")) == 5


def junit(hostile: HostileRun) -> ElementTree.Element:
    return ElementTree.parse(hostile.root / "junit.xml").getroot()


def test_audit_json_holds_the_names_as_they_are(hostile: HostileRun) -> None:
    run = msgspec.json.decode(hostile.file("audit.json"), type=RunRecord)
    assert [model.name for model in run.models] == [f"model{NASTY}"]
    assert [data.name for data in run.data] == [f"data{NASTY}"]
    assert run.models[0].classes == [f"neg{NASTIER}", f"pos{NASTIER}"]
    assert run.checks[0].worst[0].instance.endswith(NASTIER)
    assert any(NASTIER in case.reason for case in run.missing)
