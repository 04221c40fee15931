#!/usr/bin/env bash
# On a machine with a CUDA device and attnaudit[dev] installed: compares the GPU's numbers with the CPU's, then prints
# one table of instances per second. Without a device: DEVICE=cpu benchmarks/gpu.sh --quick tries the table alone.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
if [ "$device" != cpu ]; then
    python -m pytest -m gpu tests/integration/test_gpu.py
fi
python -m benchmarks.gpu --device "$device" "$@"
