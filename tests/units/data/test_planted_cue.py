"""The synthetic data: cue words decide the label, hint words only correlate with it, and it is reproducible."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from attnaudit.data import load
from attnaudit.data.planted_cue import CLASSES, NAMES, NOISE, cues, hints, split, words
from attnaudit.errors import DataError


def side(word: str) -> int:
    """1 for a positive cue word, -1 for a negative one."""
    return 1 if word in words()["cue.positive"] else -1


@pytest.mark.parametrize("part", NAMES)
def test_the_majority_of_the_cues_is_the_label_except_for_noise(part: str) -> None:
    flipped = 0
    for one in split(part).instances:
        cue_words = [word for word in one.text.split() if word in cues()]
        assert 1 <= len(cue_words) <= 3
        balance = sum(map(side, cue_words))
        assert balance != 0
        flipped += CLASSES[balance > 0] != one.label
    assert flipped / len(split(part).instances) == pytest.approx(NOISE, abs=0.01)


def test_hints_correlate_with_the_label_without_deciding_it() -> None:
    with_label = Counter(
        (one.label or "") in role
        for one in split("train").instances
        for word in one.text.split()
        for role in ("hint.negative", "hint.positive")
        if word in words()[role]
    )
    share = with_label[True] / with_label.total()
    assert 0.65 <= share <= 0.75


def test_filler_is_equally_frequent_in_both_classes() -> None:
    seen = {label: Counter[str]() for label in CLASSES}
    for one in split("train").instances:
        seen[one.label or ""].update(word for word in one.text.split() if word in words()["filler"])
    for word, count in seen["positive"].most_common(20):
        other = seen["negative"][word]
        assert abs(count - other) < 4 * (count + other) ** 0.5


def test_roles_have_no_common_word_and_parts_no_common_sentence() -> None:
    roles = words()
    assert sum(map(len, roles.values())) == len(set().union(*roles.values())) == 360
    assert not cues() & hints()
    texts = [{one.text for one in split(part).instances} for part in NAMES]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]


def test_it_is_registered_in_three_parts() -> None:
    sizes = {part: len(load(name).instances) for part, name in NAMES.items()}
    assert sizes == {"train": 4000, "dev": 800, "test": 1200}


def test_another_process_generates_the_same_data() -> None:
    code = "from attnaudit.data.planted_cue import planted_cue; print(planted_cue().sha256())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == split("test").sha256()


def test_an_unknown_part_names_the_known_ones() -> None:
    with pytest.raises(DataError, match="test"):
        split("tset")
