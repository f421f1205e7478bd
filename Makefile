# Each target sets up its own virtual environment; nothing else has to be installed first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test check format bench bench-gpu clean

run: $(READY) ## the three suites on the authors' kernels: tables here, JSON in reports/
	$(BIN)/flashcheck run quant ecc int16

test: $(READY) ## the tests
	$(BIN)/python -m pytest

check: $(READY) ## formatting, lint, types, and the import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the formatting right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## on a CPU: against the script it grew from, the reference alone, an enumeration
	$(BIN)/python benchmarks/against_seed.py
	$(BIN)/python benchmarks/reference_speed.py
	$(BIN)/python benchmarks/enumeration.py

bench-gpu: ## on a GPU, with the Python that has torch for it: kernels, sweeps, optimizer steps
	$(PYTHON) benchmarks/gpu.py
	$(PYTHON) benchmarks/steps.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
