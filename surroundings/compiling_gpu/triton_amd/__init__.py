"""Triton's AMD backend with another driver; Triton finds it by the entry point triton.backends."""
