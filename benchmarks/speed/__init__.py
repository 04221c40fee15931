"""Compare the speed of attnaudit with the speed of what a user would run instead.

    python -m benchmarks.speed [--quick] [--only WORDS ...] [--repeats N]

Both sides compute the same numbers on the same instances. The results are written to benchmarks/speed.json and
benchmarks/README.md. With --quick, nothing is written. With --only, which can be given several times, the selected
results replace the stored ones, and the other stored results are kept.
"""
