#!/usr/bin/env bash
# Compares a GPU with the CPU, then measures attnaudit on it and writes benchmarks/gpu.json and benchmarks/gpu.md. This
# needs a machine with a CUDA device and attnaudit[dev]. DEVICE=cpu benchmarks/gpu.sh --quick tries it without a GPU.
# If a command may take only ten minutes there: benchmarks/gpu.sh --minutes 7, which runs the GPU tests first, and then
# benchmarks/gpu.sh --minutes 9 --resume, which skips them, until it succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
if [ "$device" != cpu ] && [[ " $* " != *" --resume "* ]]; then
    python -m pytest -m gpu tests/integration/test_gpu*.py
fi
python -m benchmarks.gpu --device "$device" "$@"
