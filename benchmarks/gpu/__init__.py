"""Measure attnaudit on a GPU: how fast it is, how much memory it needs, and how exact it is.

    python -m benchmarks.gpu [--device cuda] [--only PART ...] [--minutes N] [--resume] [--quick]

The parts run in this order:

* billion: an audit of a language model with 1.1 billion parameters in bfloat16, with random weights.
* speed: the comparisons of benchmarks.speed with the user's own code, both on the GPU: MiniLM, the causal model, and
  then the pooled models.
* memory: the largest memory of a pass over one long text, compared with a pass of the unmodified model.
* rows: the largest difference between recomputed attention rows and those of eager attention, in float32.
* rates: the instances per second of each measure, and how much batching helps.
* experiments: CUDA graphs and pinned memory.

Each result is written to benchmarks/gpu.json at once, and the page benchmarks/gpu.md at the end. With --minutes, the
run stops after this time; a measurement that has begun is finished. With --resume, it continues: finished parts and
comparisons are kept, if they come from the same GPU and versions. With --only, which can be given several times, the
results of the other parts are kept. With --quick, fewer instances are measured and nothing is written. If a part fails,
the others still run, and the exit status is 1.
"""
