"""The compile report: what a command compiled, by PyTorch's structured trace of it."""
