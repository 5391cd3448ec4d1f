import os


def fail():
    raise RuntimeError("half way")


if not os.path.exists("mended"):
    fail()
VALUE = 5
