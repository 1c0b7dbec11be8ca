# Two commands on a fresh machine: `make demo` and `make test`. Choose the interpreter with PYTHON=python3.13.
PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
READY := .venv/ready-$(VERSION)
RUN := .venv/bin

.PHONY: demo test test-alone test-engines test-docs test-all test-loop test-lowest sdist-check release coverage check format bench bench-tall bench-scaling bench-accuracy reproduce reproduce-full clean

demo: $(READY)
	$(RUN)/python examples/demo.py

# Two processes, each with a test file at a time.
PYTEST := $(RUN)/pytest -n 2 --dist loadfile

# Most of the time would be compiling; test-all has the programs that users have.
QUICK := --quick-compile -m "not slow and not engines and not docs"
test: $(READY)
	$(PYTEST) $(QUICK)

# Each file in a process of its own (5: it has no quick test).
test-alone: $(READY)
	find tests -name 'test_*.py' | sort | xargs -P 2 -I{} sh -c '$(RUN)/pytest -q $(QUICK) {} || [ $$? = 5 ] || exit 255'

# What is not installed would be skipped: here it fails.
test-engines: $(READY)
	$(RUN)/pip install --quiet --editable '.[dask,ray]'
	EPVI_EVERY_ENGINE=1 $(PYTEST) -m engines

test-docs: $(READY)
	$(PYTEST) -m docs

test-all: $(READY)
	$(PYTEST)

# Lines of src that the quick and the slow tests run, in epvi's own workers too; the least covered files come first.
MEASURED := PYTHONPATH=$(CURDIR)/tests/measured$(PYTHONPATH:%=:%) $(RUN)/coverage run -m pytest -n 2 --dist loadfile
coverage: $(READY)
	$(RUN)/coverage erase
	$(MEASURED) $(QUICK)
	$(MEASURED) -m slow
	$(RUN)/coverage combine --quiet
	$(RUN)/coverage report

# From a fresh clone with empty caches, again and again, with something else on one core in some of the runs.
test-loop:
	$(PYTHON) tests/loop.py --python $(PYTHON)

# A quick part of the tests with the lowest versions that pyproject.toml allows of every direct dependency. Warnings are
# no errors here: old versions have some of their own beside newer ones; and jaxlib 0.10.0 prints of what it finds in
# the cache of compiled programs.
LOWEST := ground/test_atomic ground/test_printable cli/test_cli cli/test_combine_kinds hub/posterior/test_export
LOWEST += wire/test_shard_fit project/test_packaging study/test_references study/test_study_danger site/rows/test_rows
test-lowest: .venv-lowest/ready-$(VERSION)
	EPVI_CACHE=off .venv-lowest/bin/pytest -o filterwarnings= -m "not slow" $(LOWEST:%=tests/%.py)

.venv-lowest/ready-$(VERSION): pyproject.toml tests/lowest.py
	$(PYTHON) -m venv --clear .venv-lowest
	$(PYTHON) tests/lowest.py > .venv-lowest/requirements.txt
	.venv-lowest/bin/pip install --quiet --requirement .venv-lowest/requirements.txt
	.venv-lowest/bin/pip install --quiet --no-deps --editable .
	touch $@

# The sdist, unpacked elsewhere: its tests are all found there, and a few of them run.
sdist-check: $(READY)
	$(RUN)/pip install --quiet build
	rm -rf dist/unpacked
	$(RUN)/python -m build --sdist --outdir dist/unpacked
	tar -xzf dist/unpacked/*.tar.gz -C dist/unpacked --strip-components=1
	cd dist/unpacked && PYTHONPATH=$$PWD/src ../../$(RUN)/pytest -q --collect-only > collected.txt
	cd dist/unpacked && PYTHONPATH=$$PWD/src ../../$(RUN)/pytest -q $(patsubst %,tests/%.py,project/test_packaging study/test_references ground/test_printable experiments/test_claims)

# Wheel and sdist into dist/, the wheel tried in an environment of its own; what is there then can be published.
release:
	PYTHON=$(PYTHON) .ci/release

check: $(READY)
	$(RUN)/ruff check
	$(RUN)/ruff format --check
	$(RUN)/pyright
	$(RUN)/lint-imports
	$(RUN)/python tests/house.py

format: $(READY)
	$(RUN)/ruff check --fix
	$(RUN)/ruff format

bench: $(READY)
	$(RUN)/python benchmarks/products.py
	$(RUN)/python benchmarks/modes.py
	$(RUN)/python benchmarks/fit.py
	$(RUN)/python benchmarks/missing.py
	$(RUN)/python benchmarks/first_call.py
	$(RUN)/python benchmarks/files.py

# Its own target: it takes an hour, and the peers need more packages.
bench-tall: $(READY)
	$(RUN)/pip install --quiet --editable '.[bench]'
	$(RUN)/python benchmarks/tall.py

# What rows, shards, parameters and groups cost, beside peers: hours, unless ONLY names parts (make bench-scaling
# ONLY=shards,rare).
bench-scaling: $(READY)
	$(RUN)/pip install --quiet --editable '.[bench]'
	$(RUN)/python benchmarks/scaling.py --output scaling.csv $(if $(ONLY),--only $(ONLY))

# Beside posteriors that are known; the data are not part of the project (EPVI_DATA names their folder).
bench-accuracy: $(READY)
	$(RUN)/python benchmarks/accuracy.py --output accuracy.csv

# The paper's study, into reproduced/: what is there already is not measured again. Real rows are used where they are
# (EPVI_DATA names their folder), and SUSY=SUSY.csv.gz names UCI's file.
SIZE ?= quick
OUT := reproduced/$(SIZE)
DATA := $(or $(EPVI_DATA),../shared/data)
# The long ones first.
STUDY := figure3 figure5 methods $(if $(SUSY),figure3_susy)
STUDY += $(if $(wildcard $(DATA)/susy/susy_10000.npz),figure3_ten_thousand susy_cv)
STUDY += $(if $(wildcard $(DATA)/fmri/haxby_sub001_25mm.npz),fmri)
STUDY += complexity figure4 mode_mass communication figure1 figure2
EXPERIMENT = $(RUN)/python $< --out $(OUT) $(if $(filter full,$(SIZE)),--full)

# Figure 3 has both cores for itself, because it looks at the wall's clock too; the others use one each.
reproduce: $(READY)
	$(if $(filter susy_cv,$(STUDY)),$(MAKE) --no-print-directory .venv/bench)
	$(MAKE) --no-print-directory $(OUT)/figure3.svg
	EPVI_LINES=1 $(MAKE) --no-print-directory -j2 $(OUT)/claims.md
reproduce-full:
	$(MAKE) --no-print-directory reproduce SIZE=full

$(OUT)/claims.md: experiments/claims.py $(STUDY:%=$(OUT)/%.svg)
	$(RUN)/python $< --out $(OUT)
$(OUT)/%.svg: experiments/%.py $(wildcard experiments/lab/*.py) | $(READY)
	$(EXPERIMENT)
$(OUT)/figure3_ten_thousand.svg: experiments/figure3.py $(OUT)/figure3.svg
	$(EXPERIMENT) --rows ten-thousand
$(OUT)/figure3_susy.svg: experiments/figure3.py $(OUT)/figure3.svg
	$(EXPERIMENT) --susy $(SUSY)
.venv/bench: | $(READY)
	$(RUN)/pip install --quiet --editable '.[bench]'
	touch $@

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "epvi needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another with PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	$(RUN)/pip install --quiet --upgrade pip
	$(RUN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
