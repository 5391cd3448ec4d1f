"""Asks a server until it answers, and prints the answer: ``python -m frameworks_ask URL``."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request

LIMIT_S = 240


def ask(url: str) -> str:
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                text: str = answer.read().decode()
                return text
        except OSError as error:
            # It does not listen yet, or does not know the page yet.
            started = isinstance(error, urllib.error.HTTPError) and error.code != 404
            if started or time.monotonic() > end:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    print(ask(sys.argv[1]))
