#!/bin/sh
# Installs the wheel beside this file into each Python of an image that has a ROCm torch. If packed
# caches are beside it, too, they become part of the image.
# Dockerfile.overlay runs it as a file, because builders repeat the whole text of a step that fails.
set -eu

say() { echo "rocm_autopatch: $*"; }
die() {
    echo "rocm_autopatch: error: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] ||
    die "the image's USER is not root: put 'USER root' before the overlay's RUN, its own USER after it"

# World-readable, whatever the builder's umask.
umask 022
mkdir -p /etc/rocm-autopatch

# This comes before this script exports anything. Variables that RUN and builders add are left out:
# they are not the image's, and would differ from one build to the next. Sorted, because the order
# that builders give them differs, too.
set -- -u PWD -u OLDPWD -u SHLVL -u _ -u HOME -u HOSTNAME -u TERM -u container \
    -u ROCM_AUTOPATCH_BASE -u ROCM_AUTOPATCH_ANY_TORCH
# The arguments that every builder knows, as "docker build --build-arg https_proxy=..." gives them.
for name in HTTP_PROXY HTTPS_PROXY FTP_PROXY NO_PROXY ALL_PROXY \
    http_proxy https_proxy ftp_proxy no_proxy all_proxy; do
    set -- "$@" -u "$name"
done
env -0 "$@" | LC_ALL=C sort -z >/etc/rocm-autopatch/baseline
[ -s /etc/rocm-autopatch/baseline ] || die "env or sort of this image lacks the option -0 or -z"

: "${ROCM_AUTOPATCH_BASE:?}"
printf '%s\n' "$ROCM_AUTOPATCH_BASE" >/etc/rocm-autopatch/image

# WORKDIR may hold torch's sources, which a Python started there takes for an installed torch.
here=${0%/*}
cd "$here"
set -- rocm_autopatch-*.whl
{ [ "$#" = 1 ] && [ -f "$1" ]; } || die "expected exactly one wheel in dist/, found: $*"
wheel=$here/$1

caches=$here/rocm_autopatch-caches.tar.gz
layer=/usr/local/share/rocm-autopatch/caches
if [ -f "$caches" ]; then
    # Before bake, which takes it into the plan.
    cat >/etc/rocm-autopatch/caches.yaml <<'EOF'
version: 1
name: caches
caches: {use: on, why: This image has packed caches.}
EOF
fi

# A hook that is installed already must print nothing. Bytecode comes only from the step below, the
# same at each build. The image's settings of pip must have no effect.
export ROCM_AUTOPATCH=off PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PIP_CONFIG_FILE=/dev/null

# The wheel itself says which torch a start would find; it imports none. A venv's python is often a
# link to the system's: what tells two environments apart is where they install to.
look='
import os, sys, sysconfig
from importlib.util import find_spec
sys.modules.pop("rocm_autopatch", None)
sys.path.insert(0, sys.argv[1])
from rocm_autopatch import here
facts = here.torch()
lacks = [name for name in ("yaml", "packaging", "pip") if not find_spec(name)]
print(facts.get("accelerator", "none"), facts.get("torch", "?"),
      ",".join(lacks) or "nothing", os.path.realpath(sysconfig.get_path("purelib")))
'
# Reads what "status --json" prints.
judge='
import json, sys
report = json.load(sys.stdin)
print("; ".join(report["errors"] or [report["reason"]]))
'

# A Python whose pip can install for another: a venv made by uv has no pip.
borrowed_pip() {
    for lender in /usr/bin/python3 /usr/local/bin/python3 /opt/*/bin/python3 \
        /opt/*/envs/*/bin/python3; do
        [ -x "$lender" ] || continue
        case $("$lender" -m pip --help 2>/dev/null) in
        *--python*)
            echo "$lender"
            return
            ;;
        esac
    done
    return 1
}

seen='' others='' done='' seeded=''
for python in /opt/venv/bin/python3 "${VIRTUAL_ENV:-/opt/venv}/bin/python3" \
    /opt/*/bin/python3 /opt/*/envs/*/bin/python3 "${CONDA_PREFIX:-/opt/conda}/bin/python3" \
    "$(command -v python3)" "$(command -v python)" /usr/bin/python3 /usr/local/bin/python3; do
    [ -x "$python" ] || continue
    found=$("$python" -c "$look" "$wheel") || {
        say "$python does not run: not changed"
        continue
    }
    read -r accelerator torch lacks place <<EOF
$found
EOF
    case $seen in *"[$place]"*) continue ;; esac
    seen="$seen [$place]"
    case $accelerator,${ROCM_AUTOPATCH_ANY_TORCH:-} in
    none,*)
        say "$python has no torch: not changed"
        continue
        ;;
    rocm,* | *,1) ;;
    *)
        say "$python has torch $torch, which is not a ROCm build: not changed"
        others="$others, $torch in $python"
        continue
        ;;
    esac
    set -- "$python" -m pip
    case ,$lacks, in
    *,pip,*)
        borrowed=$(borrowed_pip) ||
            die "$python has torch but no pip, and no other pip in the image can install for it"
        set -- "$borrowed" -m pip --python "$python"
        ;;
    esac

    # Debian's EXTERNALLY-MANAGED stops a pip that is new enough to know this option, too.
    force=--break-system-packages
    help=$("$@" install --help) || die "pip of $python does not run"
    case $help in *"$force"*) ;; *) force='' ;; esac
    # By name and not by path: "pip freeze" would name a file that is gone.
    "$@" install --isolated -qq --no-index --find-links "$here" --no-deps \
        --force-reinstall --no-compile --no-cache-dir --disable-pip-version-check \
        ${force:+"$force"} rocm_autopatch >&2 || die "pip of $python could not install $wheel"
    package=$("$python" -c 'import rocm_autopatch; print(rocm_autopatch.__path__[0])') ||
        die "$python does not find the package that was installed"
    # Never compared with the times of the sources, which builders of reproducible images rewrite.
    "$python" -m compileall -q -f --invalidation-mode unchecked-hash "$package" ||
        die "$python could not compile $package"

    if [ -f "$caches" ]; then
        case $lacks in *yaml*) die "$python lacks PyYAML, which the packed caches need" ;; esac
    fi
    baked=''
    case $accelerator,$lacks in
    rocm,*yaml* | rocm,*packaging*)
        say "$python lacks ${lacks%,pip}: not baked; starts use the plans in the wheel"
        ;;
    rocm,*)
        "$python" -m rocm_autopatch bake --image "$ROCM_AUTOPATCH_BASE" >/dev/null ||
            die "rocm-autopatch bake failed in $python"
        baked=' and baked'
        ;;
    esac

    status=0
    # Without caches: the build makes no place in root's home, as a start would.
    report=$(ROCM_AUTOPATCH=on ROCM_AUTOPATCH_CACHE=off ROCM_AUTOPATCH_LOG=quiet \
        "$python" -m rocm_autopatch status --no-torch --json) || status=$?
    reason=$(printf '%s\n' "$report" | "$python" -c "$judge") || status=1 reason='no report'
    [ "$status" = 0 ] || die "with the package, $python reports an error at its start: $reason"
    say "$python has torch $torch: installed$baked; $reason"
    done=yes
    if [ -f "$caches" ]; then
        if told=$("$python" -m rocm_autopatch cache seed "$caches" --into "$layer" 2>&1); then
            say "caches: $(printf '%s\n' "$told" | head -n 1)"
            seeded=yes
        else
            say "$told" | head -n 1
        fi
    fi
done

if [ -z "$done" ]; then
    [ -z "$others" ] || die "torch is not a ROCm build: ${others#, };" \
        "--build-arg ROCM_AUTOPATCH_ANY_TORCH=1 installs anyway"
    die "no Python in $ROCM_AUTOPATCH_BASE has torch"
fi
if [ -f "$caches" ] && [ -z "$seeded" ]; then
    die "the packed caches are for no Python of $ROCM_AUTOPATCH_BASE; the lines above say why"
fi
cd /
rm -r "$here"
