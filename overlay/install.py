"""The second half of install.sh: which Pythons of an image get the package, and how.

install.sh starts it with three paths: its directory for temporary files, which has the list of the
image's Pythons, its own directory, and the wheel. It starts it in the first Python that runs,
without ``site``. Any Python may be that one, so Python 2 must be able to read it. In each Python of
the list it runs functions of ``QUESTIONS``, which answer on descriptor 9, because a sitecustomize
may print.
"""

import os
import shutil
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LAYER = "/usr/local/share/rocm-autopatch/caches"
SITE = "/etc/rocm-autopatch"
CACHES_POLICY = """\
version: 1
name: caches
caches: {use: on, why: This image has packed caches.}
"""
# By -c and not by its path, which would put this file's directory before all modules.
RUN_FILE = 'import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))'
# What the program writes to descriptor 9 is the answer. The rest goes to stderr.
ANSWERING = ["/bin/sh", "-c", 'exec "$@" 9>&1 >&2 </dev/null', "sh"]


class Environment:
    """A Python of the image, and what was found there.

    ``kind`` is "rocm" for a torch that the package is for, another accelerator of torch, "none"
    without torch, "old" for a torch or "python" for a Python that is too old, whose version is then
    in ``torch``. ``lacks`` has modules with commas between them. ``place`` is where it installs to.
    ``left`` says why it is not changed, if it is not. ``lender`` is the Python whose pip installs.
    """

    def __init__(self, python):  # type: (str) -> None
        self.python = python
        self.kind = self.torch = self.lacks = self.place = self.left = self.lender = ""

    def leave(self, reason):  # type: (str) -> None
        self.left = "%s %s: not changed" % (self.python, reason)


def main(work, here, wheel):  # type: (str, str, str) -> None
    with open(work + "/pythons") as file:
        pythons = file.read().splitlines()
    image = os.environ["ROCM_AUTOPATCH_BASE"]
    caches = here + "/rocm_autopatch-caches.tar.gz"
    if not os.path.isfile(caches):
        caches = ""
    # First all are looked at, and then some are changed.
    found = look_at_all(pythons, wheel)
    choose_environments(found, image)
    runs = [one.python for one in found if one.kind]
    for one in found:
        if not one.left:
            find_pip(one, runs)
            if caches and "yaml" in one.lacks:
                die("%s lacks PyYAML, which the packed caches need" % one.python)
    record_image(image, work, bool(caches))
    seeded = False
    for one in found:
        if one.left:
            say(one.left)
            continue
        install_package(one, here, wheel)
        baked = bake_plan(one, image)
        say("%s has torch %s: installed%s; %s" % (one.python, one.torch, baked, judge_start(one)))
        if caches:
            seeded = seed_caches(one, caches) or seeded
    if caches and not seeded:
        die("the packed caches are for no Python of %s; the lines above say why" % image)


def look_at_all(pythons, wheel):  # type: (list[str], str) -> list[Environment]
    """What is found in each Python. Two of one environment count as one."""
    found = []  # type: list[Environment]
    for python in pythons:
        one = Environment(python)
        status, told, errors = ask(python, "look", wheel, errors=True)
        if status:
            one.leave("does not run")
            one.left += ": " + (errors.splitlines() or [""])[-1]
        else:
            one.kind, one.torch, one.lacks, one.place = told.split(" ", 3)
        # All that are too old for the question have no place.
        if one.kind in ("", "python") or one.place not in [other.place for other in found]:
            found.append(one)
    return found


def choose_environments(found, image):  # type: (list[Environment], str) -> None
    """Leave those that the package is not for. Ends the build if nothing is left to change."""
    too_old, others = [], []
    anyway = os.environ.get("ROCM_AUTOPATCH_ANY_TORCH") == "1"
    for one in found:
        if one.kind == "python":
            one.leave("is Python %s, which is older than 3.9" % one.torch)
            too_old.append(one)
        elif one.kind == "none":
            one.leave("has no torch")
        elif one.kind == "old":
            one.leave("has torch %s, which is older than 2.4" % one.torch)
            too_old.append(one)
        elif one.kind not in ("", "rocm") and not anyway:
            one.leave("has torch %s, which is not a ROCm build" % one.torch)
            others.append("%s in %s" % (one.torch, one.python))
    if not all(one.left for one in found):
        return
    for one in found:
        say(one.left)
    if too_old:
        reasons = [one.left[: -len(": not changed")] for one in too_old]
        die("nothing to install for: %s" % "; ".join(reasons))
    if others:
        what = "--build-arg ROCM_AUTOPATCH_ANY_TORCH=1 installs anyway"
        die("torch is not a ROCm build: %s; %s" % (", ".join(others), what))
    die("no Python in %s has torch" % image)


def find_pip(one, runs):  # type: (Environment, list[str]) -> None
    """Find a pip: its own, or the first of *runs* that can install for another.

    A venv made by uv has none.
    """
    if run_pip(one, "install", "--help", quiet=True)[0] == 0:
        return
    for python in runs:
        if "--python" in run([python, "-m", "pip", "--help"], quiet=True)[1]:
            one.lender = python
            break
    else:
        die(
            "%s has torch but no pip, and no other pip in the image can install for it" % one.python
        )
    if run_pip(one, "install", "--help")[0]:
        die(
            "%s has torch but no pip, and the pip of %s does not run for it"
            % (one.python, one.lender)
        )


def record_image(image, work, has_caches):  # type: (str, str, bool) -> None
    """Write what starts read of the image: its name and its variables."""
    if not os.path.isdir(SITE):
        os.makedirs(SITE)
    shutil.copyfile(work + "/baseline", SITE + "/baseline")
    with open(SITE + "/image", "w") as file:
        file.write(image + "\n")
    if has_caches:
        # Before bake, which takes it into the plan.
        with open(SITE + "/caches.yaml", "w") as file:
            file.write(CACHES_POLICY)


def install_package(one, here, wheel):  # type: (Environment, str, str) -> None
    options = ["--isolated", "-qq", "--no-index", "--find-links", here, "--no-deps"]
    options += ["--only-binary", "rocm_autopatch", "--force-reinstall", "--no-compile"]
    options += ["--no-cache-dir", "--disable-pip-version-check"]
    # Debian's EXTERNALLY-MANAGED stops a pip that is new enough to know this option, too.
    force = "--break-system-packages"
    if force in run_pip(one, "install", "--help")[1]:
        options.append(force)
    # By name and not by path: "pip freeze" would name a file that is gone.
    if run_pip(one, "install", *(options + ["rocm_autopatch"]), stdout=2)[0]:
        die("pip of %s could not install %s" % (one.python, wheel))
    status, package, _ = ask(one.python, "find_package")
    if status:
        die("%s does not find the package that was installed" % one.python)
    # Never compared with the times of the sources, which builders of reproducible images rewrite.
    hashed = ["--invalidation-mode", "unchecked-hash"]
    compile_all = [one.python, "-m", "compileall", "-q", "-f"] + hashed
    if run(compile_all + [package], stdout=2)[0]:
        die("%s could not compile %s" % (one.python, package))


def bake_plan(one, image):  # type: (Environment, str) -> str
    """Bake, if that is possible. What is said of it."""
    if one.kind != "rocm":
        return ""
    if "yaml" in one.lacks or "packaging" in one.lacks:
        lacks = one.lacks[: -len(",pip")] if one.lacks.endswith(",pip") else one.lacks
        say("%s lacks %s: not baked; starts use the plans in the wheel" % (one.python, lacks))
        return ""
    if run([one.python, "-m", "rocm_autopatch", "bake", "--image", image])[0]:
        die("rocm-autopatch bake failed in %s" % one.python)
    return " and baked"


def judge_start(one):  # type: (Environment) -> str
    """Why a policy applies at a start. An error there ends the build."""
    # Without caches: the build makes no place in root's home, as a start would.
    changed = {"ROCM_AUTOPATCH": "on", "ROCM_AUTOPATCH_CACHE": "off", "ROCM_AUTOPATCH_LOG": "quiet"}
    status, reason, _ = ask(one.python, "judge", variables=changed)
    if status:
        reason = reason or "no report"
        die("with the package, %s reports an error at its start: %s" % (one.python, reason))
    return reason


def seed_caches(one, caches):  # type: (Environment, str) -> bool
    """Unpack the caches for a Python. Whether they are for it."""
    status, told, _ = ask(one.python, "command", "cache", "seed", caches, "--into", LAYER)
    first = told.partition("\n")[0]
    say(first if status else "caches: " + first)
    return not status


# Other processes


def run_pip(one, *arguments, **options):  # type: (Environment, str, int) -> tuple[int, str]
    if one.lender:
        return run([one.lender, "-m", "pip", "--python", one.python] + list(arguments), **options)
    return run([one.python, "-m", "pip"] + list(arguments), **options)


def run(command, quiet=False, stdout=subprocess.PIPE):
    # type: (list[str], int, int) -> tuple[int, str]
    """The status of a program, and what it writes to stdout, if it is not told another one."""
    with open(os.devnull, "r+") as null:
        errors = null if quiet else None
        process = subprocess.Popen(command, stdin=null, stdout=stdout, stderr=errors)
        output = process.communicate()[0]
    return process.returncode, to_text(output or b"")


def ask(python, question, *arguments, **options):
    # type: (str, str, str, object) -> tuple[int, str, str]
    """The status of a question in a Python, its answer, and if errors is True what it says."""
    environment = dict(os.environ)
    environment.update(options.get("variables") or {})  # type: ignore[call-overload]
    command = ANSWERING + [python, "-c", RUN_FILE, os.path.abspath(sys.argv[1]), question]
    process = subprocess.Popen(
        command + list(arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if options.get("errors") else None,
    )
    answer, errors = process.communicate()
    return process.returncode, to_text(answer).rstrip("\n"), to_text(errors or b"")


def to_text(data):  # type: (bytes) -> str
    return data if isinstance(data, str) else os.fsdecode(data)


def write_all(descriptor, text):  # type: (int, str) -> None
    """Write a text that may have any bytes, as names of files do."""
    try:
        data = text if isinstance(text, bytes) else os.fsencode(text)
    except UnicodeError:
        data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data) :]


def say(text):  # type: (str) -> None
    write_all(1, "rocm_autopatch: %s\n" % text)


def die(text):  # type: (str) -> NoReturn
    write_all(2, "rocm_autopatch: error: %s\n" % text)
    sys.exit(1)


# Questions, which a Python of the image answers itself


def look(wheel):  # type: (str) -> int
    """Answer kind, torch, lacks and place of ``Environment``.

    The wheel itself says which torch a start would find; it imports none. A venv's python is often
    a link to the system's: what tells two environments apart is where they install to.
    """
    version = "%d.%d.%d" % sys.version_info[:3]
    if sys.version_info < (3, 9):
        return answer("python %s ? ?" % version)
    import sysconfig
    from importlib.util import find_spec

    sys.modules.pop("rocm_autopatch", None)
    sys.path.insert(0, wheel)
    import rocm_autopatch
    from rocm_autopatch import startup
    from rocm_autopatch.image import start_facts

    facts = start_facts.torch()
    kind, torch = facts.get("accelerator", "none"), facts.get("torch", "?")
    if kind == "rocm" and startup.release(torch) < rocm_autopatch._OLDEST_TORCH:
        kind = "old"
    lacks = [name for name in ("yaml", "packaging", "pip") if not find_spec(name)]
    place = os.path.realpath(sysconfig.get_path("purelib"))
    return answer(
        "%s %s %s %s" % (kind, "".join(torch.split()), ",".join(lacks) or "nothing", place)
    )


def find_package():  # type: () -> int
    """Answer where the package is that was installed."""
    import rocm_autopatch

    return answer(rocm_autopatch.__path__[0])


def judge():  # type: () -> int
    """Answer what "status --no-torch" says: the errors, or why a policy applies."""
    from rocm_autopatch import fresh_interpreter

    report = fresh_interpreter.report(torch=False)
    answer("; ".join(report["errors"] or [report["reason"]]))
    return 1 if report["errors"] else 0


def command(*arguments):  # type: (str) -> int
    """Run a command of ours, and answer all that it says."""
    sys.stdout = sys.stderr = open(9, "w", encoding="utf-8", errors="replace")
    from rocm_autopatch.cli import main

    return main(arguments)


def answer(text):  # type: (str) -> int
    write_all(9, text)
    return 0


QUESTIONS = ("look", "find_package", "judge", "command")

if __name__ == "__main__":
    # sys.argv[1] is this file.
    if sys.argv[2] in QUESTIONS:
        sys.exit(globals()[sys.argv[2]](*sys.argv[3:]))
    main(*sys.argv[2:])
