"""The device that pytest's header names before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from attnaudit.devices import chosen_device, device_in_advance, gpu_name
from attnaudit.run.environment import describe_environment

IN_A_NEW_PROCESS = """
import sys
from attnaudit.devices import device_in_advance
print(device_in_advance("auto"), device_in_advance("cuda:1"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("built_for", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "auto"),
        ("cuda = None\nhip: Optional[str] = '6.3'\n", "auto"),
        ("__version__ = '2.13.0'\n", "auto"),
    ],
)
def test_the_build_of_torch_tells_whether_auto_can_be_a_gpu(built_for: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (tmp_path / "torch" / "version.py").write_text(built_for, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{IN_A_NEW_PROCESS}"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert found == [expected, "cuda:1", "False"]


def test_the_installed_torch_is_not_imported() -> None:
    found = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS], check=True, capture_output=True, text=True
    ).stdout.split()
    assert found[0] in ("auto", chosen_device("auto"))
    assert found[2] == "False"


def test_an_imported_torch_is_asked() -> None:
    import torch

    assert device_in_advance("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_run_on_a_gpu_records_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_name("cpu") == ""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"name of {device}")
    assert gpu_name("cuda:1") == "name of cuda:1"
    on_gpu, on_cpu = (describe_environment(device=device, threads=1) for device in ("cuda", "cpu"))
    assert on_gpu.gpu == "name of cuda"
    assert b'"gpu"' not in msgspec.json.encode(on_cpu)
