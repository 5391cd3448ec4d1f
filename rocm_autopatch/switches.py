"""The registry of switches: all that we know of each value that may make compiled code faster.

A switch is one row of ``SWITCHES``. From it derive

- what ``tune`` tries (``tune.candidates``);
- what ``prove`` tries and evidence can prove, if the row has a subject (``prove.subjects``,
  ``evidence.SUBJECTS``, the JSON Schemas, docs/evidence.md, docs/measurements.md);
- the entries of the policies ``safe`` and ``performance``, if the row has a reason for them;
- what the watchdog advises against a phase that the switch stops;
- docs/switches.md.

``make docs`` writes what is in files (tools/switch_parts.py). No start loads this module.
CONTRIBUTING.md says how to add a switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

INDUCTOR = "torch._inductor.config"
MODE_PREFIX = "mode."
# The group of the subjects that come from rows.
SWITCH_GROUP = "switches"
Scalar = Union[bool, int, float, str, None]


@dataclass(frozen=True)
class EvidenceSubject:
    """What evidence can prove: a policy without ``version``, and the mode of its programs.

    ``sentence`` is true where ``name`` is proven. ``group`` is what trials name in their ABOUT.
    ``keys`` are the config keys without which torch does not have it. With ``gpu`` it captures
    graphs, which there are on GPUs only. ``about`` are further entries of policies, which its
    trials say something of.
    """

    name: str
    sentence: str
    group: str
    mode: str | None
    policy: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    gpu: bool = False
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrongResults:
    """On which accelerator a value gave wrong results up to which torch release, by which thread.

    ``until`` is the first release that is right.
    """

    accelerator: str
    until: str
    source: str


@dataclass(frozen=True)
class Switch:
    """A value of a switch. Torch's sources from 2.4 to 2.15 are where all but the reasons is from.

    What it is:

    - ``key``, ``value``: as ``ab`` takes them. A key of Inductor's config stands without its
      module; ``mode.NAME`` is a compile mode; a name in capitals is an environment variable.
    - ``about``: a sentence, what the value does.
    - ``where``: the accelerator that it is for: rocm, cuda, gpu for both, cpu; all if empty.
    - ``own``: torch's own value; None if it is not needed here, or differs between releases.
    - ``variable``: torch's own environment variable for the key.
    - ``since``, ``until``: the releases of torch for which ``performance`` sets it.

    For ``tune``, which leaves out a key that a torch does not have, and a value that is so already:

    - ``likely``: it is known to have large effects on some programs, so it is tried alone and
      first. The others are tried four at a time.
    - ``slow``: it is known for a long first run, so it comes after the others, in the order of the
      rows: a search for GEMMs may not end in the time that is left.
    - ``code``: torch reads the key only where it makes a graph's code, so it acts only through
      that: not where C++ is compiled, nor at run time.
    - ``wrong``: it gave wrong results, and is not tried there.

    For evidence, ``subject`` is its name there, ``proven`` the sentence that is true where it is
    proven, and ``also`` are further entries of policies that its trials say something of.

    ``safe`` and ``performance`` are why these policies have an entry of it. Both set torch's own
    value. With a subject, ``performance`` has ``value`` where that is proven to gain;
    ``turned_on_by`` is the variable of its own by which a user turns it on.

    ``stops`` are phases of the watchdog that end if the key is false, the one that it is most
    about first.
    """

    key: str
    value: Scalar
    about: str
    where: str = ""
    likely: bool = False
    slow: bool = False
    code: bool = False
    wrong: WrongResults | None = None
    own: Scalar = None
    variable: str = ""
    since: str = ""
    until: str = ""
    subject: str = ""
    proven: str = ""
    also: tuple[str, ...] = ()
    safe: str = ""
    performance: str = ""
    turned_on_by: str = ""
    stops: tuple[str, ...] = ()

    @property
    def toggle(self) -> str:
        """The switch as ``ab`` takes it: ``freezing=true``."""
        return f"{self.key}={text_of(self.value)}"

    @property
    def is_variable(self) -> bool:
        """Whether it is an environment variable."""
        return self.key.isupper()

    @property
    def is_mode(self) -> bool:
        """Whether it is what a compile mode stands for."""
        return self.key.startswith(MODE_PREFIX)

    @property
    def setting(self) -> tuple[str, str]:
        """The module of a config key, and the key in it."""
        module, found, key = self.key.partition(".config.")
        return (f"{module}.config", key) if found else (INDUCTOR, self.key)


def text_of(value: Scalar) -> str:
    """A value as ``ab`` takes it in a toggle."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f'"{text}"' if "," in text else text


def switches_that_stop(phase: str) -> list[tuple[str, str]]:
    """What stops a phase of the watchdog if it is false, the nearest first: the key of Inductor's
    config, and the variable that turns the key on, "" if it is on by itself.
    """
    rows = [one for one in SWITCHES if phase in one.stops]
    rows.sort(key=lambda one: one.stops.index(phase))
    return [(one.key, "" if one.own else one.variable) for one in rows]


_SAFE = ["safe"]
# What safe leaves as torch has it, and the limit of recompiles.
_OF_TORCH = (
    *("epilogue_fusion", "pattern_matcher", "reorder_for_locality", "shape_padding"),
    "recompile_limit",
)


def _mode(
    name: str,
    sentence: str,
    mode: str,
    group: str = "modes",
    about: tuple[str, ...] = (),
    **policy: Any,
) -> EvidenceSubject:
    captures = mode in ("reduce-overhead", "max-autotune")
    said = {"extends": _SAFE, **policy}
    return EvidenceSubject(name, sentence, group, mode, said, gpu=captures, about=about)


# What a search among all GEMM backends is about, and the value that torch itself has.
_GEMMS, _ALL_BACKENDS = "max_autotune_gemm_backends", "ATEN,TRITON,CPP"
_SEARCH = "max-autotune-no-cudagraphs"

# Modes are subjects, too, each with a policy of its own. The first one is the base of all ratios.
MODES: tuple[EvidenceSubject, ...] = (
    EvidenceSubject(
        "default",
        "The mode default works under the policy safe.",
        "modes",
        None,
        {"extends": _SAFE},
        about=_OF_TORCH,
    ),
    _mode(
        "graphs",
        "The mode reduce-overhead works with our own graphs.",
        "reduce-overhead",
        compile_modes={"reduce-overhead": "graphs"},
    ),
    # Inference is the same code as of graphs.
    _mode(
        "training-graphs",
        "Training in the mode reduce-overhead works with our own graphs.",
        "reduce-overhead",
        "training",
        compile_modes={"reduce-overhead": "training-graphs"},
    ),
    # Torch alone: a policy that changes nothing.
    _mode(
        "cudagraphs",
        "The mode reduce-overhead works with Inductor's own capture.",
        "reduce-overhead",
        about=("reduce-overhead", "triton.cudagraphs", "triton.cudagraph_trees"),
        extends=[],
    ),
    _mode(
        "autotune",
        "The mode max-autotune-no-cudagraphs works, with GEMMs in libraries only.",
        _SEARCH,
        "search",
        ("max_autotune", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"),
    ),
    _mode(
        "autotune-graphs",
        "The same search works with our own graphs.",
        "max-autotune",
        "search",
        compile_modes={"max-autotune": "graphs"},
    ),
    _mode(
        "max-autotune",
        "The mode max-autotune works as in torch itself, with Inductor's own capture.",
        "max-autotune",
        "search",
        ("max-autotune",),
        extends=[],
    ),
    _mode(
        "gemm-templates",
        "A search among all GEMM backends works, without a capture.",
        _SEARCH,
        "search",
        (_GEMMS,),
        config={INDUCTOR: {_GEMMS: {"pin": _ALL_BACKENDS, "insist": True}}},
    ),
)

SWITCHES: tuple[Switch, ...] = (
    Switch(
        "coordinate_descent_tuning",
        True,
        "A search for block sizes and numbers of warps. First calls take longer.",
        likely=True,
        slow=True,
        own=False,
        variable="TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
        stops=("descent",),
        subject="coordinate_descent_tuning",
        proven="A search by coordinate descent works.",
        safe=(
            "Off, unless the program turns it on, as SGLang does. With it, the first "
            "compile takes up to 2.9 times as long (docs/claims.md#coordinate-descent)."
        ),
        performance=(
            "Off, as in torch itself. It looks for better block sizes and numbers of warps. "
            "A cold first call takes 1.6 to 2.9 times as long, a warm one 1.7 to 5.6 times "
            "(docs/measurements.md), and small models gained nothing."
        ),
        turned_on_by="INDUCTOR_COORD_DESCENT",
    ),
    Switch(
        "mode.default",
        "graphs",
        "Each compiled graph is captured by us (docs/graphs.md).",
        where="gpu",
        likely=True,
    ),
    Switch(
        "mode.default", "reduce-overhead", "Inductor's own graph capture.", where="gpu", likely=True
    ),
    Switch(
        "mode.default",
        "max-autotune-no-cudagraphs",
        "A search among kernels at compile time.",
        likely=True,
        slow=True,
    ),
    Switch(
        "mode.default",
        "max-autotune",
        "The search and Inductor's own graph capture.",
        where="gpu",
        likely=True,
        slow=True,
    ),
    Switch(
        "mode.reduce-overhead",
        "graphs",
        "Our graphs instead of Inductor's capture.",
        where="gpu",
        likely=True,
    ),
    Switch(
        "mode.reduce-overhead",
        "reduce-overhead",
        "Inductor's own graph capture.",
        where="gpu",
        likely=True,
    ),
    Switch("mode.reduce-overhead", "default", "No graphs.", likely=True),
    Switch(
        "mode.reduce-overhead",
        "max-autotune",
        "The search and Inductor's own graph capture.",
        where="gpu",
        likely=True,
        slow=True,
    ),
    Switch(
        "mode.max-autotune",
        "graphs",
        "The search and our graphs.",
        where="gpu",
        likely=True,
        slow=True,
    ),
    Switch(
        "mode.max-autotune",
        "max-autotune",
        "The search and Inductor's own graph capture.",
        where="gpu",
        likely=True,
        slow=True,
    ),
    Switch(
        "mode.max-autotune",
        "max-autotune-no-cudagraphs",
        "The search without a capture.",
        likely=True,
        slow=True,
    ),
    Switch("mode.max-autotune", "default", "No search and no capture.", likely=True),
    Switch(
        "mode.max-autotune-no-cudagraphs",
        "graphs",
        "The search and our graphs.",
        where="gpu",
        likely=True,
        slow=True,
    ),
    Switch("mode.max-autotune-no-cudagraphs", "default", "No search.", likely=True),
    Switch(
        "max_autotune",
        True,
        "A search among GEMM kernels in each mode.",
        likely=True,
        slow=True,
        own=False,
        variable="TORCHINDUCTOR_MAX_AUTOTUNE",
        stops=("candidates", "configs"),
        safe=(
            "Off, unless the program asks for it by mode= or options=. The pinned backends "
            "then limit the search."
        ),
    ),
    Switch(
        "aggressive_fusion",
        True,
        "Kernels that share no data may fuse too.",
        code=True,
        own=False,
        subject="aggressive_fusion",
        proven="Compiles with more fusion work.",
        safe="Off, as in torch itself. Measure whether it helps.",
        performance=(
            "Off, as in torch itself. Kernels that share no data may fuse too, but three "
            "small programs got no fewer kernels (docs/claims.md#aggressive-fusion)."
        ),
        turned_on_by="INDUCTOR_AGGRESSIVE_FUSION",
    ),
    Switch(
        "max_fusion_size",
        128,
        "Longer chains fuse.",
        code=True,
        own=64,
        subject="max_fusion_size",
        proven="Compiles with another limit of max_fusion_size work.",
        performance="Torch's own value. 128 fuses longer chains (docs/claims.md#max-fusion-size).",
        turned_on_by="INDUCTOR_MAX_FUSION_SIZE",
    ),
    Switch(
        "benchmark_kernel",
        True,
        (
            "Inductor writes a benchmark into the code of each Triton kernel, for reports "
            "and for multi_kernel."
        ),
        own=False,
        variable="TORCHINDUCTOR_BENCHMARK_KERNEL",
        subject="benchmark_kernel",
        proven="Compiles that add a benchmark to each kernel work.",
        performance=(
            "Off, as in torch itself. Inductor writes a benchmark into the code of each "
            "Triton kernel, for reports and for multi_kernel."
        ),
        turned_on_by="INDUCTOR_BENCHMARK_KERNEL",
    ),
    Switch(
        "triton.multi_kernel",
        1,
        "Several kernels are compiled, and the fastest is chosen at run time.",
        where="gpu",
        likely=True,
        slow=True,
        own=0,
        variable="TORCHINDUCTOR_MULTI_KERNEL",
        subject="multi_kernel",
        proven="Compiles that choose among several kernels at run time work.",
        performance=(
            "Off, as in torch itself. With it on, programs died in their second start, with "
            "warm caches (TypeError in multi_kernel.py's cache_file_path; torch 2.11, "
            "NVIDIA H200, 2026-11-22; also with torch alone)."
        ),
    ),
    Switch(
        "freezing",
        True,
        "Weights become constants of graphs that are compiled under no_grad.",
        likely=True,
        own=False,
        variable="TORCHINDUCTOR_FREEZING",
        stops=("freezing",),
        subject="freezing",
        proven="Compiles with weights as constants work.",
        performance=(
            "Off, as in torch itself. It makes weights constants of graphs that are "
            "compiled under no_grad. It does the same to transformers' static cache, so "
            "generate fails with a device-side assert (torch 2.11, transformers 5.17, "
            "NVIDIA H200, 2026-11-22; also with torch alone). With it, an encoder's calls "
            "took 0.75 of the time."
        ),
        turned_on_by="INDUCTOR_FREEZING",
    ),
    Switch(
        "triton.cudagraphs",
        True,
        "Inductor's own graph capture in each mode.",
        where="gpu",
        likely=True,
    ),
    Switch(
        "pattern_matcher",
        False,
        "Common subgraphs are not recognised.",
        code=True,
        own=True,
        stops=("matcher",),
        safe="On, as in torch itself. It recognises common subgraphs.",
    ),
    Switch(
        "reorder_for_locality",
        False,
        "Operations are not reordered for memory access.",
        code=True,
        own=True,
        safe="On, as in torch itself. It improves memory access.",
    ),
    Switch(
        "max_autotune_gemm_backends",
        "ATEN,TRITON,CPP",
        "A search takes Triton and C++ templates for GEMMs too.",
        code=True,
    ),
    Switch(
        "epilogue_fusion",
        False,
        "No fusion into the templates of a search.",
        code=True,
        own=True,
        safe=(
            "On, as in torch itself. It affects only the templates of max_autotune "
            "(docs/claims.md#epilogue-fusion)."
        ),
    ),
    Switch(
        "memory_planning",
        True,
        "One pool for the buffers of a graph.",
        code=True,
        own=False,
        variable="TORCHINDUCTOR_MEMORY_PLANNING",
        subject="memory_planning",
        proven="Compiles that plan their memory work.",
        safe=(
            "Off, as in torch itself. A program may turn it on, as unsloth does "
            "(docs/claims.md#memory-planning)."
        ),
    ),
    Switch(
        "max_autotune_pointwise",
        True,
        "A search among pointwise and reduction kernels.",
        likely=True,
        own=False,
        variable="TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",
        stops=("configs",),
        subject="max_autotune_pointwise",
        proven="A search among pointwise and reduction kernels works.",
        also=("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",),
        safe="Off, unless the program asks for it.",
    ),
    Switch(
        "combo_kernels",
        True,
        "Several small kernels become one.",
        code=True,
        wrong=WrongResults("rocm", "2.11", "pytorch/pytorch#168937"),
    ),
    Switch("benchmark_fusion", True, "Fusions are timed at compile time.", where="gpu", slow=True),
    Switch(
        "loop_ordering_after_fusion", True, "Loops are reordered so that more fuses.", code=True
    ),
    Switch("loop_ordering_after_fusion", False, "Loops are not reordered for fusion.", code=True),
    Switch(
        "layout_optimization", False, "Convolutions keep the layout of their inputs.", code=True
    ),
    Switch(
        "layout_optimization",
        True,
        "Convolutions get channels-last layouts.",
        likely=True,
        code=True,
    ),
    Switch(
        "force_layout_optimization",
        True,
        "Channels-last layouts also where a rule says that they do not pay.",
        where="gpu",
        code=True,
    ),
    Switch("conv_1x1_as_mm", True, "1x1 convolutions become GEMMs.", code=True),
    Switch(
        "efficient_conv_bn_eval_fx_passes",
        True,
        "Batch norms in eval are folded into convolutions.",
        code=True,
    ),
    Switch("permute_fusion", True, "Permutes are fused into GEMMs.", code=True),
    Switch(
        "shape_padding",
        False,
        "Odd GEMM shapes are not padded.",
        code=True,
        own=True,
        variable="TORCHINDUCTOR_SHAPE_PADDING",
        stops=("pads",),
        performance="On, as in torch itself. It pads odd GEMM shapes.",
    ),
    Switch(
        "force_shape_pad",
        True,
        "GEMM shapes are padded without timing it first.",
        where="gpu",
        code=True,
    ),
    Switch(
        "comprehensive_padding",
        False,
        "Strides of intermediate tensors are not padded.",
        where="gpu",
        code=True,
    ),
    Switch("split_reductions", False, "A reduction is one kernel.", where="gpu", code=True),
    Switch(
        "realize_reads_threshold", 8, "Longer chains of reads before a result is stored.", code=True
    ),
    Switch(
        "realize_opcount_threshold",
        100,
        "Longer chains of operations before a result is stored.",
        code=True,
    ),
    Switch(
        "max_pointwise_cat_inputs", 32, "Larger concatenations become pointwise kernels.", code=True
    ),
    Switch(
        "reorder_for_peak_memory", False, "Operations stay in the order of the program.", code=True
    ),
    Switch("inplace_buffers", False, "Kernels do not write into their inputs.", code=True),
    Switch(
        "cpp_wrapper", True, "The calls of kernels are C++ and not Python.", likely=True, slow=True
    ),
    Switch("triton.persistent_reductions", False, "Reductions loop.", where="gpu", code=True),
    Switch(
        "triton.cooperative_reductions",
        True,
        "Several blocks share a reduction.",
        where="gpu",
        code=True,
    ),
    Switch("triton.prefer_nd_tiling", True, "Tiles of several dimensions.", where="gpu", code=True),
    Switch("triton.tile_reductions", True, "Reductions are tiled.", where="gpu", code=True),
    Switch("triton.max_tiles", 3, "Tiles of up to three dimensions.", where="gpu", code=True),
    Switch(
        "triton.tiling_prevents_pointwise_fusion",
        False,
        "Pointwise kernels fuse although they then need other tiles.",
        where="gpu",
        code=True,
    ),
    Switch("b2b_gemm_pass", True, "Two GEMMs in a row are fused.", where="gpu", code=True),
    Switch("use_fast_math", True, "Less exact mathematical functions."),
    Switch("cpp.dynamic_threads", True, "The number of threads is read at each call.", where="cpu"),
    Switch("cpp.min_chunk_size", 512, "Smaller loops are parallel too.", where="cpu", code=True),
    Switch("cpp.min_chunk_size", 16384, "Only larger loops are parallel.", where="cpu", code=True),
    Switch("cpp.weight_prepack", False, "Weights are not packed for oneDNN.", where="cpu"),
    Switch(
        "cpp.enable_tiling_heuristics", False, "Loops are always tiled.", where="cpu", code=True
    ),
    Switch(
        "torch._functorch.config.activation_memory_budget",
        0.5,
        "Training stores half of the activations and computes the others again.",
    ),
    Switch(
        "torch._functorch.config.aggressive_recomputation",
        True,
        "Training computes more activations again.",
        code=True,
    ),
    Switch(
        "PYTORCH_TUNABLEOP_ENABLED",
        "1",
        "GEMMs of libraries are searched for in the first calls.",
        where="rocm",
        likely=True,
        slow=True,
    ),
    Switch(
        "HIP_FORCE_DEV_KERNARG", "1", "Kernel arguments are written to device memory.", where="rocm"
    ),
    Switch(
        "MIOPEN_FIND_MODE",
        "NORMAL",
        "MIOpen searches for convolutions in the first calls.",
        where="rocm",
        slow=True,
    ),
    Switch(
        "TORCH_BLAS_PREFER_HIPBLASLT",
        "1",
        "GEMMs run on hipBLASLt where it can.",
        where="rocm",
        likely=True,
    ),
    Switch(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "1",
        "GEMMs of 32-bit floats run in TF32.",
        where="cuda",
        likely=True,
    ),
    Switch(
        "PYTORCH_ALLOC_CONF",
        "expandable_segments:True",
        "The allocator grows its segments.",
        where="gpu",
        likely=True,
        since="2.12",
        subject="expandable_segments",
        proven="The allocator works with expandable segments.",
        performance=(
            "Less fragmentation with large models. On ROCm, upstream's torch before 2.12 "
            "ignores it with a warning (pytorch#173330). AMD's own torch has it from 2.11 "
            "on (ROCm/pytorch#3106). Some users report hangs with it (pytorch#192259). "
            "vLLM's sleep mode does not work with it, and vLLM looks for it in "
            "PYTORCH_CUDA_ALLOC_CONF only."
        ),
    ),
    Switch(
        "MALLOC_TRIM_THRESHOLD_", "1073741824", "Freed memory is kept by the process.", where="cpu"
    ),
)
