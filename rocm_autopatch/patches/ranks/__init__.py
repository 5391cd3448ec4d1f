"""Ranks of one job compare what they compile under, through the job's own store.

Ranks that compile under different settings make different kernels, and may make different
collectives: then all of them wait for ever, and nothing says why. PyTorch compares nothing
(pytorch#24273, #108212, #174917 ask for it). Collectives can't do it: ``spmd_check`` of Inductor
gathers hashes by one, and pipelines hung in that (xDiT#732).

So ``torch.distributed.init_process_group`` is wrapped right after its module was executed, before
``torch.distributed`` takes the name. After it has returned, this rank tells its digest to the store
(meeting.py). ``ROCM_AUTOPATCH_RANKS`` or the policy says what follows from a difference.
"""

import functools
import os

from rocm_autopatch import _RECORD, failure, startup
from rocm_autopatch.patches import row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rocm_autopatch.patches.ranks.meeting import RankMeeting
    from rocm_autopatch.patches.torch_types import ConvertFrame, DistributedModule
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import WordRow

TITLE = "Ranks"
TARGETS = ("torch.distributed.distributed_c10d",)
# Where a compile begins.
_COMPILES = "torch._dynamo.convert_frame"
USES = ("say", "abort", "off")
SETTINGS = {"ranks": USES}
NOUN = ""
CHANGES_CODE = False
FIELDS = ("name", "wanted", "layer", "why")
VARIABLE = "ROCM_AUTOPATCH_RANKS"

# How often this process has joined a job.
_joined = 0
# The meeting of which the first compile asks whether all ranks were there.
_open: "list[RankMeeting]" = []
# Whether the first compile is looked for.
_watches: "list[bool]" = []


class DifferentRanks(RuntimeError):
    """``ROCM_AUTOPATCH_RANKS=abort``, and the ranks of this job would compile differently."""


def apply(
    module: "DistributedModule",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[WordRow]":
    """Compare ranks where a job starts. At the first compile, ask which ones did not come."""
    rows = []
    for entry in entries:
        done: WordRow = row(FIELDS, entry, keep, observe, before="off", after="off")
        use = _asked_use(done["wanted"])
        if use == "off" and done["status"] != "kept":
            done["status"], done["reason"] = "skipped", "%s=off" % VARIABLE if _said() else "off"
        if done["status"] == "applied":
            _watch_starts(module, use)
            done["after"] = use
        rows.append(done)
    return rows


def _said() -> str:
    return os.environ.get(VARIABLE, "").strip().lower()


def _asked_use(wanted: str) -> str:
    """What the user says, else what the policy says."""
    said = _said()
    if said and said not in USES:
        text = "%s=%s is not one of %s; %s is used"
        startup.fail("ranks", text % (VARIABLE, said, ", ".join(USES), wanted))
    return said if said in USES else wanted


def _watch_starts(module: "DistributedModule", use: str) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        try:
            _meet(module, use)
        except DifferentRanks:
            raise
        except BaseException as error:
            _store_failed(error)
            if use == "abort":
                text = "nothing ends this job if its ranks compile differently: %s"
                startup.fail("ranks", text % _RECORD["notes"][-1])
        return result

    module.init_process_group = init_process_group


def _meet(module: "DistributedModule", use: str) -> None:
    from rocm_autopatch.patches.ranks import meeting
    from rocm_autopatch.startup import hooks

    global _joined
    _joined += 1
    _open.clear()
    rank, size = module.get_rank(), module.get_world_size()
    store = module._get_default_store()
    if size < 2 or store is None or _is_of_one_process(store):
        return
    found = meeting.RankMeeting(store, _joined, rank, size)
    text = found.attend()
    if use == "abort":
        text = found.verdict()
        if text:
            raise DifferentRanks(text)
    elif text:
        _tell(text)
    elif not found.over:
        _open.append(found)
        if not _watches:
            _watches.append(True)
            hooks.add(startup.finder, _COMPILES, _watch_compiles)


def _is_of_one_process(store: "Any") -> bool:
    """Whether no other process can come to it: in a dry run, one stands for all ranks."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__ in ("HashStore", "FakeStore")


def _watch_compiles(module: "ConvertFrame") -> None:
    original = getattr(module, "_compile", None)
    if original is None:
        raise AttributeError("this torch has no _compile in %s" % module.__name__)

    @functools.wraps(original)
    def _compile(*args: object, **kwargs: "Any") -> object:
        # Dynamo's logs leave out this many frames of its own. This function is one more.
        kwargs["skip"] = kwargs.get("skip", 0) + 1
        if _open:
            _ask_missing()
        return original(*args, **kwargs)

    module._compile = _compile


def _ask_missing() -> None:
    """At the first compile: which ranks have told nothing? They start without us, or not at all."""
    try:
        text = _open.pop().missing()
        if text:
            _tell(text)
    except IndexError:
        pass  # Another thread asks.
    except BaseException as error:
        _store_failed(error)


def _tell(text: str) -> None:
    """Write the line. One rank of the job has it, whichever that is."""
    _RECORD["notes"].append(text)
    if os.environ.get("ROCM_AUTOPATCH_LOG", "") != "quiet":
        startup.write(text, 2000)


def _store_failed(error: BaseException) -> None:
    """A store of another kind, or one that is gone, is no reason to end a job."""
    if failure.programs_own(error):
        raise error
    _RECORD["notes"].append("ranks were not compared: " + failure.describe(error))
