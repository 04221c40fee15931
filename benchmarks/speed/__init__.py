"""How fast attnaudit measures, next to what a user would run instead, on the same instances with the same result.

    python -m benchmarks.speed [--quick] [--only WORD]

Writes benchmarks/speed.json and the table in benchmarks/README.md; with --quick or --only it prints and writes nothing.
"""
