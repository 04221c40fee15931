"""Does attention explain the model's predictions? One pytest case per model, data set and check.

    pytest audits/ --model demo
    pytest audits/ --model my_checkpoint --data reviews.jsonl

The thresholds are a starting point: read the report of a first run, then set those that your release needs.
"""

from attnaudit import audit, checks


@audit(
    checks.Agreement(importance="gradient", at="inputs", at_least=0.30),
    checks.Agreement(importance="leave_one_out", at="inputs", at_least=0.20),
    checks.InfluenceEntropy(of="hidden", at_most=0.80),
    checks.PermutationFragility(at_least=0.05),
    checks.UniformFragility(at_least=0.05),
    checks.AdversarialDivergence(tvd=0.01, severity="report"),
    checks.InformationRanking(at_least=0.50),
)
def test_attention_is_faithful(check):
    check.enforce()
