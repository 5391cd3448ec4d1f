"""What a place does to a Python process: its variables, its config values, and who changed them.

child.py reads, in interpreters of its own; reading.py starts those; variables.py judges; blame.py
finds who made a value differ; images.py writes what was found into an images file.
"""
