"""Sets a variable for its children. The argument says how they start."""

import multiprocessing
import os
import subprocess
import sys

NAME = "TORCHINDUCTOR_MAX_AUTOTUNE"
os.environ[NAME] = "1"


def child():
    import rocm_autopatch

    (row,) = [row for row in rocm_autopatch.status()["env"] if row["name"] == NAME]
    print(os.environ.get(NAME), row["status"], row["reason"], flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        child()
    elif sys.argv[1:]:
        context = multiprocessing.get_context(sys.argv[1])
        for _ in range(2):
            worker = context.Process(target=child)
            worker.start()
            worker.join()
    else:
        subprocess.run([sys.executable, __file__, "child"])
