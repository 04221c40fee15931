"""The questions of a policy file, and the families of models that it was validated on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from attnaudit.checks import load_policy
from attnaudit.errors import CheckError

CHECKS = '[[check]]\nname = "UniformFragility"\nat_least = 0.05\n'
COMPLETE = f"""
[policy]
name = "mine"
validated_on = ["pooled attention, bilstm encoder"]
confidence = 0.9

[policy.questions.used]
asks = "Is attention used?"
checks = ["uniform_fragility.tvd"]
remedies = ["tie the states"]

{CHECKS}"""


def write_policy(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_record_of_a_policy_has_its_questions_and_families(tmp_path: Path) -> None:
    policy = load_policy(write_policy(tmp_path, COMPLETE))
    (check,) = policy
    assert check.confidence == 0.9
    record = policy.record
    assert (record.name, record.file, record.validated_on) == (
        "mine",
        "mine.toml",
        ["pooled attention, bilstm encoder"],
    )
    assert record.sha256 == hashlib.sha256(COMPLETE.encode()).hexdigest()
    (question,) = record.questions
    assert (question.name, question.asks) == ("used", "Is attention used?")
    assert (question.checks, question.remedies) == (["uniform_fragility.tvd"], ["tie the states"])


def test_a_policy_without_a_policy_table_has_an_empty_record(tmp_path: Path) -> None:
    record = load_policy(write_policy(tmp_path, CHECKS)).record
    assert (record.name, record.validated_on, record.questions) == ("", [], [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("validated_on", "validated_in", "unknown key 'validated_in'. Did you mean 'validated_on'"),
        ('["pooled attention, bilstm encoder"]', '[""]', "[policy]: validated_on is ['']; expected a list"),
        ("confidence", 'unvalidated = "ignore"\nconfidence', "[policy]: Invalid enum value 'ignore'"),
        ('["pooled attention, bilstm encoder"]', '"all"', "[policy]: Expected `array`, got `str`"),
        (
            'remedies = ["tie the states"]',
            '[[policy.questions.used.remedy]]\ntext = "tie"\nfamilies = ["pooled attention"]',
            "[policy.questions.used.remedy] number 1: accuracy is missing",
        ),
        (
            'remedies = ["tie the states"]',
            '[[policy.questions.used.remedy]]\ntext = "tie"\nwhen = ["pass"]',
            "[policy.questions.used]: Invalid enum value 'pass'",
        ),
        ('remedies = ["tie the states"]', "[[policy.questions.used.remedy]]\ntext = ''", "'text' or 'when' is empty"),
        ("asks =", "ask =", "[policy.questions.used]: unknown key 'ask'. Did you mean 'asks'?"),
        ('asks = "Is attention used?"\n', "", "[policy.questions.used]: Object missing required field `asks`"),
        (
            '["uniform_fragility.tvd"]',
            '["uniform_fragility.tdv"]',
            "no [[check]] of this policy is 'uniform_fragility.tdv'. Did you mean 'uniform_fragility.tvd'?",
        ),
    ],
)
def test_an_invalid_policy_table_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CheckError) as caught:
        load_policy(write_policy(tmp_path, COMPLETE.replace(old, new)))
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))
    assert message in str(caught.value)
