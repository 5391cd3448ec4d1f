"""Compiles that hang until the watchdog has warned, and what programs print of it."""

import json
import os
import time

import rocm_autopatch
from rocm_autopatch.patches.watchdog import sleeper, underway


def rows():
    return {row["name"].partition(".")[2]: row for row in rocm_autopatch.status()["watchdog"]}


def uses(name="warn_after"):
    return underway.rows[name]["uses"]


def change(**fields):
    "Other settings from here on, for the sleeping thread too."
    underway.settings.update(fields)
    if sleeper.current:
        sleeper.current.alarm.release()


def say(text):
    os.write(2, ("== %s\n" % text).encode())


def show(*values):
    print(json.dumps(values, default=repr))


def hang(times=2, nap=0.02, longest=600.0):
    end, before = time.monotonic() + longest, uses()
    while uses() < before + times and time.monotonic() < end:
        time.sleep(nap)


def tried(call, *args):
    try:
        return call(*args)
    except BaseException as error:
        return "%s: %s" % (type(error).__name__, error)
