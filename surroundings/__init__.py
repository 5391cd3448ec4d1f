"""What stands in for a ROCm image in demonstrations and tests: its variables and its torch.

Standard library only, so that a machine with nothing but Python can build them.
"""
