"""The Hypothesis profile, and the example project that the tests of the plugin run."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from attnaudit.plugin.selection import CI_VARIABLES

# No deadline: the time of an example depends on what else runs on the machine. Only a test whose examples are slow, or
# that needs many of them, sets its own number.
settings.register_profile("attnaudit", max_examples=50, deadline=None, derandomize="CI" in os.environ)
settings.load_profile("attnaudit")

# Small tensors gain nothing from threads and lose much where several processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Processes that tests start keep their bytecode. Otherwise each would compile the package and rewrite its assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# pytest-randomly, if it is installed, would shuffle the cases of the runs that tests start.
UNSHUFFLED = "-p no:randomly"
os.environ.setdefault("PYTEST_ADDOPTS", UNSHUFFLED)

PROJECT_CONFTEST = """
import attnaudit
from attnaudit.instances import Dataset, Instance

WORDS = "film plot good bad dull bright actor scene joke story".split()


@attnaudit.register_model("tiny")
def tiny():
    import torch
    from torch import nn
    from attnaudit.adapters import Encoding, PooledAttentionAdapter

    torch.manual_seed(0)
    embedding, score, decoder = nn.Embedding(12, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def tokenize(text):
        tokens = text.split()
        return Encoding([WORDS.index(t) + 1 if t in WORDS else 11 for t in tokens], tokens)

    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=lambda embeddings, mask: embeddings,
        attention=lambda states, allowed: torch.softmax(score(states)[..., 0].masked_fill(~allowed, -torch.inf), -1),
        decoder=decoder,
        tokenize=tokenize,
        classes=("negative", "positive"),
        modules=(embedding, score, decoder),
    )


@attnaudit.register_dataset("rows")
def rows():
    texts = [" ".join(WORDS[(i * k) % 10] for k in range(1, 3 + i % 6)) for i in range(40)]
    instances = tuple(
        Instance(id=f"r{i}", text=text, label=("negative", "positive")[i % 2]) for i, text in enumerate(texts)
    )
    classes = ("negative", "positive")
    return Dataset(name="rows", source="generated", description="", instances=instances, classes=classes)


@attnaudit.checks.check(title="Peak", question="How large is the largest weight?", low=0, high=1)
def attention_peak(measurements):
    return measurements.scalar("attention.max")


@attnaudit.checks.check(title="Length", question="How many tokens are there?")
def token_count(measurements):
    return measurements.lengths
"""

#: Of the three checks, one passes, one fails and one is informational.
PROJECT_TEST = """
from attnaudit import audit, checks
from attnaudit.registry import checks as known

@audit(
    known.get("attention_peak")(at_most=0.99),
    known.get("token_count")(at_least=50),
    checks.UniformFragility(severity="report"),
)
def test_faithful(check):
    check.enforce()
"""


@pytest.fixture(scope="session")
def everything_imported() -> None:
    """Import everything that runs in this process import.

    pytester removes modules that a run imported, but torch cannot be imported twice, and a registry must not be.
    """
    import attnaudit

    ours = [module.name for module in pkgutil.walk_packages(attnaudit.__path__, "attnaudit.")]
    for name in (*ours, "jinja2", "numpy.fft", "pyarrow.dataset", "rich.table", "scipy.stats", "sklearn.cluster"):
        importlib.import_module(name)


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """pytest's own fixture, which removes PYTEST_ADDOPTS; runs in it are not in CI, where partial runs fail."""
    monkeypatch.setenv("PYTEST_ADDOPTS", UNSHUFFLED)
    for name in CI_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return pytester


@pytest.fixture
def project(everything_imported: None, pytester: pytest.Pytester) -> pytest.Pytester:
    """The repository of a user: a model `tiny`, a data set `rows` and three checks, of which one fails."""
    pytester.makeini("[pytest]\naudit_data = rows\n")
    pytester.makeconftest(PROJECT_CONFTEST)
    pytester.makepyfile(test_audit=PROJECT_TEST)
    return pytester


def newest_run(root: Path, reports: str = "reports") -> Path:
    """Return the run folder that latest.txt names."""
    folder = root / reports
    return folder / (folder / "latest.txt").read_text(encoding="utf-8").strip()


def newest_audit(root: Path, reports: str = "reports") -> dict[str, Any]:
    """Read audit.json of the newest run."""
    audit: dict[str, Any] = json.loads((newest_run(root, reports) / "audit.json").read_text(encoding="utf-8"))
    return audit
