"""Tables and pages that compare two runs or two models, and the differences from a baseline."""
