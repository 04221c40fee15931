"""What the research commands share: a cache of results, running tasks in parallel, text tables and report files."""
