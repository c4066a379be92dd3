#!/usr/bin/env bash
# The commands of README.md's "On a GPU host", as they stand there, with a program that decodes. No
# broker is needed: without one, what is collected waits in data/spool, which is counted and deleted.
# `make agent` is left out where the library is there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t commands < <(sed -n '/^## On a GPU host/,/^Windows of/{s/^\$ //p}' README.md | sed 's/ *#.*//')
[ "${#commands[@]}" -eq 3 ] || { echo "README.md has ${#commands[@]} commands there, not 3" >&2; exit 1; }
[ -e collectors/spanlite_collectors/lib/libspanlite_agent.so ] || ${commands[0]}
spool=$(mktemp -d)
export SPANLITE_SPOOL=$spool
echo "$ ${commands[1]}"; eval "${commands[1]}"
echo "$ ${commands[2]}"; ${commands[2]} &
daemon=$!
python3 tests/recordings/record_agent.py --serve graphs 100
sleep 3
spanlite capture --list || true
kill -TERM $daemon
wait $daemon && echo "spanlite collect ended well"
du -sh "$spool"
find "$spool" -name '*.spool' | head -3
rm -rf "$spool"
