"""What AMD's compiler does for real models under each policy, mode and switch."""
