"""Models whose attention is known to be right or wrong, to audit the audit with. One file per kind."""
