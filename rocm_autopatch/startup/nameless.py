"""A user id without a name: OpenShift and ``docker run --user`` give a container such a one.

torch up to 2.12 names its cache directory for the user by ``getpass.getuser()``. That looks into
four variables and then asks for the name of the id, and where there is none, ``torch.compile`` ends
in ``KeyError: 'getpwuid(): uid not found'`` (pytorch#140765), on 2.8 to 2.12 also if
``TORCHINDUCTOR_CACHE_DIR`` is set (research/caches-torch.md). torch 2.13 takes ``uid_NUMBER`` then,
and so does every torch here.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocm_autopatch.plan import Plan

# The first torch that survives it (pytorch#184208).
_MENDED = (2, 13)
# Of getpass's variables, the one that nothing else reads. It looks at them in this order.
VARIABLE = "LNAME"
_OTHERS = ("LOGNAME", "USER", "USERNAME")
WHY = (
    "This user id has no name, and torch up to 2.12 ends in a KeyError then, when it looks for its "
    "cache directory (pytorch#140765)."
)


def add(plan: "Plan", torch: "tuple[int, ...]") -> None:
    """Add a rule to the plan that names this user, if nothing else does and *torch* needs it."""
    if torch >= _MENDED or any(map(os.environ.get, (*_OTHERS, VARIABLE))):
        return
    try:
        import pwd

        pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):
        # An empty value counts as none.
        action = "set" if VARIABLE in os.environ else "default"
        value = "uid_%d" % os.getuid()
        plan["env"] = (*plan["env"], (VARIABLE, action, value, plan["policy"], WHY, (), ()))
