"""What a place does to a Python process: its variables, its config values, and who changed them.

reading.py starts interpreters that run child.py, which reads the values. variables.py has the
verdicts. investigation.py finds by experiments what made a value differ, and culprits.py says what
one reading tells. table.py puts the values side by side. images.py writes an images file.
"""

from importlib import import_module

# If PyYAML is missing, this import raises an error that says so.
import_module("rocm_autopatch.policy.document")
