"""Targets: their settings, the table [target] of attnaudit.toml, and FOLDER[LABEL]."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from attnaudit.errors import ModelError
from attnaudit.targets import Target, labels_in, split_label, targets_of


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "lable"}, "unknown kind 'lable'. Did you mean 'label'?"),
        ({"kind": "label"}, "a label needs a name"),
        ({"kind": "score"}, "a score needs a threshold or a scale"),
        ({"kind": "score", "scale": 0.0}, "scale is 0; expected a positive number"),
        ({"kind": "score", "threshold": "0.5"}, "threshold is '0.5'; expected a number"),
        ({"kind": "score", "threshold": float("nan")}, "threshold is nan; expected a finite number"),
        ({"kind": "score", "threshold": True}, "threshold is True; expected a number"),
        ({"kind": "span", "threshold": 0.5}, "threshold does not apply to a target of kind 'span', which takes no set"),
        ({"kind": "label", "name": 3}, "name is 3; expected a text"),
        ({"kind": "tag", "name": "PER"}, "name does not apply to a target of kind 'tag', which takes outside"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        Target(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('target = "label"', "target is 'label'; expected a table such as:"),
        ("[target]", "[target] has no kind. Expected one of class, label"),
        ('[target]\nkind = "label"\nnam = "x"', "unknown key 'nam' in [target]. Did you mean 'name'?"),
        ('[target]\nkind = "score"\nlabels = ["x"]\nscale = 1.0', "labels is for a target of kind 'label'"),
        ('[target]\nkind = "label"\nlabels = []', "expected a list of label names"),
        ('[target]\nkind = "label"\nlabels = ["x", "x"]', "expected every label once"),
        ('[target]\nkind = "label"\nlabels = ["x"]\nname = "y"', "both name and labels are given. Remove one of them."),
    ],
)
def test_invalid_tables_name_the_file(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        targets_of(tomllib.loads(text)["target"], "attnaudit.toml")
    assert str(caught.value).startswith("attnaudit.toml: ")
    assert message in str(caught.value)


def test_a_folder_with_several_labels(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert labels_in(folder) == ()
    (folder / "attnaudit.toml").write_text('[target]\nkind = "label"\nlabels = ["a", "b"]\n')
    assert labels_in(folder) == ("a", "b")
    (folder / "attnaudit.toml").write_text('[target]\nkind = "label"\nname = "a"\n')
    assert labels_in(folder) == ()
    assert split_label(f"{folder}[a b]") == (str(folder), "a b")
    assert split_label("model[a]", tmp_path) == ("model", "a")
    assert split_label("nothing[a]", tmp_path) == ("nothing[a]", "")
    (tmp_path / "odd[a]").mkdir()
    (tmp_path / "odd").mkdir()
    assert split_label("odd[a]", tmp_path) == ("odd[a]", "")  # a folder of this name is meant


def test_only_decisions_have_no_reason_against_them() -> None:
    assert Target(kind="score", threshold=0.0).no_decision == ""
    assert "declare a threshold" in Target(kind="score", scale=1.0).no_decision
    assert Target(kind="string").no_decision == "the target, the probability of the row's answer, is not a decision"
