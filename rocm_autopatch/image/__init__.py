"""What can be said of a container image without running it."""
