"""The store is gone when the others come to it. Runs in each rank before it joins."""

import json
import os
import sys
import time

from rocm_autopatch.patches.ranks import meeting

asked = json.loads(sys.argv[1])
attend = meeting.RankMeeting.attend


def late(self):
    joined = os.path.join(asked["directory"], "joined")
    with open(joined, "a") as stream:
        stream.write(".")
    if os.environ["RANK"] == "0":
        # The others are still in torch's own beginning until they come here.
        while os.path.getsize(joined) < asked["size"]:
            time.sleep(0.01)
        os._exit(0)  # The store is in this process.
    time.sleep(1)
    return attend(self)


meeting.RankMeeting.attend = late
