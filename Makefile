# `make run` and `make test` set everything up on first use; after that the set-up costs nothing.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done; echo python3)
VENV ?= .venv
PY := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/notebooks$(if $(PYTHONPATH),:$(PYTHONPATH))
export TOKENIZERS_PARALLELISM := false

.PHONY: help run run-all train test bench bench-training bench-browser gpu-check scale recipes sample-run lab data starter-policy clean
.DEFAULT_GOAL := help

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

$(VENV)/.ready: requirements.txt notebooks/lab/setup.py
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.11 or newer, or name one: make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) notebooks/lab/setup.py --venv $(VENV)

run: $(VENV)/.ready  ## run notebooks 01 to 05 and show the evidence (about ten minutes on two cores; MODEL=starter: on a GPU too)
	@$(PY) -m lab.make.run $(if $(MODEL),--model $(MODEL))

run-all: $(VENV)/.ready  ## the same, and the notebooks beside the road: 00, 06, 07 (about seventeen minutes)
	@$(PY) -m lab.make.run --all

# one hash seed: names of tests that hold a set would differ between the processes, and nothing would run
test: $(VENV)/.ready  ## run the tests, a file of them in each of up to four processes
	@PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(PY) -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

train: $(VENV)/.ready  ## notebook 03 as a script in NPROC processes (CONFIG=ddp, fsdp or zero3; SET="MAX_STEPS=20")
	@test -e outputs/rewards.json || $(PY) -m lab.make.run --upto 02_design_rewards
	@$(PY) -m lab.train.launch --nproc $(or $(NPROC),1) --config $(or $(CONFIG),ddp) $(if $(SET),--set $(SET))

bench: $(VENV)/.ready  ## measure the rewards and the sandbox beside what they replace (about two minutes)
	@$(PY) tests/benchmarks/rewards_bench.py
	@$(PY) tests/benchmarks/sandbox_bench.py

bench-training: $(VENV)/.ready  ## measure training: a step beside bare TRL, time to 0.85 correct (about 25 minutes)
	@$(PY) tests/benchmarks/training_bench.py

bench-browser: $(VENV)/.ready  ## measure the completions page: a million rows asked, 20,000 opened and searched (about a minute)
	@$(PY) tests/benchmarks/browser_bench.py

# PY=python3 takes a Python as it is, where packages come as wheels and nothing can be fetched
gpu-check: $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready)  ## on a CUDA card: see that everything works there, and measure it (ten minutes; elsewhere a small rehearsal)
	@$(PY) notebooks/lab/make/gpu_check.py $(ARGS)


recipes: $(VENV)/.ready  ## train the grid of notebook 07 again (about 40 minutes on two cores)
	@OMP_NUM_THREADS=1 $(PY) -m lab.make.recipe_grid --workers 2

sample-run: $(VENV)/.ready  ## record data/sample-run again, which notebook 04 shows to who has not trained (about six minutes)
	@$(PY) -m lab.make.sample_run

lab: $(VENV)/.ready  ## open the notebooks in JupyterLab
	@$(VENV)/bin/jupyter lab notebooks

data: $(VENV)/.ready  ## make data/*.jsonl again from their generators (same seed, same files)
	@$(PY) -m lab.make.word_problems
	@$(PY) -m lab.make.code_drills

starter-policy: $(VENV)/.ready  ## train the starter policy again (about 40 minutes on two cores)
	@$(PY) -m lab.make.starter_policy

clean:  ## remove outputs/ and caches (the environment too: make clean VENV_TOO=1)
	@rm -rf outputs .pytest_cache unsloth_compiled_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@$(if $(VENV_TOO),rm -rf $(VENV))
