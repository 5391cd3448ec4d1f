"""The record: what one process really did.

report.py has it as plain data, sentences.py as text, metrics.py as one machine among many.
"""
