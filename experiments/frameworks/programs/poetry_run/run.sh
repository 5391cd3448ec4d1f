#!/bin/sh
# requires: poetry
# A project that poetry installs into the environment that is active, and its command.
set -eu
VIRTUAL_ENV=$(python -c 'import sys; print(sys.prefix)')
export VIRTUAL_ENV
poetry install --only-root --quiet
poetry run python -c 'import poetry_project; poetry_project.main()'
poetry run compile-project
