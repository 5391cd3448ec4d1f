"""A GPU that compiles and does not run: a stand-in for the device, below torch's operators.

With it, a program's tensors lie on ``cuda``, and everything above the device is real: Dynamo,
AOTAutograd, Inductor with each of its ``torch.version.hip`` branches, and Triton's compilers,
which need no GPU. Binaries are not loaded, and launches do nothing. There are two kinds of memory:

- *unreadable*: address space that can't be read. Operators know shapes alone. A program that asks
  for a result gets an error, never a number. Tests of what is compiled use it.
- *fill*: memory of the host that begins as zeros. Operators on small tensors are run on the CPU,
  so that control flow goes on; what kernels and large operators would have written is zero. It
  fills the compile caches of a program for a GPU that this machine has not; see `prepare_stand_in`.

It stands below a CPU build of torch that has the label of a ROCm build
(surroundings/amd_torch.py), or, with memory to fill, below a build for CUDA or HIP on a machine
without a GPU. The directory is copied as the package ``compiling_gpu`` to where the program's
Python finds it, with ``torch.backends`` as entry point, and uses nothing of rocm_autopatch there.

| file | what it is |
|---|---|
| build.py | makes all this for one torch; not copied |
| gpus.py | what the runtime of a GPU tells about it |
| connection.py | in a process: torch and Triton are led here |
| device.cpp | the device below torch's operators |
| shapes.h, filled.h, unreadable.h | operators: shapes by meta kernels, and each kind of memory |
| cpu_build.h, cuda.py | what a CPU build lacks, in C++ and in Python: guard, hooks, torch._C |
| runtime.cpp | the functions of CUDA's or HIP's runtime that a build for GPUs calls |
| compilers.py | benchmarks, launches and captures of torch's compilers |
| triton_driver.py, kernel_file.py | Triton's driver: it loads no binary and launches nothing |
| host_modules.py | the modules of C code by which Triton would launch |
| processes.py | what a process compiled, as a file when it ends |

The variable COMPILING_GPU chooses the GPU: the path of a JSON file with its facts, which means
memory to fill; or its name in gpus.py, which means unreadable memory; ``off`` means none.
"""

from __future__ import annotations

from pathlib import Path

from .gpus import GPUS as GPUS
from .gpus import GpuFacts as GpuFacts
from .gpus import read_facts as read_facts
from .gpus import told_by as told_by


def prepare_stand_in(python: Path, facts: GpuFacts, directory: Path) -> dict[str, str]:
    """Make the stand-in for the torch that *python* imports; return variables of its programs.

    With these variables in its environment, a command that *python* starts finds the GPU of
    *facts* on ``cuda``, with memory to fill. *directory* keeps what is built, by torch's version:
    the first call compiles for half a minute, later ones take a second. Each process that compiled
    a graph writes ``directory/processes/PID.json`` when it ends (processes.py says what is in it).
    PYTHONPATH and LD_PRELOAD continue those of this process.

    Raises:
        UserError: *python* has no torch; its torch is not for GPUs, or not for this vendor's; there
            is no C++ compiler ($CXX, or g++), or it fails.
        OSError: *directory* can't be written.
    """
    from .build import build_stand_in

    return build_stand_in(python, facts, directory)
