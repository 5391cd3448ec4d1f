"""One unmodified program in an environment like a ROCm image's, without and with rocm_autopatch."""
