"""Children of each kind. The argument imports torch in the parent."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import program


def work(name):
    return program.note(name)


if __name__ == "__main__":
    if "first" in sys.argv:
        import torch._inductor.config
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(pool.map(work, [method + "1", method + "2"], chunksize=1))
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            print(list(pool.map(work, [method + "3", method + "4"])))
