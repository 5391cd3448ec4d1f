#!/bin/sh
# requires: pyinstaller
# compiles: no
# A frozen program without torch, without our package and with it. No .pth line runs in it.
set -eu
pyinstaller --log-level ERROR --name without plain.py
dist/without/without
# Our functions import torch, so it would be frozen too.
pyinstaller --log-level ERROR --name with --hidden-import rocm_autopatch.record.report --exclude-module torch \
    plain.py
dist/with/with
