# For users: check, test, lab. The rest is for developers.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One CPU build, pinned: anything else pulls gigabytes of CUDA packages.
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Where it is set, each of the thousand programs that the tests start would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check test packages lint unit lab-tests lab search test-gpu clean

check: $(VENV)/.installed
	$(BIN)/nccl-doctor check

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "nccl-doctor needs Python 3.10 or newer; this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.made
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.made
	$(PIP) $(TORCH) numpy --editable . --group dev
	touch $(VENV)/.installed $@

# As root this installs what the lab needs (sshd, nftables, ...); otherwise it says what could not be run and why.
packages:
	@sh tests/system-packages.sh

# Both kinds of packages at a time: they wait for networks and disks.
test:
	$(MAKE) --no-print-directory -j 2 packages $(VENV)/.installed-dev
	$(BIN)/python -m tests.leftovers $(MAKE) --no-print-directory lint unit lab-tests

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit:
	$(BIN)/pytest -q -n auto -m "not lab and not gpu and not alone" tests
	$(BIN)/pytest -q -m "alone and not lab and not gpu" tests

# Three at a time, each with a lab of its own: they wait as much as they work. What measures runs one after the other.
lab-tests:
	$(BIN)/pytest -q -n 3 --dist worksteal -m "lab and not alone" tests/lab
	$(BIN)/pytest -q -m "lab and alone" tests/lab

lab: packages $(VENV)/.installed-dev
	$(BIN)/python -m tests.lab up

# Generated examples, drawn anew: what it finds becomes a test of its own.
search: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n auto --hypothesis-profile=search $$(grep -rl --include='test_*.py' hypothesis tests/unit)

test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest -q -m gpu

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
