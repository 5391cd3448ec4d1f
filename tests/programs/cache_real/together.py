"""Children that compile the same graph at once, and one after them."""

import json
import sys

from children import directory, end, said, start

paths = [f"{directory}/{number}" for number in range(int(sys.argv[2]))]
for pid in [start(3, path) for path in paths]:
    end(pid)
end(start(3, directory + "/last"))
print(json.dumps([said(path) for path in [*paths, directory + "/last"]]))
