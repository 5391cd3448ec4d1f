"""Runs a beginning, and then programs, each in a fork. tests/forked.py speaks with it.

The process reads one request a line, and ends after the last one. A fork leaves the loop, and runs
its program at the top of __main__, as -c does or as a file is run.
"""

import atexit
import gc
import json
import os
import signal
import sys

beginning = sys.argv[1]
# As for a program of -c, until a request says otherwise.
sys.argv[:] = ["-c"]
sys.path[0] = ""
del __file__
exec(compile(beginning, "<string>", "exec"))
# What a collector writes to, each fork would have to copy.
gc.freeze()
print("begun", flush=True)
while asked := sys.stdin.readline():
    fork = os.fork()
    if not fork:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
if asked:
    asked = json.loads(asked)
    signal.alarm(300)
    for fd, path in enumerate(("/dev/null", asked["stdout"], asked["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.update(asked["env"])
    sys.argv[1:] = asked["arguments"]
    if asked["file"]:
        __file__ = sys.argv[0] = asked["file"]
        sys.path[0] = os.path.dirname(__file__)
    # A line has the number that it would have after the beginning.
    program = "\n" * asked["line"] + asked["program"]
    exec(compile(program, asked["file"] or "<string>", "exec"))
# To take all modules apart, as the interpreter does at its end, takes longer than most programs.
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
