"""What a start does in few places: assumptions, late torches, baked plans that do not fit."""

import os
import sys

from rocm_autopatch import _ASSUME, _RECORD, _read, _start

FACTS = (
    *("accelerator", "torch", "hip", "rocm", "gfx", "gpu", "python", "image", "repository", "tag"),
    *("framework", "framework_version", "date", "os", "flavour"),
)


def assume(facts: "dict[str, tuple[str, str]]") -> None:
    """Take the facts of ROCM_AUTOPATCH_ASSUME in place of those found here."""
    for item in os.environ[_ASSUME].split(","):
        name, equals, value = item.strip().partition("=")
        if equals and name in FACTS:
            facts[name] = (value, _ASSUME)
        elif name:
            from rocm_autopatch import _say

            _say.fail(
                "assume",
                "%s: %r ignored, expected NAME=VALUE with a name of %s"
                % (_ASSUME, item.strip(), ", ".join(FACTS)),
            )


def find_torch() -> str:
    """The torch/version.py in site directories that ``site`` adds only after our .pth file."""
    for directory in late_directories():
        path = directory + "/torch/version.py"
        if os.access(path, os.R_OK):
            return path
    return ""


def late_directories() -> "list[str]":
    """The site directories of this interpreter that are not on sys.path yet.

    Before 3.15 a .pth line sees the directories read so far: not the system's, from a user's
    site-packages or from a venv made with --system-site-packages, and not Debian's own packages,
    from /usr/local.
    """
    site = sys.modules.get("site")
    if site is None:
        return []
    prefixes = [sys.prefix, sys.exec_prefix]
    if sys.prefix != sys.base_prefix:
        config = _read(sys.prefix + "/pyvenv.cfg").decode("utf-8", "replace").lower()
        if "include-system-site-packages=true" not in config.replace(" ", ""):
            return []
        prefixes = [sys.base_prefix, sys.base_exec_prefix]
    return [path for path in site.getsitepackages(prefixes) if path not in sys.path]


def not_baked(why: str) -> None:
    """Say why the baked plan does not serve here.

    *why* is a variable or ``gfx`` where somebody wants something else than was baked: no reason to
    bake anew.
    """
    wish = why == "gfx" or why.startswith("ROCM_AUTOPATCH_")
    line = "the baked plan is not used: %s" % why
    if wish:
        line += " is not what it was baked for"
    _RECORD["notes"].append(line)
    if not wish:
        _start.say("baked", line + "; run rocm-autopatch bake again")


def gfx(known: "dict[str, tuple[str, str]]") -> str:
    """The GPU's architecture, "" if unknown. It costs milliseconds: asked where a layer does."""
    from rocm_autopatch.image import facts

    return facts.gather(known).values().get("gfx", "")
