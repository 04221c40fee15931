#!/bin/sh
# Trains the shipped demo model again, which takes about a minute and a half on one core. The dropout rates were chosen
# on dev; test was evaluated once.
set -eu
cd "$(dirname "$0")/.."
"${PYTHON:-.venv/bin/python}" -c "import sys; from attnaudit.cli import main; sys.exit(main())" \
    train --encoder bilstm --alignment additive --projection softmax --data movie-reviews \
    --dropout 0.5 --word-dropout 0.3 --out attnaudit/models/demo --overwrite
