# Targets for people and for CI. Each may be run again at any time; an exit code other than 0 means it failed.
PYTHON ?= python3
# Passed on to pytest by `make test`, for example: make test ARGS="-k lineage"
ARGS ?=

.PHONY: help setup quickstart test lint e2e-first e2e-harnesses e2e-codex e2e-rollout e2e-cluster loop chaos probe-harnesses fuzz faults bench bench-drift bench-store bench-train clean

help:
	@echo "make setup       make .venv and .venv-engine, the small models and the harnesses"
	@echo "make quickstart  the whole path once: engine, gateway, a real harness, its stored episode"
	@echo "make test        all tests, in both environments"
	@echo "make lint        ruff and mypy"
	@echo "make e2e-first   real harnesses, both modes, real vLLM and scripted engine: a table of 8 rows"
	@echo "make e2e-harnesses   every harness and variant, both modes: the table in docs/harnesses.md"
	@echo "                     DEFECTS=1: what each makes of broken replies; TURNS=1: longer runs and their traces;"
	@echo "                     ONLY=codex: rows whose name begins so; RESUME=1: rows without a good outcome yet"
	@echo "make e2e-codex   real Codex over WebSockets and HTTP: tools, sub-agent, compaction, resume, a killed gateway"
	@echo "make e2e-rollout 64 tasks x 4 samples with real pi on the real engine: ends, groups, ledger, what is left running"
	@echo "make e2e-cluster 200 samples over two Ray nodes, one of which is killed half-way: each once, none lost"
	@echo "make loop        examples/tinyloop: a small model learns in a real harness; HARNESS=pi SEED=0, SMALL=1: does it run?"
	@echo "make chaos       one rollout of harnesses that hang, fork, fill the disk, print for ever; all else is killed once"
	@echo "make probe-harnesses   dragoman harness probe on each, held against what is known of it; ONLY='claude pi' RESUME=1"
	@echo "make bench-store how small and how fast the store is"
	@echo "make bench-train how fast training is, beside stock TRL, and merged traces beside single calls"
	@echo "make bench-drift do later turns extend what was sampled, to the token? beside re-rendering"
	@echo "make faults      kill the gateway (COUNT=200) and PostgreSQL (20), fill the disk, turn the clock: is anything lost?"
	@echo "make fuzz        COUNT=100000 wrong requests through the whole gateway, in one process; SEED=1"
	@echo "make bench       all benchmarks"
	@echo "make clean       remove what setup and the tests made in this folder (the cache folder stays)"

setup:
	@$(PYTHON) scripts/setup.py

quickstart: setup
	@.venv/bin/dragoman quickstart

test: setup
	@.venv/bin/python scripts/run_tests.py $(ARGS)

lint:
	@$(PYTHON) scripts/setup.py --only gateway
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy -p dragoman
	.venv/bin/mypy tests scripts bench examples/tinyloop

e2e-first: setup
	@.venv/bin/python scripts/e2e_first.py

e2e-harnesses: setup
	@.venv/bin/python -m scripts.e2e_harnesses $(if $(DEFECTS),--defects) $(if $(TURNS),--turns) $(if $(RESUME),--resume) $(ONLY:%=--only %)

loop: setup
	@.venv/bin/python -m examples.tinyloop $(HARNESS:%=--harness %) $(SEED:%=--seed %) $(if $(SMALL),--small)

chaos: setup
	@.venv/bin/pytest -q -s tests/e2e/test_rollout.py -k everything

e2e-rollout: setup
	@.venv/bin/python -m scripts.e2e_rollout $(ARGS)

e2e-cluster: setup
	@.venv/bin/python -m scripts.e2e_cluster $(ARGS)

probe-harnesses: setup
	@.venv/bin/python -m scripts.probe_harnesses $(if $(RESUME),--resume) $(ONLY)

faults: setup
	@.venv/bin/python -m bench.kills $(COUNT:%=--count %) $(SEED:%=--seed %)
	@.venv/bin/python -m bench.outages $(SEED:%=--seed %)

fuzz: setup
	@.venv/bin/python -m bench.fuzz $(COUNT:%=--count %) $(SEED:%=--seed %)

e2e-codex: setup
	@.venv/bin/python -m scripts.e2e_codex $(ONLY:%=--only %)

bench-drift: setup
	@.venv/bin/python -m bench.drift

bench-store: setup
	@.venv/bin/python -m bench.store $(STORE:%=--store %)
	@.venv/bin/python -m bench.store_commands

bench-train: setup
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 .venv-engine/bin/python -m bench.train $(ARGS)

bench: bench-drift bench-store bench-train

clean:
	rm -rf .venv .venv-engine build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
