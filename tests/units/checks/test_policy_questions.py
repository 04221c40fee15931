"""What a policy file says of itself: its questions, and the families it was validated on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from attnaudit.checks import load_policy
from attnaudit.errors import CheckError

CHECKS = '[[check]]\nname = "UniformFragility"\nat_least = 0.05\n'
WHOLE = f"""
[policy]
name = "mine"
validated_on = ["pooled attention, bilstm encoder"]
confidence = 0.9

[policy.questions.used]
asks = "Is attention used?"
checks = ["uniform_fragility.tvd"]
remedies = ["tie the states"]

{CHECKS}"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_policy_says_what_it_asks_and_where_it_was_validated(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, WHOLE))
    (check,) = policy
    assert check.confidence == 0.9
    found = policy.record
    assert (found.name, found.file, found.validated_on) == ("mine", "mine.toml", ["pooled attention, bilstm encoder"])
    assert found.sha256 == hashlib.sha256(WHOLE.encode()).hexdigest()
    (question,) = found.questions
    assert (question.name, question.asks) == ("used", "Is attention used?")
    assert (question.checks, question.remedies) == (["uniform_fragility.tvd"], ["tie the states"])


def test_a_policy_need_say_nothing_of_itself(tmp_path: Path) -> None:
    found = load_policy(written(tmp_path, CHECKS)).record
    assert (found.name, found.validated_on, found.questions) == ("", [], [])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("validated_on", "validated_in", "unknown key 'validated_in'. Did you mean 'validated_on'?"),
        ('["pooled attention, bilstm encoder"]', '"all"', "[policy]: Expected `array`, got `str`"),
        ("asks =", "ask =", "[policy.questions.used]: unknown key 'ask'. Did you mean 'asks'?"),
        ('asks = "Is attention used?"\n', "", "[policy.questions.used]: Object missing required field `asks`"),
        (
            '["uniform_fragility.tvd"]',
            '["uniform_fragility.tdv"]',
            "no [[check]] of this policy is 'uniform_fragility.tdv'. Did you mean 'uniform_fragility.tvd'?",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(CheckError) as caught:
        load_policy(written(tmp_path, WHOLE.replace(old, new)))
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))
    assert said in str(caught.value)
