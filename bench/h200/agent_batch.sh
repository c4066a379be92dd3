#!/usr/bin/env bash
# The agent's figures in one run on the GPU, in 250 s: first, beside each other, what is counted and
# not timed (plain CUDA programs with several CUPTIs, attribution of graph nodes: recorded here,
# judged with `python -m bench.agent_attribution FOLDER`), while the processes of the comparison
# build their loads; then the clock and the table of costs, with nothing else running. Each line is
# printed as it is measured, so a run that is cut off keeps what it has. Needs the built agent,
# PyTorch and CuPy. Windows under load have a run of their own (`--parts stress`).
#   bench/h200/agent_batch.sh [SECONDS [FOLDER [OPTION...]]]
# FOLDER: of build_agent_plain.sh, or ""; OPTION: of the comparison, `--rounds 14` by default
set -uo pipefail
cd "$(dirname "$0")/../.."
limit=${1:-250} plain=${2:-}
shift $(($# < 2 ? $# : 2))
choice=("$@")
[ $# -gt 0 ] || choice=(--rounds 14)
export PYTHONPATH=proto:collectors:replay:analytics:.${PYTHONPATH:+:$PYTHONPATH}
export OUT=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bench() { # SECONDS ARGUMENT...
  local most=$1
  shift
  timeout -k 5 "$most" python3 -u -m bench.agent_overhead "$@" 2>>"$OUT/agent_batch.err"
}
bench "$limit" --parts overhead "${choice[@]}" --seconds 0.15 --until $((limit - 14)) --after "$work/go" >"$work/costs" &
costs=$!
counted=()
bench 60 --parts attribution &
counted+=($!)
if [ -n "$plain" ]; then
  bench 60 --parts plain --plain "$plain" &
  counted+=($!)
fi
wait "${counted[@]}"
bench 30 --parts clock
echo "costs from second $SECONDS on" >&2
touch "$work/go"
tail -n +1 -f --pid=$costs "$work/costs"
wait $costs
code=$?
tail -n 20 "$OUT/agent_batch.err" >&2
exit "$code"
