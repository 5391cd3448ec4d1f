"""Stand-ins for a ROCm image, in the demo and in tests: its variables and its torch.

This uses only the standard library, so a machine that has only Python can make them.
"""
