"""Statistics over instances: confidence intervals over sources, thresholds, verdicts and sample sizes."""
