"""What an adversary tries on the installed wheel, kept: ``python -m tests.torture`` runs it.

Each case is a program started twice in the same place, with us and with ``ROCM_AUTOPATCH=off``;
oracle.py says what may differ. A family is a module of this package: ``names`` yields its cases,
``run`` runs one of them and returns what was wrong. A case's name says all that it is made from, so
``python -m tests.torture --case NAME`` runs it again.
"""
