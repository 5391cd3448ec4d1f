#!/bin/sh
# Installs the wheel beside this file into each Python of an image that has a ROCm torch. If packed
# caches are beside it, too, they become part of the image.
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
caches=$here/rocm_autopatch-caches.tar.gz
layer=/usr/local/share/rocm-autopatch/caches

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

# Runs code in a Python and gives what it writes to descriptor 9: a sitecustomize may print.
ask() { "$@" 9>&1 >&2 </dev/null; }

# The wheel itself says which torch a start would find; it imports none. A venv's python is often a
# link to the system's: what tells two environments apart is where they install to. Any Python may
# run this, so Python 2 must be able to read it.
look='
import os, sys
def answer(*words):
    os.write(9, " ".join(words).encode("utf-8"))
version = "%d.%d.%d" % sys.version_info[:3]
if sys.version_info < (3, 9):
    answer("python", version, "?", "?")
else:
    import sysconfig
    from importlib.util import find_spec
    sys.modules.pop("rocm_autopatch", None)
    sys.path.insert(0, sys.argv[1])
    import rocm_autopatch
    from rocm_autopatch import here, startup
    facts = here.torch()
    kind, torch = facts.get("accelerator", "none"), facts.get("torch", "?")
    if kind == "rocm" and startup.release(torch) < rocm_autopatch._OLDEST_TORCH:
        kind = "old"
    lacks = [name for name in ("yaml", "packaging", "pip") if not find_spec(name)]
    answer(kind, "".join(torch.split()), ",".join(lacks) or "nothing",
           os.path.realpath(sysconfig.get_path("purelib")))
'
# What "status --no-torch" says: the errors, or why a policy applies.
judge='
import os, sys
from rocm_autopatch import fresh_interpreter
report = fresh_interpreter.report(torch=False)
os.write(9, "; ".join(report["errors"] or [report["reason"]]).encode("utf-8", "replace"))
sys.exit(bool(report["errors"]))
'
# A command of ours, with all that it says on descriptor 9.
command='
import os, sys
sys.stdout = sys.stderr = open(9, "w", encoding="utf-8", errors="replace")
from rocm_autopatch.cli import main
sys.exit(main())
'

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

# Runs pip for a Python: its own, or the first one in the image that can install for another. A venv
# made by uv has none.
pip_for() {
    if [ "$2" = own ]; then
        target=$1
        shift 2
        "$target" -m pip "$@" </dev/null
    else
        target=$1
        shift 2
        "$lender" -m pip --python "$target" "$@" </dev/null
    fi
}
newline='
'
lender=''
find_lender() {
    for candidate in $runs; do
        case $("$candidate" -m pip --help 2>/dev/null </dev/null) in
        *--python*)
            lender=$candidate
            return
            ;;
        esac
    done
    return 1
}

# First all are looked at, and then some are changed. A path may have a blank, and no path of a
# Python has a line break.
all=$(pythons)
IFS=$newline
set -f
links='' seen='' runs='' rows='' chosen='' others='' unfit=''
for python in $all; do
    [ -x "$python" ] || continue
    # python3 and python3.12 beside each other.
    link=${python%/*}//$(readlink -f "$python")
    case $newline$links in *"$newline$link$newline"*) continue ;; esac
    links=$links$link$newline
    found=$(ask "$python" -c "$look" "$wheel" 2>"$work/stderr") || {
        rows="${rows}left - - $python does not run: not changed: $(tail -n 1 "$work/stderr")$newline"
        continue
    }
    IFS=' ' read -r kind torch lacks place <<EOF
$found
EOF
    case $newline$seen in *"$newline$place$newline"*) continue ;; esac
    [ "$kind" = python ] || seen=$seen$place$newline
    runs=$runs$python$newline
    reason=''
    case $kind,${ROCM_AUTOPATCH_ANY_TORCH:-} in
    python,*)
        reason="is Python $torch, which is older than 3.9"
        unfit="$unfit; $python $reason"
        ;;
    none,*) reason='has no torch' ;;
    old,*)
        reason="has torch $torch, which is older than 2.4"
        unfit="$unfit; $python $reason"
        ;;
    rocm,* | *,1) ;;
    *)
        reason="has torch $torch, which is not a ROCm build"
        others="$others, $torch in $python"
        ;;
    esac
    if [ -n "$reason" ]; then
        rows="${rows}left - - $python $reason: not changed$newline"
        continue
    fi
    chosen=yes
    rows="$rows$kind $torch $lacks $python$newline"
done
if [ -z "$chosen" ]; then
    printf '%s' "$rows" | sed 's/^left - - /rocm_autopatch: /'
    [ -z "$unfit" ] || die "nothing to install for: ${unfit#; }"
    anyway='--build-arg ROCM_AUTOPATCH_ANY_TORCH=1 installs anyway'
    [ -z "$others" ] || die "torch is not a ROCm build: ${others#, }; $anyway"
    die "no Python in $ROCM_AUTOPATCH_BASE has torch"
fi
ready=''
for row in $rows; do
    # What is said of a Python that is not changed stands in its place.
    IFS=' ' read -r kind torch lacks python <<EOF
$row
EOF
    whose=own
    if [ "$kind" = left ]; then
        :
    elif ! pip_for "$python" own install --help >/dev/null 2>&1; then
        whose=borrowed
        [ -n "$lender" ] || find_lender ||
            die "$python has torch but no pip, and no other pip in the image can install for it"
        pip_for "$python" borrowed install --help >/dev/null ||
            die "$python has torch but no pip, and the pip of $lender does not run for it"
    fi
    if [ -f "$caches" ]; then
        case $lacks in *yaml*) die "$python lacks PyYAML, which the packed caches need" ;; esac
    fi
    ready="$ready$kind $torch $lacks $whose $python$newline"
done

mkdir -p /etc/rocm-autopatch
cat "$work/baseline" >/etc/rocm-autopatch/baseline
printf '%s\n' "$ROCM_AUTOPATCH_BASE" >/etc/rocm-autopatch/image
if [ -f "$caches" ]; then
    # Before bake, which takes it into the plan.
    cat >/etc/rocm-autopatch/caches.yaml <<'EOF'
version: 1
name: caches
caches: {use: on, why: This image has packed caches.}
EOF
fi

seeded=''
for row in $ready; do
    IFS=' ' read -r kind torch lacks whose python <<EOF
$row
EOF
    if [ "$kind" = left ]; then
        say "$python"
        continue
    fi
    # Debian's EXTERNALLY-MANAGED stops a pip that is new enough to know this option, too.
    force=--break-system-packages
    case $(pip_for "$python" "$whose" install --help) in *"$force"*) ;; *) force='' ;; esac
    # By name and not by path: "pip freeze" would name a file that is gone.
    pip_for "$python" "$whose" install --isolated -qq --no-index --find-links "$here" --no-deps \
        --only-binary rocm_autopatch --force-reinstall --no-compile --no-cache-dir \
        --disable-pip-version-check ${force:+"$force"} rocm_autopatch >&2 ||
        die "pip of $python could not install $wheel"
    package=$(ask "$python" -c \
        'import os, rocm_autopatch; os.write(9, os.fsencode(rocm_autopatch.__path__[0]))') ||
        die "$python does not find the package that was installed"
    # Never compared with the times of the sources, which builders of reproducible images rewrite.
    "$python" -m compileall -q -f --invalidation-mode unchecked-hash "$package" </dev/null >&2 ||
        die "$python could not compile $package"

    baked=''
    case $kind,$lacks in
    rocm,*yaml* | rocm,*packaging*)
        say "$python lacks ${lacks%,pip}: not baked; starts use the plans in the wheel"
        ;;
    rocm,*)
        "$python" -m rocm_autopatch bake --image "$ROCM_AUTOPATCH_BASE" </dev/null >/dev/null ||
            die "rocm-autopatch bake failed in $python"
        baked=' and baked'
        ;;
    esac

    # Without caches: the build makes no place in root's home, as a start would.
    reason=$(ROCM_AUTOPATCH=on ROCM_AUTOPATCH_CACHE=off ROCM_AUTOPATCH_LOG=quiet \
        ask "$python" -c "$judge") ||
        die "with the package, $python reports an error at its start: ${reason:-no report}"
    say "$python has torch $torch: installed$baked; $reason"
    if [ -f "$caches" ]; then
        if told=$(ask "$python" -c "$command" cache seed "$caches" --into "$layer"); then
            say "caches: ${told%%"$newline"*}"
            seeded=yes
        else
            say "${told%%"$newline"*}"
        fi
    fi
done
if [ -f "$caches" ] && [ -z "$seeded" ]; then
    die "the packed caches are for no Python of $ROCM_AUTOPATCH_BASE; the lines above say why"
fi
