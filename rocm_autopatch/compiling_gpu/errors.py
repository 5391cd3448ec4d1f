"""The error of a program that asks unreadable memory for a result."""

from __future__ import annotations

NOT_RUN = "compiling_gpu: this device compiles and does not run, so there is no result: "


class NoResult(RuntimeError):
    """A program asks the device for what only a device that runs can give."""

    def __init__(self, what: str) -> None:
        super().__init__(NOT_RUN + what)
