"""The compile caches beneath one root: what is there, fill it, pack it, seed it, remove it.

A start (``startup.caches``) makes beneath the root a directory for each kind of place: torch,
Triton, HIP, GPUs, Python and policy. Here are the parts of the command ``rocm-autopatch cache``:
``places`` says what is there, ``users`` who uses it, ``warm`` fills a place, ``fill`` does so for a
GPU that is not here (``fill_targets``, ``gpu_facts``), ``contents`` says what of it may go
elsewhere, ``archive`` packs it and unpacks it, ``image_layout`` packs it as an image, ``moved``
puts its paths right there, and ``gc`` removes what was not used for long.
"""

from rocm_autopatch.support.user_error import UserError

# What a directory beneath a root begins with that is not finished, or not yet removed.
UNFINISHED = ".new-"
# The file in a place that has a line of JSON for each ``warm``.
RUNS = "runs"
# The file in a place that has the facts of the GPU that ``fill`` compiled for, as JSON.
FACTS = "gpu.json"
# Our own files in a place, beside those of a start.
OWN_FILES = (RUNS, FACTS)


class CacheRefused(UserError):
    """It can't be done as it was asked for; the text says why, and what to do."""
