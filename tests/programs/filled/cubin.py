"""Registers and stack of kernels for NVIDIA's GPUs: what we read, and what cuobjdump says."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl
from compiling_gpu.kernel_file import read_resources
from triton.backends.compiler import GPUTarget


@triton.jit
def product(a, b, c, size: tl.constexpr):
    rows, columns = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    at = rows * size + columns
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
for size in (16, int(sys.argv[1])):
    source = triton.compiler.ASTSource(
        fn=product,
        signature={"a": "*fp16", "b": "*fp16", "c": "*fp32", "size": "constexpr"},
        constexprs={"size": size},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    cubin = made.asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = [int(re.search(rf"\b{word}:(\d+)", text)[1]) for word in ("REG", "STACK")]
    registers, spilled = read_resources(cubin)
    print(json.dumps([told, [registers, spilled * 4]]))
