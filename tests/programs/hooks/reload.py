"""Reload."""

import importlib

import target

target.VALUE = 0
print(importlib.reload(target) is target, target.VALUE)
