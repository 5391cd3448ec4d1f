"""What a start of an interpreter costs, with us in several states and with what others install.

    .work/dev/bin/python -m benchmarks.startup --work .work --plot startup.svg

Every row is ``python -c pass`` in a plain venv below ``WORK/startup``. A venv is made once, and
again if our wheel or its recipe has changed. To get newer versions of the other packages, delete
the directory. Each venv has a stand-in for torch, because a start only reads ``torch/version.py``.

callgrind counts instructions. They hardly depend on the machine's load, so two counts are enough,
and a difference of a thousandth of a start is real. They are not time: a system call counts for
nothing, and a cache miss for one instruction. Milliseconds are from ``posix_spawn`` to ``wait4``;
CPU milliseconds are the kernel's. Each round has every state once, in a shuffled order. A state's
figure is the median of its differences to the baseline of the same round, with the median absolute
deviation. So a change of the machine's load changes both.

A state is compared with the venv and environment that it would have without us. A child's
environment is different: if no locale is set, Python gives its children LC_CTYPE=C.UTF-8, and to
read that costs a start 1.4 M instructions on 3.11, with us or without. "bare, a second venv" shows
how exact the comparison is. "a .pth file with a comment" is the least that a hook of this kind can
cost, because some Pythons import modules of their own to read the file.
"""
