"""What a start of an interpreter costs, with us in several states and with what others install.

    .work/dev/bin/python -m benchmarks.startup --work .work --plot startup.svg

Every row is ``python -c pass`` in a plain venv of its own making, below ``WORK/startup``; they are
made once, and anew when our wheel or the recipe has changed (delete the directory for newer
versions of the others). A stand-in for torch is in each: what a start looks at is the text of
``torch/version.py``.

Instructions are counted by callgrind. They hardly depend on the machine's load, so two counts
suffice, and a difference of a thousandth of a start is real. They are not time: system calls count
for nothing, and a cache miss for one. Milliseconds are from ``posix_spawn`` to ``wait4``, those of
the CPU from the kernel's accounts. All states take their turn once in each round, in an order that
is shuffled anew, and a state's figure is the median of its differences to the baseline of the same
round, with the median absolute deviation from it: load that comes and goes hits both.

A state is compared with the venv and environment that it would have had without us. A child differs
there: where no locale is set, Python gives its children LC_CTYPE=C.UTF-8, and to read that costs a
start 1.4 M instructions on 3.11, ours or not. "bare, a second venv" shows what the comparison
itself is worth, and "a .pth file with a comment" what no hook of this kind can be cheaper than:
some Pythons import modules of their own to read one.
"""
