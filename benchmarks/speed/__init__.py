"""Measure the speed of attnaudit next to what a user would run instead, on the same instances with the same results.

    python -m benchmarks.speed [--quick] [--only WORD]

Results go to benchmarks/speed.json and into benchmarks/README.md. With --quick nothing is written; with --only the
chosen measurements replace the stored ones.
"""
