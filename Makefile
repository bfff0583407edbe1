# `make run` and `make test` set everything up on first use; after that the set-up costs nothing.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done; echo python3)
VENV ?= .venv
PY := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/notebooks$(if $(PYTHONPATH),:$(PYTHONPATH))
export TOKENIZERS_PARALLELISM := false

.PHONY: help run run-all train test lint lab publish gallery bench bench-training bench-browser gpu-check recipes sample-run data starter-policy clean
.DEFAULT_GOAL := help

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

$(VENV)/.ready: requirements.txt notebooks/lab/setup.py
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.11 or newer, or name one: make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) notebooks/lab/setup.py --venv $(VENV)

run: $(VENV)/.ready  ## run notebooks 01 to 05 and show the evidence (about ten minutes on two cores; MODEL=starter: on a GPU too)
	@$(PY) -m lab.make.run $(if $(MODEL),--model $(MODEL))

run-all: $(VENV)/.ready  ## run notebooks 00 to 07 (about seventeen minutes)
	@$(PY) -m lab.make.run --all

# One hash seed for all processes: they must agree on the names of tests that hold a set.
test: $(VENV)/.ready  ## run the tests, in up to four processes
	@PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.ready  ## check the code and the notebooks with ruff
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

train: $(VENV)/.ready  ## run notebook 03 as a script in NPROC processes (CONFIG=ddp, fsdp or zero3; SET="MAX_STEPS=20")
	@test -e outputs/rewards.json || $(PY) -m lab.make.run --upto 02_design_rewards
	@$(PY) -m lab.train.launch --nproc $(or $(NPROC),1) --config $(or $(CONFIG),ddp) $(if $(SET),--set $(SET))

lab: $(VENV)/.ready  ## open the notebooks in JupyterLab, with the whole folder beside them (ARGS=--no-browser)
	@$(VENV)/bin/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

publish: $(VENV)/.ready  ## write a GitHub address (REPO=owner/name) into the notebooks, so that each opens alone, and badges for Colab and Kaggle
	@$(PY) -m lab.make.publish "$(REPO)"

gallery: $(VENV)/.ready  ## write notebooks/gallery/ from the notebooks that `make run` executed
	@$(PY) -m lab.make.gallery

# PY=python3 uses a Python as it is, where packages came as wheels and nothing can be fetched.
gpu-check: $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready)  ## check and measure everything on a CUDA card (ten minutes; without a card a small rehearsal)
	@$(PY) notebooks/lab/make/gpu_check.py $(ARGS)

bench: $(VENV)/.ready  ## measure the rewards and the sandbox (about two minutes)
	@$(PY) tests/benchmarks/rewards_bench.py
	@$(PY) tests/benchmarks/sandbox_bench.py

bench-training: $(VENV)/.ready  ## measure a training step beside plain TRL, and the time to 0.85 correct (about 25 minutes)
	@$(PY) tests/benchmarks/training_bench.py

bench-browser: $(VENV)/.ready  ## measure the completions page (about a minute)
	@$(PY) tests/benchmarks/browser_bench.py

recipes: $(VENV)/.ready  ## train the recipes of notebook 07 again (one to two hours on two cores)
	@OMP_NUM_THREADS=1 $(PY) -m lab.make.recipe_grid --workers 2

sample-run: $(VENV)/.ready  ## record data/sample-run again, which notebook 04 shows before you have trained (about six minutes)
	@$(PY) -m lab.make.sample_run

data: $(VENV)/.ready  ## make word_problems.jsonl and code_drills.jsonl again (same seed, same files)
	@$(PY) -m lab.make.word_problems
	@$(PY) -m lab.make.code_drills

starter-policy: $(VENV)/.ready  ## train the starter policy again (about 40 minutes on two cores)
	@$(PY) -m lab.make.starter_policy

clean:  ## remove outputs/ and caches (the environment too: make clean VENV_TOO=1)
	@rm -rf outputs .pytest_cache unsloth_compiled_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@$(if $(VENV_TOO),rm -rf $(VENV))
