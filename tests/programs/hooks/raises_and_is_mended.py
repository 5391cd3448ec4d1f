"""Raises, and is mended."""

try:
    import broken
except RuntimeError:
    open("mended", "w").close()
import broken

print(broken.VALUE)
