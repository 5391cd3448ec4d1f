"""Reads a policy with its base, and the policies of a place: the arguments."""

import sys
from pathlib import Path

from rocm_autopatch.policy import PolicyError, load, select

top, place = Path(sys.argv[1]), Path(sys.argv[2])
for read in (
    lambda: load.layers(load.policy(top)),
    lambda: select.select({"image": "a"}, at=[place]),
):
    try:
        read()
    except PolicyError as error:
        print(error)
print(sys.stdin.read())
