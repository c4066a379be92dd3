#!/usr/bin/env bash
# All figures of the agent in one run on the GPU, in 200 s at most: the clock, 2,000 windows in
# three ways with every bit compared, the attribution of graph nodes (recorded here, judged with
# `python -m bench.agent_attribution FOLDER`), the table of costs. Each line is printed as it is
# measured, so a run that is cut off keeps what it has. Needs the built agent, PyTorch and CuPy.
#   bench/h200/agent_batch.sh [SECONDS [PART...]]
set -uo pipefail
cd "$(dirname "$0")/../.."
limit=${1:-200}
[ $# -gt 0 ] && shift
parts=${*:-clock stress attribution overhead}
export PYTHONPATH=proto:collectors:replay:analytics:.
export OUT=${OUT:-$(mktemp -d)}
# shellcheck disable=SC2086
timeout -k 5 "$limit" python3 -u -m bench.agent_overhead --parts $parts \
  --windows 2000 --stress-seconds 50 \
  --workloads graphs graphs_600us --rounds 5 --seconds 0.5 2>"$OUT/agent_batch.err" |
  tee "$OUT/agent_overhead.jsonl"
code=${PIPESTATUS[0]}
tail -n 20 "$OUT/agent_batch.err" >&2
exit "$code"
