#!/usr/bin/env bash
# Compares the numbers of a GPU with those of the CPU, then prints one table of instances per second. This needs a machine
# with a CUDA device and attnaudit[dev] installed. DEVICE=cpu benchmarks/gpu.sh --quick prints the table without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
if [ "$device" != cpu ]; then
    python -m pytest -m gpu tests/integration/test_gpu.py
fi
python -m benchmarks.gpu --device "$device" "$@"
