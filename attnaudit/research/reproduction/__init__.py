"""Papers done again: the models a table needs, trained and audited, beside the paper's numbers."""
