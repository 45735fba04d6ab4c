# Every target creates the environment first if it is missing: `make demo`, `make test`. PYTHON chooses its interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test quick test-torch lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# distils the embedded teacher of fashion images; ends with a picture and a sentence about the steps saved
demo: install
	$(BIN)/di4c distill --out runs/demo
	$(BIN)/di4c eval --student runs/demo --model di4c=fashion-di4c
	@echo "The picture is runs/demo/evaluation/comparison.png, the page runs/demo/evaluation/report.html."

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install lint
	$(BIN)/python -m pytest

# the inner loop: all tests but those marked slow
quick: install
	$(BIN)/python -m pytest -m "not slow"

# the tests that depend most on torch, with any version of it in an environment of its own
TORCH ?= newest
TORCH_BIN = .venv-torch-$(TORCH)/bin
TORCH_TESTS := tests/training/test_half_precision.py tests/training/test_movement.py tests/training/test_sharded.py \
	tests/training/test_divided_latents.py tests/training/test_run.py tests/device tests/methods tests/network \
	tests/latent tests/process tests/sampler tests/test_model.py

test-torch:
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv .venv-torch-$(TORCH)
	$(TORCH_BIN)/python -m pip install --quiet --upgrade --disable-pip-version-check \
		torch$(if $(filter newest,$(TORCH)),,==$(TORCH)) -e ".[dev]"
	$(TORCH_BIN)/python -m pytest $(TORCH_TESTS)

# compares ratios with benchmarks/baseline.json; run nothing else on the machine meanwhile
bench: install
	$(BIN)/python -m benchmarks.guard

clean:
	rm -rf $(VENV) .venv-torch-* runs/demo
