# make demo: the main job, on the emulator.   make test: what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt

.PHONY: demo test lint types unit bench teflon clean

demo: $(VENV)/.demo
	$(BIN)/python -m examples.mobilenet.demo

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m opennpu.hw.export --check
	$(BIN)/python -m docs.make_operators --check
	$(BIN)/python -m docs.make_coverage --check
	$(BIN)/python -m docs.check_links
	$(BIN)/python -m pytest -q --durations=10

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks.emulator
	$(BIN)/python -m benchmarks.compile
	$(BIN)/python -m benchmarks.emulate_roundtrip
	$(BIN)/python -m benchmarks.golden
	$(BIN)/python -m benchmarks.calibrate
	$(BIN)/python -m benchmarks.efficiency

teflon: $(VENV)/.dev
	$(BIN)/python -m tests.teflon.run

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[onnx,vision]'
	touch $@

$(VENV)/.dev: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[onnx,vision,dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
