"""What a first start pays for a layer of caches: links to its files, ten in each directory.

.work/dev/bin/python benchmarks/layer.py [FILES ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rocm_autopatch.startup import layer


def main() -> None:
    """Print the seconds for each number of files."""
    for count in map(int, sys.argv[1:] or ("1000", "20000")):
        with tempfile.TemporaryDirectory() as directory:
            below, new = Path(directory, "below"), Path(directory, "new")
            new.mkdir()
            for number in range(count):
                kernel = below / "triton" / str(number // 10) / f"{number}.hsaco"
                kernel.parent.mkdir(parents=True, exist_ok=True)
                kernel.touch()
            began = time.perf_counter()
            layer.link_layer(str(below), str(new), str(new))
            print(f"{count} files: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
