"""Audit whether attention explains the predictions of the model.

pytest runs one case per model, data set and check:

    pytest audits/ --model demo
    pytest audits/ --model my_checkpoint --data reviews.jsonl

The checks and their thresholds are in the policies in this folder, with the evidence for each threshold in a comment.
policy.toml applies to models with pooled attention, and transformer.toml to Transformers.
"""

from pathlib import Path

from attnaudit import audit, checks

HERE = Path(__file__).parent


@audit(checks.load_policy(HERE / "policy.toml"), checks.load_policy(HERE / "transformer.toml"))
def test_attention_is_faithful(check):
    check.enforce()
