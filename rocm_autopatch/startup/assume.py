"""Facts that a user assumes. They replace those that a start finds."""

import os

from rocm_autopatch import _ASSUME, startup

FACTS = (
    *("accelerator", "torch", "hip", "rocm", "gfx", "gpu", "python", "image", "repository", "tag"),
    *("framework", "framework_version", "date", "os", "flavour", "proven", "gains"),
    *("hip_runtime", "ranks"),
)


def assume(facts: "dict[str, tuple[str, str]]") -> None:
    """Take the facts of ROCM_AUTOPATCH_ASSUME in place of those found here."""
    for item in os.environ[_ASSUME].split(","):
        name, equals, value = item.strip().partition("=")
        if equals and name in FACTS:
            facts[name] = (value, _ASSUME)
        elif name:
            startup.fail(
                "assume",
                "%s: %r is ignored: expected NAME=VALUE, where NAME is one of %s"
                % (_ASSUME, item.strip(), ", ".join(FACTS)),
            )
