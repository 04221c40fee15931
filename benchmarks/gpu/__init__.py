"""Measure attnaudit on a GPU: how fast it is, how much memory it needs, and how exact it is.

    python -m benchmarks.gpu [--device cuda] [--only PART ...] [--quick]

The parts are:

* rates: the instances per second of each measure, and how much batching helps.
* speed: the comparisons of benchmarks.speed with the user's own code, both on the GPU.
* memory: the largest memory of a pass over one long text, compared with a pass of the unmodified model.
* rows: the largest difference between recomputed attention rows and those of eager attention, in float32.
* billion: an audit of a language model with 1.1 billion parameters in bfloat16, with random weights.
* experiments: CUDA graphs and pinned memory.

The results are written to benchmarks/gpu.json and benchmarks/gpu.md. With --only, which can be given several times, the
results of the other parts are kept. With --quick, fewer instances are measured and nothing is written.
"""
