#!/bin/sh
# Installs the wheel beside this file into each Python of an image that has a ROCm torch. If packed
# caches are beside it, too, they become part of the image. This half records the image's environment
# and finds its Pythons; install.py, in one of them, does the rest.
# It is a step of a build: it records the environment that it is started with as the image's own.
# Dockerfile.overlay runs it as a file, because builders repeat the whole text of a step that fails.
set -eu

say() { printf 'rocm_autopatch: %s\n' "$1"; }
die() {
    printf 'rocm_autopatch: error: %s\n' "$1" >&2
    exit 1
}

[ "$(id -u)" = 0 ] ||
    die "the image's USER is not root: put 'USER root' before the overlay's RUN, its own USER after it"
[ -n "${ROCM_AUTOPATCH_BASE:-}" ] ||
    die "ROCM_AUTOPATCH_BASE is not set: it has the name of the image, which chooses the policy"

# World-readable, whatever the builder's umask.
umask 022
# For what is made before the first Python is changed. Not in a variable: that would change one of the
# image's of the same name, which is about to be recorded.
set -- "$(mktemp -d /tmp/rocm-autopatch.XXXXXX)"
[ -d "$1" ] || die "no directory can be made in /tmp"

# Variables that RUN and builders add are left out: they are not the image's, and would differ
# from one build to the next. So are the arguments that every builder knows, as "docker build
# --build-arg https_proxy=..." gives them. Sorted, because the order that builders give them differs.
env -0 -u PWD -u OLDPWD -u SHLVL -u _ -u HOME -u HOSTNAME -u TERM -u container \
    -u ROCM_AUTOPATCH_BASE -u ROCM_AUTOPATCH_ANY_TORCH \
    -u HTTP_PROXY -u HTTPS_PROXY -u FTP_PROXY -u NO_PROXY -u ALL_PROXY \
    -u http_proxy -u https_proxy -u ftp_proxy -u no_proxy -u all_proxy |
    LC_ALL=C sort -z >"$1/baseline" || :
work=$1
trap 'rm -rf "$work"' EXIT
[ -s "$work/baseline" ] ||
    die "env or sort of this image lacks the option -0 or -z"

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
set -- "$here"/rocm_autopatch-*.whl
[ -f "$1" ] || set --
[ "$#" = 1 ] ||
    die "expected exactly one wheel in dist/, found: ${*:-none}; the build has it in $here"
wheel=$1
[ -f "$here/install.py" ] || die "install.py is not beside the script, in $here"

# WORKDIR may hold torch's sources, which a Python started there takes for an installed torch.
cd "$work"

# Of the image's settings of Python and pip, only those hold that say where modules are, and which
# bytecode its starts read. Others end a pip, or make a Python wait or print.
for name in $(env | sed -n -e 's/^\(PYTHON[A-Z0-9_]*\)=.*/\1/p' -e 's/^\(_*PIP_[A-Z0-9_]*\)=.*/\1/p'); do
    case $name in
    PYTHONPATH | PYTHONHOME | PYTHONPLATLIBDIR | PYTHONUSERBASE | PYTHONNOUSERSITE) ;;
    PYTHONOPTIMIZE) ;;
    *) unset "$name" ;;
    esac
done
# A hook that is installed already must print nothing. Bytecode comes only from the step below, the
# same at each build.
export ROCM_AUTOPATCH=off PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PIP_CONFIG_FILE=/dev/null

# Those that a shell of the image finds come first, so that messages name them so. An environment may
# be anywhere, and may have its Python under another name than python3.
pythons() {
    for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        [ -z "$prefix" ] || echo "$prefix/bin/python3"
    done
    command -v python3 || :
    command -v python || :
    if command -v find >/dev/null; then
        # What everybody may write is not the image's.
        find / -xdev \( -path /tmp -o -path /var/tmp \) -prune -o ! -type d -path '*/bin/python*' \
            -print 2>/dev/null >"$work/found" || :
    else
        printf '%s\n' /opt/*/bin/python* /opt/*/envs/*/bin/python* /usr/bin/python* \
            /usr/local/bin/python* >"$work/found"
    fi
    for name in 3 '' '3\.[0-9]t*' '3\.[0-9][0-9]t*'; do
        LC_ALL=C sort "$work/found" | sed -n "/\/python$name\$/p"
    done
}

newline='
'
# The first that runs goes on with install.py, without site: a sitecustomize may print or be broken.
# A path may have a blank, and no path of a Python has a line break.
all=$(pythons)
IFS=$newline
set -f
links='' runner='' broken=''
for python in $all; do
    [ -x "$python" ] || continue
    # python3 and python3.12 beside each other.
    link=${python%/*}//$(readlink -f "$python")
    case $newline$links in *"$newline$link$newline"*) continue ;; esac
    links=$links$link$newline
    printf '%s\n' "$python" >>"$work/pythons"
    [ -z "$runner" ] || continue
    if said=$("$python" -S -c 'import subprocess' 2>&1 </dev/null); then
        runner=$python
    else
        broken="$broken$python does not run: not changed: ${said##*"$newline"}$newline"
    fi
done
if [ -z "$runner" ]; then
    for said in $broken; do say "$said"; done
    die "no Python in $ROCM_AUTOPATCH_BASE has torch"
fi
run_file='import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))'
"$runner" -S -c "$run_file" "$here/install.py" "$work" "$here" "$wheel" </dev/null
