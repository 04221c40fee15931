"""Output files that would replace an input or each other are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.errors import AuditError
from attnaudit.output_files import require_separate, same_file


def test_the_same_file_is_found_behind_links_and_other_spellings(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    assert same_file(file, tmp_path / "absent" / ".." / "policy.toml")
    file.write_text("", encoding="utf-8")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for name in ("policy.toml", "./policy.toml", "link", "hard"):
        assert same_file(tmp_path / name, file)
    assert not same_file(tmp_path / "other", file)
    assert not same_file(tmp_path / ("x" * 5000), file)
    assert not same_file(tmp_path / "a\0b", file)


def test_the_message_names_the_option_and_the_file(tmp_path: Path) -> None:
    found, page = ("--json", tmp_path / "a"), ("--markdown", tmp_path / "b")
    require_separate([found, page], [("the policy", tmp_path / "c")])
    with pytest.raises(
        AuditError, match=r"^--json .*a: this file is the policy, and would be replaced\. Choose another"
    ):
        require_separate([found, page], [("the policy", tmp_path / "a")])
    with pytest.raises(AuditError, match=r"^--markdown .*a: this file is also the output of --json, and would be"):
        require_separate([found, ("--markdown", tmp_path / "a")], [])
    with pytest.raises(AuditError, match="cannot be accessed"):
        require_separate([("--json", tmp_path / ("x" * 5000))], [])


def test_a_file_in_an_input_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model" / "parts").mkdir(parents=True)
    model = [("also given with --model", tmp_path / "model")]
    for name in ("config.json", "parts/weights.safetensors"):
        require_separate([("--json", tmp_path / "model" / name)], model)  # there is no such file yet
        (tmp_path / "model" / name).write_text("{}", encoding="utf-8")
        with pytest.raises(
            AuditError, match=r"^--json .*: this file is in the folder .*model, which is also given with"
        ):
            require_separate([("--json", tmp_path / "model" / name)], model)
    (tmp_path / "model" / "junit.xml").write_text("<testsuites/>", encoding="utf-8")
    require_separate([("--junitxml", tmp_path / "model" / "junit.xml")], model)
