"""Code shared by the research commands: a cache of results, parallel tasks, text tables and report files."""
