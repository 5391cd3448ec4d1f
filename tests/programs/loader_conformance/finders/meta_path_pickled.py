"""Meta_path pickled.

hooks: alone?
"""

import pickle
import sys

sys.meta_path = pickle.loads(pickle.dumps(sys.meta_path))
import alone

print(alone.VALUE)
