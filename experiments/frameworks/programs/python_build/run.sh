#!/bin/sh
# requires: build
# compiles: no
# A package's source distribution and wheel, each built in an environment of its own.
set -eu
python -m build --quiet
for file in dist/*; do
    echo "$file"
done
python -m zipfile --list dist/*.whl | sed 's/  .*//' | sort
cat seen.txt
