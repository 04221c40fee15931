"""axe-core, which finds violations of the Web Content Accessibility Guidelines in a page.

It is fetched from npm once, checked against the hash below, and kept in the user's cache folder.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

VERSION = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
LEVELS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa")
SECONDS = 60

RUN = """async levels => (await axe.run(document, { runOnly: { type: "tag", values: levels },
  resultTypes: ["violations"] })).violations.map(one => ({ rule: one.id, help: one.help, count: one.nodes.length,
  nodes: one.nodes.slice(0, 3).map(node => [node.target.join(" "), node.html.slice(0, 160), node.failureSummary]) }))"""


def violations(page: Any) -> list[dict[str, Any]]:
    """Return the violations of level A and AA in a page, with up to three examples each."""
    page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(RUN, list(LEVELS))
    return found


@cache
def _script() -> str:
    """Return the script of axe-core. Without a copy of it and without npm or a network, the test is skipped."""
    package = _cache_folder() / f"axe-core-{VERSION}.tgz"
    if not package.is_file():
        _fetch(package)
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    assert digest == SHA512, f"{package} is not axe-core {VERSION}: its SHA-512 is {digest}"
    with tarfile.open(package) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "attnaudit-tests"


def _fetch(package: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"axe-core {VERSION} is not in {package.parent}, and npm is not installed")
    package.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package.parent) as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--ignore-scripts", "--silent"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"axe-core {VERSION} is not in {package.parent}, and npm cannot fetch it: {error}")
        Path(folder, package.name).replace(package)
