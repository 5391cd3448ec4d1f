# mypy: disable-error-code="import-not-found, misc, no-any-return"
"""Can caches that a machine without a GPU filled for a GPU be found by a start on that GPU?

    python experiments/gpu/warmed_without_gpu.py WORK [--seconds S]
    python experiments/gpu/warmed_without_gpu.py WORK --facts FACTS.json --builder-only

For an interpreter that has torch for NVIDIA's GPUs, transformers and timm. Three programs, BERT and
ViT of proven.py and a small MLP, are compiled in float16 with two modes. The GPU is first asked for
its facts (WORK/facts.json). Then processes that see no GPU describe it to torch and Triton by these
facts, and compile each program (``built``). The same program starts on the GPU with these caches
(``carried``), with empty ones (``cold``), and with what the latter left (``again``).

A builder's tensors on ``cuda`` have sizes and an address, and no memory. It ends when the compile
of its first graph does, before anything is launched. A compile that does not get so far says where
it stopped. What the keys are made of is in WORK/keys, and is compared with that of the cold start,
which always makes both keys. So are Triton's kernels and Inductor's files, by their names, and
Inductor's wrappers by their lines (WORK/differences).

With ``--builder-only`` no GPU is needed: a second process builds with the caches of the first
(``rebuilt``), and a third one for a GPU of another name (``renamed``).
WORK/warmed_without_gpu.jsonl keeps the results as they come. It is torch alone: our hook is off.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proven

PROGRAMS = ("mlp", "bert", "vit")
MODES = ("default", "reduce-overhead")
# Whose caches a kind of start has, and whether it is on the GPU.
KINDS = {"built": "built", "cold": "cold", "carried": "built", "again": "cold"}
BUILDERS = {"built": "built", "rebuilt": "built", "renamed": "built"}
RENAMED = "Another GPU"
# CUDA numbers a GPU's attributes from 1; so many are asked for.
ATTRIBUTES = 200
PART = re.compile(r"\[(\w+)\] ([^:]*): ?(.*)", re.DOTALL)
LONGEST = 160


class Compiled(BaseException):
    """A builder's graph is compiled. No handler of torch takes it for an error."""


def mlp(torch: Any) -> Callable[[], Any]:
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)]
    plain = torch.nn.Sequential(*layers, torch.nn.Linear(256, 64), torch.nn.Softmax(-1))
    model = torch.compile(plain.cuda().half().eval(), mode=proven.MODE)
    rows = torch.randn(32, 256, device="cuda").half()
    return lambda: model(rows)


def facts() -> None:
    """Print what CUDA, torch and Triton tell about the GPU."""
    import torch
    from triton.runtime import driver

    seen = torch.cuda.get_device_properties(0)
    told = {name: getattr(seen, name) for name in dir(seen) if name[0] != "_"}
    maps = Path("/proc/self/maps").read_text()
    cuda = ctypes.CDLL(re.findall(r"/\S*/libcudart\.so\S*", maps)[0])
    raw = [ctypes.create_string_buffer(bytes([fill]) * 4096) for fill in (0, 255)]
    if any(cuda.cudaGetDeviceProperties(one, 0) for one in raw):
        raise RuntimeError("CUDA tells no properties")
    # What it leaves as it was is behind them. So nobody needs CUDA's headers.
    same = [number for number in range(4096) if raw[0].raw[number] == raw[1].raw[number]]
    value, version = ctypes.c_int(), ctypes.c_int()
    cuda.cudaDriverGetVersion(ctypes.byref(version))
    target = driver.active.get_current_target()
    found = {
        "name": seen.name,
        "torch": {k: v for k, v in told.items() if isinstance(v, (bool, int, float, str))},
        "properties": raw[0].raw[: same[-1] + 1].hex(),
        "attributes": {
            number: value.value
            for number in range(1, ATTRIBUTES)
            if not cuda.cudaDeviceGetAttribute(ctypes.byref(value), number, 0)
        },
        "driver": version.value,
        "triton": driver.active.utils.get_device_properties(0),
        "target": [target.backend, target.arch, target.warp_size],
        "versions": [torch.__version__, torch.version.cuda],
    }
    print(json.dumps(found), flush=True)


# The GPU that is not there


# What torch's C++ asks CUDA about a GPU. What works on one is not here, and fails.
RUNTIME = """
#include <string.h>
static const unsigned char properties[%(size)d] = {%(properties)s};
static const int attributes[][2] = {%(attributes)s};
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetDeviceProperties(void *into, int device) {
  memcpy(into, properties, sizeof properties);
  return 0;
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  for (unsigned i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i][0] == attribute) { *value = attributes[i][1]; return 0; }
  return 1;
}
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0; *greatest = -5;
  return 0;
}
int cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return 0; }
int cudaDriverGetVersion(int *version) { *version = %(driver)d; return 0; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
/* Of the driver, whether the device is in use: to be set, it must be. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0; *active = 1;
  return 0;
}
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
"""


def runtime(found: dict[str, Any], work: Path) -> None:
    """Answer torch's C++ about the GPU; to be called before torch is imported."""
    raw = bytearray.fromhex(found["properties"])
    # CUDA's properties begin with the name.
    raw[:256] = found["name"].encode().ljust(256, b"\0")
    text = RUNTIME % {
        "driver": found["driver"],
        "size": len(raw),
        "properties": ", ".join(map(str, raw)),
        "attributes": ", ".join(f"{{{k}, {v}}}" for k, v in found["attributes"].items()),
    }
    place = work / f"runtime-{os.getpid()}"
    place.mkdir()
    (place / "runtime.c").write_text(text)
    # It is found by the name of NVIDIA's driver, too, which is asked for at run time.
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "cc")
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", "runtime.so", "runtime.c"], cwd=place, check=True)
    # Symbols that are there before those of libcudart are taken first.
    ctypes.CDLL(str(place / "runtime.so"), mode=ctypes.RTLD_GLOBAL)


def describe(torch: Any, found: dict[str, Any]) -> None:
    """Answer for the GPU where Python would use it."""

    class Launcher:
        """Torch's static launcher, which would load the binary."""

        @staticmethod
        def _load_kernel(path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
            return 1, *resources(path)

        @staticmethod
        def _launch_kernel(*arguments: Any) -> None:
            raise RuntimeError("a kernel would be launched")

    torch._C._StaticCudaLauncher = Launcher
    # It obeys CUDA_VISIBLE_DEVICES, which hides all real ones.
    torch.cuda.device_count = lambda: 1
    # It asks NVIDIA's driver, and makes what the next three lines have.
    torch.cuda._lazy_init = lambda: None
    properties = SimpleNamespace(**{**found["torch"], "name": found["name"]})
    torch.cuda._get_device_properties = lambda device: properties
    cpu_state = torch.random.get_rng_state()
    torch.cuda.get_rng_state = lambda device=None: cpu_state
    torch.cuda.set_rng_state = lambda state, device=None: None

    from torch._inductor.fx_passes import joint_graph, pad_mm
    from torch._inductor.runtime import benchmarking
    from torch._subclasses import fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    # Fake tensors would allocate on a GPU that is said to be there.
    fake_tensor.init_gpu_context = lambda device: None
    fake_tensor.FakeTensorMode.avoid_device_init = True

    class OnCpu(TorchDispatchMode):
        """Constants that a compiler folds are made where there is memory."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            options = dict(kwargs or {})
            if getattr(options.get("device"), "type", "") == "cuda":
                options["device"] = torch.device("cpu")
            return function(*args, **options)

    for name in ("__init__", "run"):
        original = getattr(joint_graph.UniformValueConstantFolder, name)

        def folded(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            with OnCpu():
                return original(self, *args, **kwargs)

        setattr(joint_graph.UniformValueConstantFolder, name, folded)

    def benchmark(*arguments: Any, **options: Any) -> float:
        caller = sys._getframe(1).f_code
        measured.append(f"{Path(caller.co_filename).name}:{caller.co_name}")
        return 1.0

    # Where a compile measures, all candidates tie; what asked is told.
    for name in ("benchmark", "benchmark_gpu"):
        setattr(benchmarking.benchmarker, name, benchmark)
    known = pad_mm.get_cached_should_pad

    def pads(key: str) -> bool:
        answer = known(key)
        if answer is None:
            # It would measure both ways.
            measured.append("pad_mm.py: not padded")
        return bool(answer)

    pad_mm.get_cached_should_pad = pads
    triton_driver(torch, found)


measured: list[str] = []


def resources(cubin: str) -> tuple[int, int]:
    """Registers and spilled registers of a kernel's threads, as the driver would tell."""
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, local = (re.search(rf"\b{word}:(\d+)", text) for word in ("REG", "LOCAL"))
    if not (registers and local):
        raise RuntimeError(f"cuobjdump tells no registers of {cubin}: {text[-300:]}")
    return int(registers[1]), int(local[1]) // 4


def triton_driver(torch: Any, found: dict[str, Any]) -> None:
    """Give Triton the target, and no way to load."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import GPUDriver
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    class Utils:
        def get_device_properties(self, device: int) -> dict[str, Any]:
            return found["triton"]

        def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> Any:
            path = Path(os.environ["TRITON_CACHE_DIR"]) / f"loaded-{os.getpid()}.cubin"
            path.write_bytes(kernel)
            needed = resources(str(path))
            path.unlink()
            return 1, 1, *needed, found["torch"]["max_threads_per_block"]

    class Launcher:
        def __init__(self, source: Any, metadata: Any) -> None:
            pass

        def __call__(self, *arguments: Any) -> None:
            raise RuntimeError("a kernel would be launched")

    class Driver(CudaDriver):
        def __init__(self) -> None:
            # Its own utilities are C that is linked with NVIDIA's driver.
            GPUDriver.__init__(self)
            self.utils, self.launcher_cls = Utils(), Launcher

        def get_current_device(self) -> int:
            return 0

        def get_current_target(self) -> Any:
            return GPUTarget(*found["target"])

    driver.set_active(Driver())


def without_memory(torch: Any) -> Any:
    """A mode in which a program's model and inputs get an address instead of memory."""
    from torch.overrides import TorchFunctionMode

    place = torch.device("cuda", 0)
    # Aligned as the allocator's memory is.
    free = [1 << 40]

    def stand_in(like: Any, dtype: Any = None) -> Any:
        # What a copy to another device has for strides.
        copy = torch.empty_like(like, dtype=dtype, device="meta")
        room = copy.untyped_storage().nbytes()
        storage = torch._C._construct_storage_from_data_pointer(free[0], place, room)
        free[0] += -(-max(room, 1) // 512) * 512
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(
            {
                "size": tuple(copy.shape),
                "stride": copy.stride(),
                "dtype": copy.dtype,
                "storage_offset": 0,
                "device": place,
            },
            storage,
        )

    class WithoutMemory(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            options = dict(kwargs or {})
            if function is torch.Tensor.cuda:
                return stand_in(args[0])
            if function is torch.Tensor.half and args[0].is_cuda:
                return stand_in(args[0], torch.half)
            if function in (torch.randint, torch.randn) and options.get("device") == "cuda":
                return stand_in(function(*args, **{**options, "device": "cpu"}))
            return function(*args, **options)

    return WithoutMemory()


# One process


def watch(torch: Any) -> dict[str, list[Any]]:
    """Keep what each key is made of."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache

    kept: dict[str, list[Any]] = {"aot_autograd": [], "fx_graph": []}
    for part, module, name in (
        ("aot_autograd", autograd_cache, "autograd_cache_key"),
        ("fx_graph", codecache, "compiled_fx_graph_hash"),
    ):
        original = getattr(module, name)

        def key(graph: Any, *args: Any, original: Any = original, part: str = part) -> Any:
            made, lines = original(graph, *args)
            found = [match for line in lines if (match := PART.match(line))]
            parts = {one[2]: [one[1], one[3][:LONGEST]] for one in found}
            code = graph.code.splitlines()
            kept[part].append({"key": made, "parts": parts, "code": code})
            return made, lines

        setattr(module, name, key)
    return kept


def one(kind: str, program: str, mode: str, work: Path) -> None:
    """Print what a builder compiled, or how a program started on the GPU."""
    builds = kind in BUILDERS
    row: dict[str, Any] = {}
    found = json.loads((work / "facts.json").read_text())
    if builds:
        if os.environ["CUDA_VISIBLE_DEVICES"]:
            sys.exit("a builder must not see a GPU")
        if kind == "renamed":
            found["name"] = RENAMED
        runtime(found, work)
    import torch

    if builds:
        describe(torch, found)
    torch.manual_seed(0)
    proven.MODE = mode
    make = mlp if program == "mlp" else getattr(proven, program)
    import torch._inductor.compile_fx
    from torch._dynamo.utils import counters

    kept = watch(torch)
    inductor = torch._TorchCompileInductorWrapper
    compile_graph = inductor.__call__

    def ends(self: Any, graph: Any, inputs: Any) -> Any:
        compile_graph(self, graph, inputs)
        raise Compiled

    with torch.no_grad():
        if builds:
            with without_memory(torch):
                call = make(torch)
            inductor.__call__ = ends
            began = time.perf_counter()
            try:
                call()
                row["stopped"] = "the program compiled nothing"
            except Compiled:
                row["stopped"] = ""
            except BaseException as error:
                row.update(stop(error))
            row["seconds"] = [time.perf_counter() - began]
            row["measured"] = sorted(set(measured))
            row["allocates"] = allocates(torch)
        else:
            call = make(torch)
            row.update(start(torch, call))
    row["counters"] = {
        f"{part} {name}": number
        for part in ("inductor", "aot_autograd")
        for name, number in counters[part].items()
        if "cache" in name
    }
    row["kernels"] = kernels(Path(os.environ["TRITON_CACHE_DIR"]))
    (work / "keys").mkdir(exist_ok=True)
    (work / "keys" / f"{kind}-{program}-{mode}.json").write_text(json.dumps(kept))
    print(json.dumps(row), flush=True)


def allocates(torch: Any) -> str:
    """What happens if the GPU is used: a builder has none."""
    try:
        torch.empty(1, device="cuda")
    except Exception as error:
        return str(error).splitlines()[0]
    return "yes"


def start(torch: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """Call as often as a captured graph needs, and compare with what is not compiled."""
    torch.cuda.synchronize()
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        result = call()[0].clone()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    with torch.compiler.set_stance("force_eager"):
        expected = call()[0]
    apart = (result.float() - expected.float()).abs().max().item()
    return {"seconds": seconds, "apart": apart, "largest": expected.float().abs().max().item()}


def stop(error: BaseException) -> dict[str, Any]:
    """Where a compile could not go on: the first error of the chain, and its last frames."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return {
        "stopped": f"{type(error).__name__}: {str(error)[:600]}",
        "at": [f"{'/'.join(Path(f.filename).parts[-3:])}:{f.lineno} {f.name}" for f in frames],
    }


# What the processes left


def kernels(root: Path) -> list[str]:
    """Triton's names of the kernels that are there as far as the binary."""
    return sorted({path.parent.name for path in root.rglob("*.cubin")})


def sources(root: Path) -> tuple[list[str], list[list[str]]]:
    """The names of Inductor's kernels, and the lines of its wrappers without the cache's path."""
    names, wrappers = [], []
    for path in sorted(root.glob("*/c*.py")):
        text = path.read_text()
        if "AsyncCompile()" in text:
            wrappers.append(text.replace(str(root), "CACHE").splitlines())
        else:
            names.append(path.name)
    return names, wrappers


def compare(work: Path, ours: str, theirs: str, program: str, mode: str) -> dict[str, Any]:
    """Which parts of the keys differ between two kinds of starts, and which files."""
    cell = f"{program}-{mode}"
    told: dict[str, Any] = {}
    texts: list[str] = []

    def differing(name: str, one: list[str], other: list[str]) -> int:
        lines = list(difflib.unified_diff(one, other, ours, theirs, n=0, lineterm=""))
        texts.extend([f"== {name}", *(line[:300] for line in lines[:200])] if lines else [])
        return len(lines)

    mine, other = (
        json.loads((work / "keys" / f"{kind}-{cell}.json").read_text()) for kind in (ours, theirs)
    )
    for part, keys in mine.items():
        same = []
        parts = []
        for left, right in zip(keys, other[part], strict=False):
            same.append(left["key"] == right["key"])
            names = dict.fromkeys((*left["parts"], *right["parts"]))
            for name in names:
                a, b = (side["parts"].get(name, ["", "not there"]) for side in (left, right))
                if a[0] != b[0]:
                    parts.append(f"{name}: {ours} {a[1]!r}, {theirs} {b[1]!r}")
            differing(f"{part} graph", left["code"], right["code"])
        counts = [len(keys), len(other[part])]
        told[part] = {"keys": counts, "same": sum(same), "differ": parts[:12]}
    at = [work / "caches" / {**KINDS, **BUILDERS}[kind] / cell for kind in (ours, theirs)]
    if at[0] != at[1]:
        (a, left_wrappers), (b, right_wrappers) = (sources(path / "inductor") for path in at)
        told["inductor kernels"] = [len(a), len(b), len({*a} & {*b})]
        for number, pair in enumerate(zip(left_wrappers, right_wrappers, strict=False)):
            told[f"wrapper {number}: lines apart"] = differing(f"wrapper {number}", *pair)
    if texts:
        (work / "differences").mkdir(exist_ok=True)
        (work / "differences" / f"{ours}-{theirs}-{cell}.txt").write_text("\n".join(texts) + "\n")
    return told


def counted(row: dict[str, Any], what: str) -> int:
    """Graphs that both caches of graphs had, or had not."""
    names = ("aot_autograd autograd_cache_", "inductor fxgraph_cache_")
    return sum(row["counters"].get(name + what, 0) for name in names)


def launch(
    work: Path, words: list[str], limit: float, *, sees: bool, caches: Path | None = None
) -> tuple[dict[str, Any], str]:
    """A process of this file: what its last line says, or why it says nothing."""
    environ = {**os.environ, "ROCM_AUTOPATCH": "off", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    if caches:
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
        environ["TRITON_CACHE_DIR"] = str(caches / "triton")
        (caches / "triton").mkdir(parents=True, exist_ok=True)
    if not sees:
        environ["CUDA_VISIBLE_DEVICES"] = ""
        # Workers would not know what the builder describes; it is not in a key.
        environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        done = subprocess.run(
            [sys.executable, __file__, *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        text = error.stderr or b""
        last = text.decode(errors="replace") if isinstance(text, bytes) else text
        return {}, f"not done in {limit:.0f} s: {last[-1500:]}"
    if done.returncode or not done.stdout.strip():
        return {}, f"status {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1]), ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Caches for a GPU that the builder has not.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=240, help="for all (240)")
    parser.add_argument("--each", type=float, default=100, help="seconds for a process (100)")
    parser.add_argument("--at-once", type=int, default=6, help="processes beside each other (6)")
    parser.add_argument("--facts", type=Path, help="of a GPU that is not here")
    parser.add_argument("--builder-only", action="store_true", help="no GPU is needed")
    parser.add_argument("--programs", nargs="*", default=PROGRAMS, choices=PROGRAMS)
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES)
    asked = parser.parse_args()
    work: Path = asked.work.resolve()
    end = time.monotonic() + asked.seconds
    if (work / "caches").exists():
        sys.exit(f"{work / 'caches'} is there already; the first start would not be a cold one")
    work.mkdir(parents=True, exist_ok=True)
    cells = [(program, mode) for program in asked.programs for mode in asked.modes]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}

    def keep(row: dict[str, Any]) -> None:
        with (work / "warmed_without_gpu.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    if asked.facts:
        (work / "facts.json").write_text(asked.facts.read_text())
    else:
        found, why = launch(work, ["--facts-of-gpu"], asked.each, sees=True)
        if why:
            sys.exit(f"facts: {why}")
        (work / "facts.json").write_text(json.dumps(found, indent=1))
    found = json.loads((work / "facts.json").read_text())
    print(f"facts: {found['name']}", flush=True)
    keep({"kind": "facts", **found})

    kinds = BUILDERS if asked.builder_only else KINDS

    def run(kind: str, cell: tuple[str, str]) -> None:
        left = min(asked.each, end - time.monotonic())
        program, mode = cell
        if left < 5:
            print(f"{program} {mode} {kind}: not begun, no time is left", flush=True)
            return
        caches = work / "caches" / kinds[kind] / f"{program}-{mode}"
        before = kernels(caches / "triton")
        words = ["--one", kind, program, mode, str(work)]
        row, why = launch(work, words, left, sees=kind not in BUILDERS, caches=caches)
        row = {"kind": kind, "program": program, "mode": mode, **row}
        name = f"{program} {mode} {kind}"
        if why:
            keep({**row, "failed": why})
            print(f"{name}: {why}", flush=True)
            return
        rows[kind, program, mode] = row
        after = row.pop("kernels")
        row.update(kernels=len(after), new_kernels=len({*after} - {*before}))
        row["names"] = sorted(name[:12] for name in after)
        keep(row)
        told = row["stopped"] if row.get("stopped") else f"first call {row['seconds'][0]:.2f} s"
        print(
            f"{name}: {told}, {len(after)} kernels ({row['new_kernels']} new); {row['counters']}"
            + (f"; at {row['at']}" if "at" in row else "")
            + (f"; measured by {row['measured']}" if row.get("measured") else ""),
            flush=True,
        )

    def differ(ours: str, theirs: str) -> None:
        for program, mode in cells:
            pair = [rows.get((kind, program, mode)) for kind in (ours, theirs)]
            if not (pair[0] and pair[1]):
                continue
            told = compare(work, ours, theirs, program, mode)
            a, b = ({*row["names"]} for row in pair if row)
            told["triton kernels"] = [len(a), len(b), len(a & b)]
            keep({"kind": f"{ours} and {theirs}", "program": program, "mode": mode, **told})
            print(f"{program} {mode}, {ours} and {theirs}: {json.dumps(told)}", flush=True)

    for kind in kinds:
        with ThreadPoolExecutor(asked.at_once) as pool:
            list(pool.map(partial(run, kind), cells))
        # At once, since a later start adds its own files.
        if kind in ("rebuilt", "renamed", "cold", "carried"):
            differ("built", kind)
    for program, mode in cells:
        of = {kind: rows[kind, program, mode] for kind in kinds if (kind, program, mode) in rows}
        told = [
            f"{kind} {row['seconds'][0]:.2f} s, {counted(row, 'hit')} hits, "
            f"{counted(row, 'miss')} misses, {row['new_kernels']} new kernels"
            + (f", apart {row['apart']:.2g} of {row['largest']:.2g}" if "apart" in row else "")
            for kind, row in of.items()
        ]
        print(f"{program} {mode}: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--facts-of-gpu"]:
        facts()
    elif sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
    else:
        main()
