"""The last rank fails before it has told its verdict. Runs in each rank before it joins."""

import json
import os
import sys
import time

from rocm_autopatch.patches.ranks import meeting

asked = json.loads(sys.argv[1])


class Failing:
    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def set(self, name, value):
        if name.endswith("verdict"):
            if asked["fails"] == "exits":
                os._exit(0)
            raise OSError("full")
        self.store.set(name, value)


class Late(meeting.RankMeeting):
    def __init__(self, store, *others):
        time.sleep(1)  # So it is the last one.
        super().__init__(Failing(store), *others)


if os.environ["RANK"] == "1":
    meeting.RankMeeting = Late
