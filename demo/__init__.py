"""One unmodified program in a ROCm image's surroundings, without and with rocm_autopatch."""
