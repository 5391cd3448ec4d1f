#!/bin/sh
# requires: pipx
# A script that pipx installs into a venv of its own. Its torch is that of the image, which
# --system-site-packages adds. Here torch is in a venv too, so a .pth file adds it.
set -eu
export PIPX_HOME="$HOME/pipx" PIPX_BIN_DIR="$HOME/bin" USE_EMOJI=0
pipx install --quiet --system-site-packages ./package
site=$(python -c 'import site; print(site.getsitepackages()[0])')
echo "import site; site.addsitedir('$site')" >"$(echo pipx/venvs/*/lib/python3*/site-packages)/image.pth"
bin/compile-it
pipx run --spec ./package --system-site-packages compile-it --help
