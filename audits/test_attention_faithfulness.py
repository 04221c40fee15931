"""Does attention explain the model's predictions? One pytest case per model, data set and check.

    pytest audits/ --model demo
    pytest audits/ --model my_checkpoint --data reviews.jsonl

The checks and their thresholds are in policy.toml beside this file, each with the figure that justifies it.
"""

from pathlib import Path

from attnaudit import audit, checks


@audit(checks.load_policy(Path(__file__).with_name("policy.toml")))
def test_attention_is_faithful(check):
    check.enforce()
