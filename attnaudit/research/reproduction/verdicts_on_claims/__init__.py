"""The claims of papers and the goals of the reproduction, checked against the measured numbers."""
