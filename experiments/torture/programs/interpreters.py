"""Runs a program in interpreters of this process, and then in the first one."""

import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
program, how = sys.argv[1:]
arguments = (False,) if how.endswith("-isolated") and sys.version_info < (3, 13) else ()


def run():
    one = interpreters.create(*arguments)
    failed = interpreters.run_string(one, program)
    interpreters.destroy(one)
    if failed:
        print("failed", failed)


for _ in range(3):
    if how.endswith("-threads"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
exec(program)
