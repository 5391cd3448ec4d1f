"""Fill the caches of models' programs twice on a stand-in for a GPU: does the second find all?

    python -m experiments.live.filled PYTHON GPU DIRECTORY [MODEL ...]

PYTHON has torch for the vendor of GPU (a name of rocm_autopatch/compiling_gpu/gpus.py),
transformers and timm; it needs no GPU. For each model of programs/filled_models.py, the program
runs in two processes with the same caches, which are empty before. A row has the graphs, the
hits and misses of the caches of graphs, and the new Triton kernels of each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from rocm_autopatch import compiling_gpu

PROGRAM = Path(__file__).with_name("programs") / "filled_models.py"
MODELS = ("bert", "gpt2", "generate", "vit", "convnet", "qwen2", "mixer")


def kernels(caches: Path) -> set[str]:
    """The binaries of Triton's cache, by their directories."""
    found = (path for kind in ("hsaco", "cubin") for path in caches.rglob(f"*.{kind}"))
    return {path.parent.name for path in found}


def fill(python: Path, model: str, directory: Path, variables: dict[str, str]) -> str:
    """Run the program once; return a row, or how it failed."""
    caches = directory / "caches" / model
    before = kernels(caches)
    environ = {**os.environ, **variables, "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    began = time.monotonic()
    done = subprocess.Popen(
        [python, PROGRAM, model],
        env=environ,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, err = done.communicate()
    seconds = time.monotonic() - began
    if done.returncode:
        return f"{model}: status {done.returncode}\n{err[-3000:]}"
    told = json.loads((directory / "processes" / f"{done.pid}.json").read_text(encoding="utf-8"))
    new = len(kernels(caches) - before)
    caches_told = ", ".join(f"{name} {count}" for name, count in sorted(told["caches"].items()))
    return (
        f"{model}: {seconds:.0f} s, {told['graphs']} graphs, {caches_told}, {new} new kernels, "
        f"{len(told['value_guards'])} guards on values, {len(told['recompiles'])} recompiles"
    )


def main() -> None:
    """Fill each model's caches twice and print rows."""
    parser = argparse.ArgumentParser(description="Fill caches twice on a stand-in for a GPU.")
    parser.add_argument("python", type=Path)
    parser.add_argument("gpu", choices=sorted(compiling_gpu.GPUS))
    parser.add_argument("directory", type=Path)
    parser.add_argument("models", nargs="*", default=MODELS)
    asked = parser.parse_args()
    variables = compiling_gpu.prepare_stand_in(
        asked.python, compiling_gpu.GPUS[asked.gpu], asked.directory
    )
    for model in asked.models:
        shutil.rmtree(asked.directory / "caches" / model, ignore_errors=True)
        for _ in range(2):
            print(fill(asked.python, model, asked.directory.absolute(), variables), flush=True)


if __name__ == "__main__":
    main()
