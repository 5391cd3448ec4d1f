"""A policy or a directory that a variable names and that is not there.

One wrong letter in the parameters of a fleet must not take the protection from all its processes.
So what is not there is left out, one line says so, and what applies without it is applied. What is
there and can't be used is another thing: somebody chose it, and nobody knows what it says.

*fail* is ``startup.fail``, which records and writes an error.
"""

import os

from rocm_autopatch import _HERE, _RECORD, OFF, policy_dirs, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Fail = Callable[[str, str], None]

_VARIABLE = "ROCM_AUTOPATCH_POLICY"
# As many names of a directory are compared with a wrong one: it takes milliseconds.
_MOST_NAMES = 500
# How a line ends.
INSTEAD = ". What applies without this is applied"


def find_policy(fail: "Fail") -> str:
    """The policy that ROCM_AUTOPATCH_POLICY names, "" if it names none or there is no such one.

    Says what is not there.
    """
    policy = trust.named(_VARIABLE)
    if not policy or is_there(policy):
        return policy
    fail("policy", "%s=%s: %s%s" % (_VARIABLE, policy, why_missing(policy), INSTEAD))
    return ""


def why_missing(policy: str) -> str:
    """What is said of a policy that is not there, with a name that may be meant."""
    if trust.is_path(policy):
        above, name = os.path.split(policy)
        # Without ".yaml", by which names that have nothing in common would be close.
        files = [one[:-5] for one in _names_in(above or ".") if one.endswith(".yaml")]
        stem = name.partition(".")[0]
        hint = suggest_name(stem, files, above and above.rstrip("/") + "/", ".yaml")
        hint = hint or suggest_name(stem, builtin_names())
        why = "there is no such file%s" % hint
        if os.path.isdir(policy):
            # docker run -v makes one where the file to mount is missing.
            why = "it is a directory, and no policy's file"
    elif policy.lower() in (*OFF, "none"):
        why = "no such policy; ROCM_AUTOPATCH=off turns the package off"
    else:
        names = builtin_names()
        why = "no such policy%s. Built-in policies: %s; the name of a file has a / or ends in .yaml"
        why %= suggest_name(policy, names), ", ".join(names)
    return why


def without_sites(left_out: "list[tuple[str, str]]", fail: "Fail") -> None:
    """Say what ROCM_AUTOPATCH_SITE names and is no directory (``policy_dirs.read_sites``)."""
    for directory, why in left_out:
        above, name = os.path.split(directory.rstrip("/"))
        above = above.rstrip("/") + "/"
        if os.path.isabs(directory):
            near = [one for one in _names_in(above) if os.path.isdir(above + one)]
            why += suggest_name(name, near, above)
        fail("site", "%s: %s: %s%s" % (policy_dirs.VARIABLE, directory, why, INSTEAD))


def obeyed_value(variable: bytes, fail: "Fail") -> bytes:
    """The value of a variable, for a baked plan: what is not there is left out, and said."""
    if variable == _VARIABLE.encode():
        return os.fsencode(find_policy(fail))
    if variable == policy_dirs.VARIABLE.encode():
        found, left_out, _ = policy_dirs.read_sites()
        without_sites(left_out, fail)
        return os.fsencode(":".join([directory for directory, _ in found]))
    return os.environb.get(variable, b"").strip()


def is_there(policy: str) -> bool:
    """Whether there is a policy of this name: a file, too, that can't be read, but no directory."""
    if not trust.is_path(policy):
        return policy in builtin_names()
    try:
        return os.stat(policy).st_mode >> 12 != 0o04
    except OSError as error:
        return not policy_dirs.is_missing(error)


def builtin_names() -> "list[str]":
    """The names of the built-in policies, also in a checkout, which has no plans."""
    names = _names_in(_HERE + "/plans")
    if names:
        return [name[:-5] for name in names if name.endswith(".plan")]
    names = _names_in(os.path.dirname(_HERE) + "/policies")
    return [name[:-5] for name in names if name.endswith(".yaml") and name != "images.yaml"]


def refuse_plan(policy: str, fail: "Fail") -> None:
    """Say that the plan of a built-in policy can't be read, so that none is applied."""
    _RECORD["reason"] += ": its plan can't be used"
    fail(
        "policy",
        "no policy is applied: %s=%s: %s/plans/%s.plan can't be read, is damaged, or is of another "
        "release; install rocm_autopatch again" % (_VARIABLE, policy, _HERE, policy),
    )


def _names_in(directory: str) -> "list[str]":
    try:
        return sorted(os.listdir(directory))[:_MOST_NAMES]
    except (OSError, ValueError):
        return []


def suggest_name(word: str, names: "list[str]", before: str = "", after: str = "") -> str:
    """The word that may be meant, in brackets, "" if none is close."""
    try:
        # Only here: no start whose names are right loads it.
        import difflib

        lower = {name.lower(): name for name in names}
        close = difflib.get_close_matches(word.lower(), lower, n=1)
        return " (did you mean %s%s%s?)" % (before, lower[close[0]], after) if close else ""
    except Exception as error:
        # The program's PYTHONPATH may have a difflib of its own.
        from rocm_autopatch import failure

        if failure.programs_own(error):
            raise
        return ""
