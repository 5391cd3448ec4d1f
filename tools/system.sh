#!/bin/sh
# Install the programs that tests use and that are missing here, in one call of apt-get. As root,
# on Debian or Ubuntu. Elsewhere, say which tests will be skipped, and why. Only g++ is required.
set -eu
PATH="$PATH:/usr/sbin:/sbin"

# A program, its package, and what happens without it.
table() {
    cat <<'END'
g++ g++ torch.compile can't compile for a CPU: make test fails
valgrind valgrind tests/test_start_cost.py, which counts a start's instructions, is skipped
buildah buildah tests/overlay, which makes images, is skipped
runc runc tests/overlay, which runs images, is skipped
crun crun the tests of crun in tests/test_host.py are skipped
mmdebstrap mmdebstrap tests/overlay, which makes images, is skipped
chromium chromium the browser's test in tests/test_report.py is skipped
chromedriver chromium-driver the browser's test in tests/test_report.py is skipped
zsh zsh the tests of zsh in tests/test_completion.py are skipped
END
}

missing() {
    table | while read -r program package without; do
        command -v "$program" >/dev/null || echo "$program $package $without"
    done
}

test -n "$(missing)" || exit 0

if ! command -v apt-get >/dev/null; then
    why="there is no apt-get"
elif test "$(id -u)" != 0; then
    why="only root can install packages"
else
    why="apt-get could not install it"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update || true
    # Ubuntu has no chromium package, and apt-get installs nothing if one name is unknown.
    packages=$(missing | while read -r _ package _; do
        ! apt-cache show "$package" >/dev/null 2>&1 || echo "$package"
    done)
    # shellcheck disable=SC2086 # one word a package
    test -z "$packages" || apt-get install -y --no-install-recommends $packages || true
fi

missing | while read -r program package without; do
    echo "make system: no $program ($why; its package: $package): $without"
done
command -v g++ >/dev/null
