"""Commands that run a program many times and compare: ``ab``, ``prove`` and ``tune``."""
