"""What a place does to a Python process: its variables, its config values, and who changed them.

child.py reads, in interpreters of its own; reading.py starts those; variables.py judges; blame.py
finds who made a value differ; table.py puts it side by side; images.py writes an images file.
"""

from importlib import import_module

# Where PyYAML is missing, this says so in words.
import_module("rocm_autopatch.policy.document")
