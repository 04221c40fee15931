"""Statistics over instances: groups of related rows, confidence intervals, sample size, thresholds and verdicts."""
