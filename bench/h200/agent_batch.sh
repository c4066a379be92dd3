#!/usr/bin/env bash
# All figures of the agent in one run on the GPU, in 225 s: first, beside each other, what is counted
# and not timed (windows under load with every bit compared, plain CUDA programs with several CUPTIs,
# attribution of graph nodes: recorded here, judged with `python -m bench.agent_attribution FOLDER`),
# while the processes of the comparison build their loads; then the clock and the table of costs,
# with nothing else running. Each line is printed as it is measured, so a run that is cut off keeps
# what it has. Needs the built agent, PyTorch and CuPy.
#   bench/h200/agent_batch.sh [SECONDS [FOLDER]]     FOLDER: of build_agent_plain.sh
set -uo pipefail
cd "$(dirname "$0")/../.."
limit=${1:-225} plain=${2:-}
export PYTHONPATH=proto:collectors:replay:analytics:.${PYTHONPATH:+:$PYTHONPATH}
export OUT=${OUT:-$(mktemp -d)}
go=$OUT/go
rm -f "$go"
bench() { # NAME SECONDS ARGUMENT...
  local name=$1 most=$2
  shift 2
  timeout -k 5 "$most" python3 -u -m bench.agent_overhead "$@" >"$OUT/$name.jsonl" 2>"$OUT/$name.err"
}
bench costs "$limit" --parts overhead --rounds 24 --seconds 0.15 --after "$go" &
costs=$!
counted=()
bench stress $((limit * 2 / 5)) --parts stress --windows 1100 --stress-seconds $((limit / 3)) &
counted+=($!)
bench attribution 60 --parts attribution &
counted+=($!)
if [ -n "$plain" ]; then
  bench plain 60 --parts plain --plain "$plain" &
  counted+=($!)
fi
wait "${counted[@]}"
cat "$OUT"/{stress,attribution,plain}.jsonl 2>/dev/null
bench clock 30 --parts clock
cat "$OUT/clock.jsonl"
echo "costs from second $SECONDS on" >&2
touch "$go"
tail -n +1 -F --pid=$costs "$OUT/costs.jsonl" 2>/dev/null
wait $costs
code=$?
rm -f "$go"
tail -n 20 "$OUT"/*.err >&2
exit "$code"
