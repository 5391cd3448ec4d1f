#!/bin/sh
# requires: debugpy
# A program that waits for a debugger. The debugger stops it at a line, and lets it go on. Without
# subProcess false, each process that Inductor starts would wait for a debugger of its own.
set -eu
python -m debugpy --listen "127.0.0.1:$PORT" --wait-for-client --configure-subProcess false \
    program.py one two &
program=$!
python attach.py "$PORT"
wait "$program"
