# Every target sets up what it needs; a second run is fast.
SHELL := /bin/bash
UV := .tools/bin/uv
RUN := .venv/bin/
JARS := pipeline/spanlite_pipeline/jars/.done deploy/spanlite_stack/jars/.done

.PHONY: setup agent demo test check bench lab-h200 proto format clean

setup: .venv/.done $(JARS)

$(UV): scripts/bootstrap
	scripts/bootstrap

.venv/.done: uv.lock pyproject.toml $(wildcard */pyproject.toml) | $(UV)
	$(UV) sync --quiet --frozen --compile-bytecode --all-packages --extra flink --extra lab --extra http
	$(RUN)python -m compileall -q proto collectors pipeline replay analytics deploy
	touch $@

pipeline/spanlite_pipeline/jars/.done: pipeline/java/pom.xml $(shell find pipeline/java/src -type f 2>/dev/null)
	scripts/jars pipeline/java pipeline/spanlite_pipeline/jars

deploy/spanlite_stack/jars/.done: deploy/kafka/pom.xml
	scripts/jars deploy/kafka deploy/spanlite_stack/jars

# Flink's own SQL path, which bench/pipeline_throughput.py compares the job with.
bench/flink_sql/jars/.done: bench/flink_sql/pom.xml bench/flink_sql/src/main/proto/span_rows.proto
	scripts/jars bench/flink_sql bench/flink_sql/jars

# The library that a GPU process loads. Needs g++ alone; see docs/agent.md.
agent: | $(UV)
	scripts/build-agent

demo: setup
	scripts/demo

# Without a C++ compiler the agent's own tests are skipped, each with its reason.
test: setup
	if command -v "$${CXX:-g++}" >/dev/null; then \
	  scripts/build-agent collectors/agent/build -DBUILD_TESTS=ON -DLIBRARY_FOLDER="$$PWD/collectors/spanlite_collectors/lib"; else \
	  echo "g++ is missing: the agent is not built and its tests are skipped; apt-get install g++ brings it"; fi
	$(RUN)pytest -q

check: setup
	scripts/check

bench: setup bench/flink_sql/jars/.done
	$(UV) sync --quiet --frozen --all-packages --extra flink --extra lab --extra http --group bench
	$(RUN)python -m bench

# On a machine with an H200, nvcc, ncu and compute-sanitizer, a python3 with torch, Triton, CuPy, SciPy,
# scikit-learn, matplotlib, pyarrow, rich and PyYAML, and what `make agent` builds. Makes the tables
# anew that the lab's benches replay: every program bench/h200/*_table.py says what it needs.
lab-h200:
	set -e; for program in bench/h200/*_table.py; do \
	  PYTHONPATH=proto:collectors:replay:analytics:. python3 -m bench.h200.$$(basename $$program .py); done

proto: $(UV)
	scripts/generate-proto

format: setup
	$(RUN)ruff format . && $(RUN)ruff check --fix .

clean:
	rm -rf .venv .venv-newest .venv-agent .tools data collectors/agent/build* collectors/spanlite_collectors/lib pipeline/spanlite_pipeline/jars deploy/spanlite_stack/jars bench/flink_sql/jars pipeline/java/target deploy/kafka/target bench/flink_sql/target
