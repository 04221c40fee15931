#!/usr/bin/env bash
# Compares a GPU with the CPU, then measures attnaudit on it and writes benchmarks/gpu.json and benchmarks/gpu.md. This
# needs a machine with a CUDA device and attnaudit[dev]. DEVICE=cpu benchmarks/gpu.sh --quick tries it without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
if [ "$device" != cpu ]; then
    python -m pytest -m gpu tests/integration/test_gpu*.py
fi
python -m benchmarks.gpu --device "$device" "$@"
