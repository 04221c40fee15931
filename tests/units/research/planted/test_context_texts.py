"""Texts with inserted cue words: the label follows from the words of each text, and from nothing else."""

from __future__ import annotations

import pytest

from attnaudit.errors import DataError
from attnaudit.instances import Instance
from attnaudit.research.planted.context_texts import ROLES, TASKS, role_words, texts

PRAISE, BLAME = role_words("praise"), role_words("blame")


def polarity(word: str) -> int:
    return int(word in PRAISE)


def decided(task: str, instance: Instance) -> int:
    """Return the label that the rule of the task gives to a text."""
    found = instance.text.split()
    cues = [word for word in found if word in PRAISE | BLAME]
    if task in ("single", "inner"):
        (cue,) = cues
        assert task == "single" or found[-1] != cue
        return polarity(cue)
    if task == "negation":
        (cue,) = cues
        before = found[found.index(cue) - 1]
        assert before in role_words("negator", "intensifier")
        return polarity(cue) ^ (before in ROLES["negator"])
    if task == "xor":
        (colour,) = (word for word in found if word in role_words("warm", "cold"))
        assert found[found.index(colour) + 1] in role_words("large", "small")
        return (colour in ROLES["warm"]) ^ (found[found.index(colour) + 1] in ROLES["large"])
    if task == "query":
        roles = {"colour": ("warm", "cold"), "size": ("large", "small")}[instance.query or ""]
        (answer,) = (word for word in found if word in role_words(*roles))
        return int(answer in ROLES[roles[0]])
    if task == "heading":
        (heading,) = (word for word in found if word in ROLES["heading"])
        assert len(cues) == 3
        return polarity(found[found.index(heading) + 1])
    if task == "last-word":
        return polarity(found[-1])
    assert len(cues) == (5 if task == "votes" else 3)
    if task in ("redundant", "early-first", "votes"):
        assert len({polarity(cue) for cue in cues}) == 1
        assert task != "early-first" or found.index(cues[0]) < 3
        assert task != "votes" or found.count("xoverall") == 1
    if task == "last-two-of-three":
        assert polarity(cues[1]) == polarity(cues[2])
        return polarity(cues[1])
    return polarity(cues[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_rule_of_a_task_gives_the_label(task: str) -> None:
    data = texts(task, "dev")
    assert len(data.instances) == 200
    for instance in data.instances:
        assert data.classes[decided(task, instance)] == instance.label, instance.text


def test_no_two_roles_share_a_word() -> None:
    assert len(role_words(*ROLES)) == sum(map(len, ROLES.values()))


def test_texts_are_the_same_every_time_and_differ_between_parts() -> None:
    again = texts.__wrapped__("negation", "dev")
    assert again.sha256() == texts("negation", "dev").sha256()
    train = {instance.text for instance in texts("negation", "train").instances}
    assert not train & {instance.text for instance in texts("negation", "test").instances}


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(DataError, match="negation"):
        texts("negations", "dev")
