# Every target creates the environment first if it is missing: `make demo`, `make test`. PYTHON chooses its interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test quick lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: install
	$(BIN)/di4c distill --out runs/demo
	$(BIN)/di4c eval --student runs/demo --steps 1,2,4,8 -n 2000
	$(BIN)/di4c sample --student runs/demo --steps 2 -n 100 --out runs/demo/student-2-steps.png
	@echo "Student: runs/demo/student. Pictures: runs/demo/student-2-steps.png, runs/demo/evaluation/samples,"
	@echo "runs/demo/curves.png and the plot beside runs/demo/evaluation/results.json."

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

# compares ratios with benchmarks/baseline.json; run nothing else on the machine meanwhile
bench: install
	$(BIN)/python -m benchmarks.guard

clean:
	rm -rf $(VENV) runs/demo
