"""The description of the machine in audit.json."""

from __future__ import annotations

import platform

import pytest

from attnaudit.run.environment import describe_environment


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Linux", "6.1-mine", "Linux-x86_64-with-glibc2.36"),
        ("Linux", "", "Linux-6.1-mine-x86_64-with-glibc2.36"),
        ("Windows", "6.1-mine", "Linux-6.1-mine-x86_64-with-glibc2.36"),
    ],
)
def test_the_release_of_a_linux_kernel_is_left_out(
    monkeypatch: pytest.MonkeyPatch, system: str, release: str, expected: str
) -> None:
    monkeypatch.setattr(platform, "platform", lambda: "Linux-6.1-mine-x86_64-with-glibc2.36")
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert describe_environment(device="cpu", threads=1).platform == expected
