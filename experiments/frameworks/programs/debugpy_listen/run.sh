#!/bin/sh
# requires: debugpy
# A program under debugpy to which no debugger is attached.
set -eu
python -m debugpy --listen "127.0.0.1:$PORT" program.py one two
