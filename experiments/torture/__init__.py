"""Attempts to make a start of the installed wheel fail.

``python -m experiments.torture`` runs them.

A case starts one program twice in the same place, with us and with ``ROCM_AUTOPATCH=off``;
oracle.py says what may differ. A family of cases is a module of this package: ``names`` yields its
cases, ``run`` runs one and returns what was wrong. A case's name contains everything that the case
is made from, so ``python -m experiments.torture --case NAME`` runs it again.
"""
