"""And then mended.

hooks: broken
"""

import traceback

for attempt in range(3):
    try:
        import broken
    except RuntimeError:
        traceback.print_exc()
    if attempt == 1:
        open("mended", "w").close()
print(broken.VALUE, vars(broken.__loader__))
