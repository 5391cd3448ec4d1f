"""Notes what it sees of torch and of the environment."""

import json
import os
import sys


def note(where: str) -> str:
    import torch
    import torch._inductor.config as config

    with open(os.environ["SEEN"], "a") as stream:
        row = [
            where,
            os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE"),
            config.max_autotune,
            config.memory_planning,
        ]
        stream.write(json.dumps(row) + "\n")
    return "%s: torch %s, %s" % (where, torch.__version__, type(config.__loader__).__name__)


def main() -> None:
    print(note("main"), sys.argv[1:], __name__)
    print(sorted(name for name in sys.modules if name.startswith("torch")))


if __name__ == "__main__":
    main()
