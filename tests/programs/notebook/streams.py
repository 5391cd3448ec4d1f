"""Streams in memory, one that may wait, and none."""

import contextlib
import io
import sys

from rocm_autopatch import startup


class Tee:
    "A stream that may wait for somebody."

    def write(self, text):
        print("written", file=sys.__stdout__)

    def flush(self):
        pass


for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO()), Tee(), None):
    with contextlib.redirect_stderr(stream):
        startup.write("something")
    if hasattr(stream, "seek"):
        stream.seek(0)
        print(repr(stream.read()))
