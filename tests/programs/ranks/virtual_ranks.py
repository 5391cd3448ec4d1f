"""Counts what 3000 ranks ask of a store, which are all in this process."""

import json

import torch.distributed

from rocm_autopatch.patches.ranks import content, meeting


class Counting:
    def __init__(self, store):
        self.store, self.count = store, 0

    def __getattr__(self, name):
        self.count += name != "has_extended_api"
        return getattr(self.store, name)


size, odd = 3000, (5, 2999)
content.digest_content = lambda: {"kind": str(rank in odd)}
store = Counting(torch.distributed.HashStore())
most, texts = 0, []
for rank in range(size):
    before = store.count
    texts.append(meeting.RankMeeting(store, 1, rank, size).attend())
    if rank < size - 1:
        most = max(most, store.count - before)
last = store.count - before
before = store.count
assert meeting.RankMeeting(store, 1, 0, size).missing() is None
print(json.dumps([most, last, store.count - before, [text for text in texts if text]]))
store = Counting(torch.distributed.HashStore())
for rank in range(size):
    if rank not in odd:
        meeting.RankMeeting(store, 1, rank, size).attend()
before = store.count
meeting.ON_THEIR_WAY = 0.01
print(json.dumps([meeting.RankMeeting(store, 1, 0, size).missing(), store.count - before]))
