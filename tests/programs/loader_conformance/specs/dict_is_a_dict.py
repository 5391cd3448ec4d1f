"""Its dict is a dict."""

import json
import marshal
import pprint
from importlib.util import find_spec

loader = find_spec("alone").loader
print(type(vars(loader)), json.dumps(vars(loader)), len(marshal.dumps(vars(loader))) > 9)
pprint.pprint(vars(loader))
