"""Runs the program here, in a child, and in a child of multiprocessing."""

import subprocess
import sys

import program


def test_here():
    assert program.note("test").startswith("test")


def test_in_a_child():
    done = subprocess.run([sys.executable, "program.py"], stdout=subprocess.PIPE)
    assert done.stdout.startswith(b"main: torch")


def test_in_another():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    process = context.Process(target=program.note, args=("spawned",))
    process.start()
    process.join()
    assert process.exitcode == 0


if __name__ == "__main__":
    test_here(), test_in_a_child(), test_in_another()
