"""How ranks compare: by a few keys in the job's own store, without a collective or a barrier.

Each rank counts itself under its digest; the first one of a digest leaves the content. Then it
leaves its own digest and host, and counts itself. Who makes the count complete is the last: it
alone reads, and only if not all digests are equal. So a rank sends three or four small messages,
and waits for none but the two counts. If the last one leaves no verdict, the others, who wait for
it under ``abort``, read for themselves: a rank that failed or was killed must not end the job.

A store of torchrun outlives a restart of its workers, and a process may join a job more than once,
so both numbers are in the keys.
"""

import json
import os
import socket
from datetime import timedelta

from rocm_autopatch import failure
from rocm_autopatch.patches.ranks import content, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.patches.torch_types import RankStore

# The form of the keys and of what is in them. Ranks with another form are strangers.
FORM = 1
# How long ``abort`` waits for the last rank, and how long the first compile waits for ranks that
# may be on their way, in seconds.
WAIT, ON_THEIR_WAY = 60, 5
# So many keys are read in one message.
_CHUNK = 1000


class RankMeeting:
    """The ranks of one job, as this one sees them.

    *store* is the job's, *joined* says how often this process has joined a job.
    """

    def __init__(self, store: "RankStore", joined: int, rank: int, size: int) -> None:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store, self.rank, self.size = store, rank, size
        self.prefix = "rocm_autopatch/%d/%s/%d/" % (FORM, restart, joined)
        # Whether this rank was the last, and what it found.
        self.over = False
        self.found: Optional[str] = None

    def attend(self) -> "Optional[str]":
        """Tell what this rank compiles under. The last rank returns what differs, others None."""
        mine = content.digest_content()
        digest = content.digest(mine)
        if self.store.add(self.prefix + "of/" + digest, 1) == 1:
            self.store.set(self.prefix + "content/" + digest, json.dumps(mine))
        self.store.set(
            "%srank/%d" % (self.prefix, self.rank), content.utf8(digest + " " + _host_name())
        )
        if self.store.add(self.prefix + "here", 1) < self.size:
            return None
        self.over = True
        if self.store.add(self.prefix + "of/" + digest, 0) < self.size:
            self.found = self._compare()
        try:
            self.store.set(self.prefix + "verdict", self.found or "equal")
        except Exception as error:
            if failure.programs_own(error):
                raise
            # What was found is told here all the same. Who waits for it will compare.
        return self.found

    def verdict(self) -> "Optional[str]":
        """What differs, for every rank, None if nothing does. Waits for the last one."""
        if self.over:
            return self.found
        if not self._waited(WAIT):
            absent = self._absent()
            if absent:
                return told.missing(absent, self.size, "within %d s" % WAIT)
            return self._compare()
        text = self.store.get(self.prefix + "verdict").decode()
        return None if text == "equal" else text

    def missing(self) -> "Optional[str]":
        """Which ranks have told nothing; None if none, or if another rank has asked already."""
        if self.store.add(self.prefix + "here", 0) >= self.size:
            return None
        if self.store.add(self.prefix + "asked", 1) > 1:
            return None
        absent = [] if self._waited(ON_THEIR_WAY) else self._absent()
        return told.missing(absent, self.size, "before the first compile") if absent else None

    def _waited(self, seconds: int) -> bool:
        """Whether the last rank came within so many seconds."""
        try:
            self.store.wait([self.prefix + "verdict"], timedelta(seconds=seconds))
        except Exception as error:
            # A timeout raises DistStoreError or RuntimeError, a lost store DistNetworkError.
            if type(error).__name__ == "DistNetworkError" or failure.programs_own(error):
                raise
            return False
        return True

    def _compare(self) -> "Optional[str]":
        """What differs, None if nothing does. All ranks must have told."""
        ranks: dict[str, list[int]] = {}
        hosts = {}
        names = ["%srank/%d" % (self.prefix, rank) for rank in range(self.size)]
        for rank, text in enumerate(self._read(names)):
            digest, _, host = text.partition(" ")
            ranks.setdefault(digest, []).append(rank)
            hosts[rank] = host
        if len(ranks) == 1:
            return None
        contents = self._read([self.prefix + "content/" + digest for digest in ranks])
        groups = [(its, json.loads(text)) for its, text in zip(ranks.values(), contents)]
        return content.utf8(told.differing(groups, hosts))

    def _read(self, names: "list[str]") -> "list[str]":
        found: list[bytes] = []
        for start in range(0, len(names), _CHUNK):
            found += self.store.multi_get(names[start : start + _CHUNK])
        return [text.decode() for text in found]

    def _absent(self) -> "list[int]":
        """The ranks without a key, found by halves: few are absent."""
        found = []
        parts = [range(self.size)]
        while parts:
            part = parts.pop()
            if self.store.check(["%srank/%d" % (self.prefix, rank) for rank in part]):
                continue
            if len(part) == 1:
                found.append(part[0])
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return found


def _host_name() -> str:
    return socket.gethostname()
