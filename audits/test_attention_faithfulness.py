"""Audit whether attention explains the predictions of the model.

pytest runs one case per model, data set and check:

    pytest audits/ --model demo
    pytest audits/ --model my_checkpoint --data reviews.jsonl

The checks and their thresholds are in policy.toml in this folder, with the evidence for each threshold in a comment.
"""

from pathlib import Path

from attnaudit import audit, checks


@audit(checks.load_policy(Path(__file__).with_name("policy.toml")))
def test_attention_is_faithful(check):
    check.enforce()
