"""Audit whether attention explains the predictions of the model.

pytest runs one case per model, data set and check:

    pytest audits/ --model demo
    pytest audits/ --model my_checkpoint --data reviews.jsonl

The checks and their thresholds are in the policies in this folder, with the evidence for each threshold in a comment.
policy.toml applies to models with pooled attention, attentions.toml to those with several heads or hops,
transformer.toml to Transformers, bags.toml to models of bags of vectors, pictures.toml to vision transformers, and
sources.toml to models that answer from passages (--audit-unit sources).
"""

from pathlib import Path

from attnaudit import audit, checks

HERE = Path(__file__).parent
POLICIES = ("policy.toml", "transformer.toml", "attentions.toml", "bags.toml", "pictures.toml", "sources.toml")


@audit(*(checks.load_policy(HERE / name) for name in POLICIES))
def test_attention_is_faithful(check):
    check.enforce()
