"""The plan: what crosses from the policy half to the start-up half, as plain data.

Strings, numbers, booleans, None, tuples, and one dict at the top: readable without a parser. The
policy half lowers policies to it (``policy/lower.py``), ``startup`` carries it out. Its rows are
tuples, because they are read from a file at every start. This module names their fields; nothing
reads a row by a bare number. ``policy/lower.py`` makes rows by these names, what runs at each start
unpacks a row into them, and all else calls named_fields().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, TypedDict, TypeVar, Union

FORMAT = 8
# Torch releases as tuples of numbers, () where open. Every row of a plan ends with these two; of
# rows with one name, the last that is for this torch counts.
RANGE_FIELDS = ("since", "until")
# The action is ``delete`` (value None), ``default`` or ``set``; the layer is a policy's name.
ENV_FIELDS = ("name", "action", "value", "layer", "why", *RANGE_FIELDS)
# ``about`` is the name of a variable, in bytes, and the full name of the config key that it would
# decide. It is overruled where (its value == text) == equal.
OVERRULED_FIELDS = ("about", "text", "equal", *RANGE_FIELDS)
# The name is always ``caches``; ``use`` is ``on``, ``off`` or the path of a root.
CACHES_FIELDS = ("name", "use", "layer", "why", *RANGE_FIELDS)

Release = tuple[int, ...]
# What ``startup.mark`` says of a file: a digest, and of a long file its size and time.
FileMark = Union[tuple[bytes], tuple[bytes, int, int]]
# Rows of the fields above.
EnvRow = tuple[str, str, Optional[str], str, str, Release, Release]
OverruledRow = tuple[tuple[bytes, str], bytes, bool, Release, Release]
CachesRow = tuple[str, str, str, str, Release, Release]
# The FIELDS of a patch, of which only the patch knows the types, and then RANGE_FIELDS.
PatchEntry = tuple[object, ...]
# The name of a patch, a module that it waits for, and its entries there.
PatchRow = tuple[str, str, tuple[PatchEntry, ...]]
# A row of any kind, where only its name and range are read.
Row = TypeVar("Row", bound=tuple[Any, ...])


def named_fields(fields: Sequence[str], row: Sequence[object]) -> dict[str, Any]:
    """The values of a row by the names of its *fields*."""
    return dict(zip(fields, row))


class Plan(TypedDict):
    """What a process has to do.

    ``env`` has rows of ENV_FIELDS. The variables in ``insist`` are changed even if a user gave
    them, those in ``image_only`` only if a baseline says that they are the image's. ``empty`` has
    rows of ENV_FIELDS that are carried out before those, and only where the variable's value is the
    empty text. ``overruled`` has rows of OVERRULED_FIELDS, for the line on stderr; ``pinned`` are
    the variables that they are about, in bytes. In a file, ``empty``, ``overruled`` and ``patches``
    are marshalled apart, and the first two compressed; of a built-in plan, ``empty`` is the name of
    the file that has it. ``patches`` has the name of each patch, a
    module that it waits for, and its entries there. An entry has the ``FIELDS`` of its patch and
    then RANGE_FIELDS. ``targets`` are the modules that the patches wait for. ``caches`` has rows of
    CACHES_FIELDS, and ``digest`` tells plans that change what is compiled from each other, in hex
    digits. ``layers`` are names, general to specific, and ``counts`` is what the one line on stderr
    says of the patches: "12 config values, 2 compile modes".
    """

    format: int
    policy: str
    layers: tuple[str, ...]
    env: tuple[EnvRow, ...]
    empty: tuple[EnvRow, ...]
    pinned: tuple[bytes, ...]
    overruled: tuple[OverruledRow, ...]
    insist: tuple[str, ...]
    image_only: tuple[str, ...]
    caches: tuple[CachesRow, ...]
    digest: str
    counts: str
    targets: tuple[str, ...]
    patches: tuple[PatchRow, ...]


class BakedPlan(Plan):
    """A plan that ``rocm-autopatch bake`` wrote, and the conditions under which it serves.

    The plan serves as long as all of these hold. ``wishes``: variables, each with the values that
    it may have, as ``os.environb`` has them. ``torch``: the path of the torch/version.py that a
    start finds. ``sites``: each directory of policies, and the names in it. ``sources``: the path
    of each file that it was made from, with what ``startup.mark`` says of it. ``gfx``: the GPU's
    architecture, None where no layer asks for it.

    ``evidence`` is what the plan does not have yet: ``machine``, where it counts, as
    ``evidence.machine.here`` says it; ``plan``, the parts of the plan that are others there; and a
    ``label`` for the line on stderr. It is marshalled, and b"" where evidence changes nothing. The
    machine is looked at when torch is imported, or at the start if ``prove_at_start``, because a
    variable depends on it.

    The rest is for the record. ``named``: the policy that was named when the plan was baked, as
    ROCM_AUTOPATCH_POLICY names it. ``facts``: name to value and source. ``reason``: why this plan.
    """

    wishes: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    torch: str
    sites: list[tuple[str, list[str]]]
    sources: list[tuple[str, FileMark]]
    gfx: str | None
    evidence: bytes
    prove_at_start: bool
    named: str
    facts: dict[str, tuple[str, str]]
    reason: str
