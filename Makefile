# Everything works on a fresh machine with Python 3.11 and a network that pip can use.
PYTHON ?= python3.11
WORK ?= .work
DEV = $(WORK)/dev

.PHONY: help demo demo-ranks test tests test-ci test-later test-all quick starts messages documents coverage lint changelog experiment
.PHONY: matrix graphs live amd overlay torture docs fresh site bench bench-startup dist oldest clean

help: ## this list, which "make" alone prints
	@awk -F ' *:.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# The main job: run one unmodified program in an environment like an image's, without and with us.
demo: compiler ## one unmodified program without the package and with it: the table of README.md
	$(PYTHON) -m demo --work $(WORK)

# A job of two ranks that hangs, without us and with us.
demo-ranks: compiler ## a job of two ranks that hangs, without the package and with it
	$(PYTHON) -m demo.ranks --work $(WORK)

# Lint and types beside the tests: real interpreters, the real wheel, the real torch. There is one
# process more than cores, because tests wait for programs. All tests of a file run in the same
# process, the longest files first.
WORKERS ?= $(shell expr $$(nproc) + 1)
TESTED ?= not ci and not later and not nightly
test: system $(DEV)/ready ## lint and the tests that are not left out (about ten minutes)
	$(MAKE) -j2 lint tests

tests: $(DEV)/ready ## the same without lint
	$(DEV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 \
	    --snapshot-details -m "$(TESTED)"

# What is left out there (tests/left_out.yaml), and what of it .ci/run has time for.
test-later: ## the tests that are left out, but for the nightly ones
	$(MAKE) test TESTED="(ci or later) and not nightly"

test-ci: ## what of them runs after each change
	$(MAKE) test TESTED="ci and not later and not nightly"

# All tests: the nightly.
test-all: ## all tests: the nightly
	$(MAKE) test TESTED=

# The tests that need no wheel, no torch and no image: a minute.
quick: $(DEV)/ready ## the tests that need no wheel, no torch and no image (a minute)
	$(DEV)/bin/pytest -n auto --dist loadfile -m "not slow and $(TESTED)"

# The tests that start interpreters of one Python, with the wheel in them. "make test" runs those of
# every Python that is found.
ONLY ?= 3.9
starts: $(DEV)/ready ## the tests that start interpreters of one Python: ONLY=3.9
	$(DEV)/bin/pytest -n auto --dist loadfile -k "$(ONLY)"

# Renews the messages that tests expect: tests/__snapshots__ and tests/data/wrong_policies.txt. Read
# the diff. Without xdist, so that each file is written once. TESTS=tests/test_start.py runs a part.
messages: $(DEV)/ready ## renew the messages that tests expect: TESTS=tests/test_start.py
	$(DEV)/bin/python -m tests.wrong_policies
	$(DEV)/bin/pytest --snapshot-update -m syrupy_snapshot $(TESTS)

# Writes the documents of this version to which tests/test_documents.py holds later ones. Only for a
# release: what is written then stays.
documents: $(DEV)/ready ## write the documents to which later versions are held: for a release
	ROCM_AUTOPATCH_TEST_DOCUMENTS=write \
	    $(DEV)/bin/pytest tests/test_documents.py tests/test_prove.py::TestCompiles::test_real

# Branch coverage, also of the interpreters that tests start. TESTS=tests/test_bake.py runs a part.
# Tests fail here that count a start's modules or instructions, or look at what a process writes.
TESTS ?=
coverage: system $(DEV)/ready ## branch coverage: TESTS=tests/test_bake.py
	rm -rf $(WORK)/coverage && mkdir -p $(WORK)/coverage
	-ROCM_AUTOPATCH_TEST_COVERAGE=$(abspath $(WORK))/coverage \
	    $(DEV)/bin/coverage run --data-file=$(abspath $(WORK))/coverage/data \
	    -m pytest -n auto --dist loadfile $(TESTS)
	$(DEV)/bin/coverage combine -q --data-file=$(WORK)/coverage/data
	$(DEV)/bin/coverage report --data-file=$(WORK)/coverage/data

lint: $(DEV)/ready ## ruff, mypy and the files in .github
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy
	$(DEV)/bin/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(DEV)/bin/check-jsonschema -q --builtin-schema vendor.github-issue-forms \
	    $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(DEV)/bin/zizmor -q --offline .github

# What is run by hand: without NAME, the list of experiments/manifest.yaml. WITH is an interpreter that
# has what the experiment needs, such as torch. "python -m experiments" does the same.
NAME =
OPTIONS =
WITH ?= $(DEV)/bin/python
experiment: $(if $(filter $(DEV)/bin/python,$(WITH)),$(DEV)/ready) ## what is run by hand: the list, or NAME=matrix
	@$(WITH) -m experiments $(NAME) $(OPTIONS)

# The longer matrix: it checks config strengths, the capture patch, compile modes, the watchdog, the
# recompiles patch, the compile report, misses of caches, docs/claims.md and probe's verdicts on what
# only a ROCm build reads against the modules of every torch from 2.4 to 2.15. What messages advise is
# done on the oldest and the newest torch that can be had.
OLDEST_NEWEST ?= 2.4.1 2.14.1
matrix: $(DEV)/ready ## the package against the modules of every torch from 2.4 to 2.15
	$(DEV)/bin/python experiments/matrix/config_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/capture_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/modes_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/watchdog_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/recompile_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/trace_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/cache_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/ranks_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/claims_versions.py $(WORK)/torch-versions
	$(DEV)/bin/python experiments/matrix/rocm_versions.py $(WORK)/torch-versions
	for torch in $(OLDEST_NEWEST); do \
	    venv=$(abspath $(WORK))/advice-$$torch && $(PYTHON) -m venv $$venv && \
	    $$venv/bin/pip install -q --disable-pip-version-check torch==$$torch "numpy<2" setuptools || exit 1; \
	done
	$(DEV)/bin/python experiments/matrix/advice_versions.py \
	    $(foreach torch,$(OLDEST_NEWEST),$(WORK)/advice-$(torch)/bin/python)

# The tests of graphs with a stand-in for the GPU, on other torches than that of "make test", and what
# of tools/typings they don't have: five minutes and up to 6 GB for each. A finished venv is used again.
TORCHES ?= 2.6.0 2.11.0 2.14.1
graphs: compiler ## the tests of graphs on other torches (6 GB each)
	for torch in $(TORCHES); do \
	    venv=$(abspath $(WORK))/graphs-$$torch && $(PYTHON) -m venv $$venv && \
	    $$venv/bin/pip install -q --disable-pip-version-check torch==$$torch numpy setuptools pytest . && \
	    $$venv/bin/python tests/programs/typings/ask_torch.py tools/typings && \
	    ROCM_AUTOPATCH=off TORCHINDUCTOR_CACHE_DIR=$$venv/caches \
	        $$venv/bin/pytest -q -p no:cacheprovider -c /dev/null --noconftest -W ignore tests/graphs \
	        || exit 1; \
	done

# The wheel with other torches and Pythons: torch 2.6 and 2.14 in Debian roots, Python 3.15, Debian's
# HIP runtimes, Ray, the launchers of docs/fleet.md, Prometheus. Fifty processes on one root of
# caches, and fifty that are killed. Jobs that join again, in hours: .work/rejoins.jsonl keeps what is
# done. Then programs of frameworks such as transformers, without us and with us. Needs root on Debian
# or Ubuntu. The roots take 15 GB.
live: $(DEV)/ready ## the wheel with other torches and Pythons, and programs of frameworks
	$(PYTHON) experiments/live/run.py --work $(WORK)/roots --surroundings $(WORK)
	$(DEV)/bin/python -m experiments.live.admission --work $(WORK)/roots
	ROCM_AUTOPATCH_TEST_CACHES=50 $(DEV)/bin/pytest tests/test_cache_real.py
	$(PYTHON) -m demo.ranks --work $(WORK)
	$(PYTHON) experiments/live/rejoins.py $(WORK)/demo/with/bin/python --results $(WORK)/rejoins.jsonl
	$(DEV)/bin/python -m experiments.frameworks --work $(WORK)/frameworks --surroundings $(WORK)

# Figures of AMD's compiler for real models, on a GPU that compiles and does not run. It takes hours;
# results are kept, and a second call goes on. AMD takes the options of "python -m benchmarks.amd -h".
AMD ?=
amd: $(DEV)/ready ## figures of AMD's compiler, on a GPU that compiles and does not run (hours)
	$(DEV)/bin/python -m benchmarks.amd --work $(WORK) $(AMD)

# The overlay's tests alone. Beside the small images of "make test", it uses one of full size, which
# has a real torch. Needs root and 2 GB.
overlay: system $(DEV)/ready ## the overlay's tests, with an image of full size
	ROCM_AUTOPATCH_TEST_OVERLAY=full $(DEV)/bin/pytest tests/overlay

# Tries for two hours to make a start fail: fuzzed starts, faults, signals, threads, embedding. Needs
# root, for mount namespaces. TORTURE takes the options of "python -m experiments.torture --help".
TORTURE ?= --pythons 3.9 3.10 3.11 3.12 3.13
torture: $(DEV)/ready ## two hours of injected faults
	$(DEV)/bin/python -m experiments.torture --work $(WORK) $(TORTURE)

# Make the pages that come from the sources, the figures in CONTRIBUTING.md, and the
# scripts that complete commands in a shell.
docs: $(DEV)/ready ## the pages that come from the sources
	$(DEV)/bin/python tools/switch_parts.py .
	$(DEV)/bin/python tools/json_schema.py docs
	$(DEV)/bin/python tools/images_page.py docs/images.md
	$(DEV)/bin/python tools/patches_table.py docs/patches.md
	$(DEV)/bin/python tools/measurements_page.py > docs/measurements.md
	$(DEV)/bin/python tools/experiments_page.py > experiments/README.md
	$(DEV)/bin/python tools/policy_keys_page.py > docs/policy-keys.md
	$(DEV)/bin/python tools/statuses_page.py docs/commands.md
	$(DEV)/bin/python tools/completions.py
	$(DEV)/bin/python tools/variables_page.py > docs/variables.md
	$(DEV)/bin/python tools/naming.py CONTRIBUTING.md
	$(DEV)/bin/python tools/tree_table.py docs/design.md

# What changed since the last release, from the files in changes/. With VERSION=0.2.0, write it into
# CHANGELOG.md and remove them.
VERSION ?=
changelog: $(DEV)/ready ## what the next release will say, from changes/
	$(DEV)/bin/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version Unreleased)

# Says what in policies, image records, config keys, switches and verdicts is no longer so, by the newest
# wheels of torch, Triton, vLLM and SGLang, without importing them. FRESH takes more options, such as
# "--checkout vllm-project/vllm=PATH" for Dockerfiles; "python -m tools.fresh --help" has all.
FRESH ?=
fresh: $(DEV)/ready ## what is no longer so, by the newest wheels of torch and others
	$(DEV)/bin/python -m tools.fresh --cache $(WORK)/fresh $(FRESH)

# The documentation as a site: .work/site/index.html. A warning, or a link that leads nowhere, is an
# error.
site: $(DEV)/ready ## the documentation as a site, with search: .work/site/index.html
	$(DEV)/bin/python -m tools.website.build $(WORK)/site

# Benchmarks. Seconds depend on the machine, so they are printed and not tested.
bench: $(DEV)/ready ## benchmarks of the choice of a policy
	$(DEV)/bin/python benchmarks/selection.py

# What a start costs with our package and with others, on each Python here. Takes 10 minutes.
bench-startup: $(DEV)/ready ## what a start costs with this package and with others (10 minutes)
	$(DEV)/bin/python -m benchmarks.startup --work $(WORK) --plot docs/startup.svg \
	    --pythons 3.9 3.10 3.11 3.12 3.13

# The wheel, the sdist and an SBOM in dist/: built twice, compared, checked (RELEASING.md).
dist: $(WORK)/release/ready ## the wheel, the sdist and an SBOM in dist/, built twice and checked
	$(WORK)/release/bin/python -m tools.dist dist

# The quick tests with the oldest dependencies that setup.cfg allows. One test is left out: it runs
# setuptools, which needs a newer packaging itself.
oldest: setup.cfg ## the quick tests with the oldest dependencies
	rm -rf $(WORK)/oldest && $(PYTHON) -m venv $(WORK)/oldest
	sed -n '/^install_requires/,/^$$/s/^ *\(.*\)>=/\1==/p' setup.cfg > $(WORK)/oldest/bounds.txt
	$(WORK)/oldest/bin/pip install -q --disable-pip-version-check -c $(WORK)/oldest/bounds.txt -e '.[test]'
	$(WORK)/oldest/bin/pytest -n auto --dist loadfile -m "not slow" \
	    --deselect tests/test_packaging.py::test_an_installed_release_does_not_build_this_one

$(WORK)/release/ready: setup.cfg
	$(PYTHON) -m venv $(WORK)/release
	$(WORK)/release/bin/pip install -q --disable-pip-version-check -e '.[release]'
	touch $@

$(DEV)/ready: setup.cfg pyproject.toml rocm_autopatch.pth
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install -q --disable-pip-version-check -e '.[site,test]'
	touch $@

# Programs that tests use beside Python: a C++ compiler, valgrind, a browser, zsh, tools that make
# and run images. If one can't be installed, this says which tests are skipped.
.PHONY: system compiler
system:
	tools/system.sh

# On a CPU, torch.compile needs a C++ compiler.
compiler:
	@command -v g++ >/dev/null || { apt-get update && apt-get install -y --no-install-recommends g++; }

clean: ## remove what make has made
	rm -rf $(WORK) build dist *.egg-info
