"""What of torch's settings differs in a ROCm build, and whether variables.yaml has a verdict on it.

    python experiments/matrix/rocm_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each line of the printed table is a fact, and says what it is in which versions. What is
not as expected is marked with an exclamation mark, and makes the exit status 1.

A variable counts if code reads it that asks whether this is a ROCm build, or that is written for
ROCm only. A config key counts if its default depends on that, if it is in the config's class rocm,
or if such a question reads it, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_files import directories, table

from rocm_autopatch.policy import lint
from rocm_autopatch.probe import variables

# Names that tell whether this is a ROCm build, and names of what is written for ROCm only.
ANSWERS = re.compile(r"_?is_(hip|rocm)|_?IS_(HIP|ROCM)\w*|_rocm_version_at_least")
ROCM_ONLY = re.compile(r"(^|[/_])(rocm|hip|rocshmem|amdsmi)([/_.]|$)", re.IGNORECASE)
ROCM_NAME = re.compile(r"(ROCM|HIP|ROCR|HSA|AMD|MIOPEN|AITER|PYTORCH_(ROCM|HIP|MIOPEN))_")
ABOUT = re.compile(r"\.hip\b|rocm|ROCM|HIP_|HSA_|MIOPEN_|IS_HIP|is_hip")
KEY = re.compile(r"(?<![\w.])(?:inductor_)?config\.([\w.]+)")
CONFIG = ("_inductor/config.py", "_dynamo/config.py", "_functorch/config.py")
# Not about compiling or running: torch's own tests, its exporter, and its form for bug reports.
LEFT_OUT = ("testing/", "onnx/", "utils/collect_env.py")

# A ROCm build reads them as any build does, or not at all.
OTHERS = {"CC", "CUDA_HOME", "CUDA_INC_PATH", "CUDA_PATH", "IS_FBCODE"}

# The variables, and the first version that reads each in such a place; the second is the first one
# that no longer does.
VARIABLES: dict[str, tuple[str, ...]] = {
    "CUDA_VISIBLE_DEVICES": ("2.4", "2.5"),
    "FLYDSL_GPU_ARCH": ("2.15",),
    "HIP_VISIBLE_DEVICES": ("2.4",),
    "HSA_OVERRIDE_GFX_VERSION": ("2.15",),
    "INDUCTOR_CK_BACKEND_GENERATE_TEST_RUNNER_CODE": ("2.6",),
    "PYTORCH_ROCM_ARCH": ("2.4",),
    "ROCM_HOME": ("2.4",),
    "ROCM_PATH": ("2.4",),
    "ROCR_VISIBLE_DEVICES": ("2.6",),
    "ROCSHMEM_LIB_DIR": ("2.13",),
    "TORCHINDUCTOR_CK_DIR": ("2.5",),
    "TORCHINDUCTOR_LAYOUT_OPTIMIZATION": ("2.4",),
    "TORCHINDUCTOR_MAX_AUTOTUNE_BWD_INPUT_CONV_BACKENDS": ("2.13",),
    "TORCHINDUCTOR_MAX_AUTOTUNE_BWD_WEIGHT_CONV_BACKENDS": ("2.13",),
    "TORCHINDUCTOR_NUM_DECOMPOSE_K_SPLITS": ("2.11",),
    "TORCHINDUCTOR_ORIGAMI": ("2.13",),
    "TORCHINDUCTOR_ORIGAMI_TOPK": ("2.13",),
    "TORCHINDUCTOR_PARTITIONED_SCATTER_ENABLED": ("2.14",),
    "TORCH_NO_COMPILER_WRAPPER": ("2.13",),
}
KEYS: dict[str, tuple[str, ...]] = {
    "aot_inductor.emit_multi_arch_kernel": ("2.10",),
    "cpp_wrapper": ("2.15",),
    "fx_wrapper": ("2.15",),
    "layout_optimization": ("2.4",),
    "max_autotune": ("2.13",),
    "max_autotune_conv_bwd_input_backends": ("2.13",),
    "max_autotune_conv_bwd_weight_backends": ("2.13",),
    "max_autotune_gemm": ("2.14",),
    "partitioned_scatter_enabled": ("2.14",),
    "rocm.arch": ("2.5",),
    "rocm.ck_dir": ("2.5",),
    "rocm.ck_max_profiling_configs": ("2.8",),
    "rocm.ck_supported_arch": ("2.5",),
    "rocm.ck_tile_max_profiling_configs": ("2.8",),
    "rocm.compile_opt_level": ("2.5",),
    "rocm.contiguous_threshold": ("2.9",),
    "rocm.flush_denormals": ("2.5",),
    "rocm.generate_test_runner": ("2.6",),
    "rocm.is_debug": ("2.5",),
    "rocm.kBatch_sweep": ("2.7",),
    "rocm.n_max_profiling_configs": ("2.5",),
    "rocm.origami": ("2.13",),
    "rocm.origami_topk": ("2.13",),
    "rocm.print_kernel_resource_usage": ("2.5",),
    "rocm.rocm_home": ("2.5",),
    "rocm.save_temps": ("2.5",),
    "rocm.split_k_threshold": ("2.7",),
    "rocm.use_fast_math": ("2.5",),
    "rocm.use_preselected_instances": ("2.5",),
    "strict_signed_zero": ("2.15",),
    "triton.emit_pointer_range_32": ("2.13",),
    "triton.num_decompose_k_splits": ("2.10",),
    "triton.scalar_accumulators": ("2.15",),
    "triton.spill_threshold": ("2.11",),
    "use_fast_math": ("2.10",),
}


class Reads:
    """What the files of one torch read where they ask whether this is a ROCm build."""

    def __init__(self, root: Path) -> None:
        self.variables: set[str] = set()
        self.keys: set[str] = set()
        for path in sorted(root.glob("**/*.py")):
            self.file = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8", errors="replace")
            # Most files have nothing of it, and need not be parsed.
            if not self.file.startswith(LEFT_OUT) and ABOUT.search(text):
                tree = ast.parse(text)
                self.asking: set[ast.AST] = set()
                self.mark(tree, frozenset())
                # Names that hold the answer, such as layout_opt_default.
                held = frozenset(
                    target.id
                    for node in tree.body
                    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value in self.asking
                    for target in targets(node)
                    if isinstance(target, ast.Name)
                )
                self.mark(tree, held)
                self.block(tree.body, bool(ROCM_ONLY.search(self.file)))

    def mark(self, node: ast.AST, held: frozenset[str]) -> bool:
        """Note the expressions that ask, or use an answer. Returns whether this one does."""
        asks = False
        if isinstance(node, ast.Attribute):
            of = node.value
            version = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
            asks = node.attr == "hip" and version.endswith("version")
            asks = asks or bool(ANSWERS.fullmatch(node.attr))
        elif isinstance(node, ast.Name):
            asks = node.id in held or bool(ANSWERS.fullmatch(node.id))
        for child in ast.iter_child_nodes(node):
            asks = self.mark(child, held) or asks
        if asks and isinstance(node, ast.expr):
            self.asking.add(node)
        return asks

    def block(self, body: Sequence[ast.stmt], inside: bool, prefix: str = "") -> None:
        """Statements that follow each other. *inside* is whether they depend on the answer."""
        for statement in body:
            self.statement(statement, inside, prefix)
            if isinstance(statement, ast.If) and statement.test in self.asking:
                ends = (ast.Return, ast.Raise, ast.Continue)
                inside = inside or isinstance(statement.body[-1], ends)

    def statement(self, node: ast.stmt, inside: bool, prefix: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
            self.block(node.body, inside or bool(ROCM_ONLY.search(node.name)), inner)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child, inside)
        if (
            self.file in CONFIG
            and isinstance(node, (ast.Assign, ast.AnnAssign))
            and (prefix == "rocm." or node.value in self.asking)
        ):
            self.keys |= {prefix + ast.unparse(target) for target in targets(node)}
        asked = inside or (isinstance(node, ast.If) and node.test in self.asking)
        for handler in getattr(node, "handlers", []):
            self.block(handler.body, asked, prefix)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(node, name, []), asked, prefix)

    def expression(self, node: ast.expr, inside: bool) -> None:
        self.variables |= {name for name in read(node) if ROCM_NAME.match(name)}
        if inside:
            self.variables |= set(read(node))
        for one in ast.walk(node):
            if one in self.asking and isinstance(one, (ast.BoolOp, ast.IfExp, ast.Call)):
                self.variables |= set(read(one))
                if isinstance(one, ast.BoolOp) and self.file.startswith("_inductor/"):
                    self.keys |= set(KEY.findall(ast.unparse(one)))


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def read(node: ast.AST) -> Iterator[str]:
    """The environment variables that a piece of code reads by their names."""
    for one in ast.walk(node):
        given: list[Any] = []
        if isinstance(one, ast.Call):
            of = getattr(one.func, "value", None)
            if last(one.func) == "getenv" or (of and last(of).endswith("environ")):
                given = one.args[:1]
        elif isinstance(one, ast.Subscript) and last(one.value).endswith("environ"):
            given = [one.slice]
        elif isinstance(one, ast.Compare) and last(one.comparators[0]).endswith("environ"):
            given = [one.left]
        for name in [inner for argument in given for inner in ast.walk(argument)]:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def last(node: ast.expr) -> str:
    """The last name of an expression such as os.environ."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def cells(directory: Path) -> dict[str, str]:
    """The cells of a version as they are."""
    found = Reads(directory / "torch")
    names = found.variables - OTHERS
    torch = "torch._inductor.config"
    known = lint.keys(".".join(directory.name.split(".")[:2]))
    # A name that only holds an answer is not for users.
    held = ("_", "layout_opt_default")
    keys = {key for key in found.keys if f"{torch}.{key}" in known and not key.startswith(held)}
    rows = variables.verdict_table()["config"][torch]
    unjudged = {name for name in names if not variables.of_variable(name, "1", directory.name).row}
    return {
        "variables that are not listed here": listing(names - there(VARIABLES, directory.name)),
        "listed here, and not read": listing(there(VARIABLES, directory.name) - names),
        "variables without a verdict": listing(unjudged),
        "keys that are not listed here": listing(keys - there(KEYS, directory.name)),
        "keys that are listed here, and not there": listing(there(KEYS, directory.name) - keys),
        "keys without a verdict": listing(key for key in keys if key not in rows),
    }


def listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def there(spans: Mapping[str, tuple[str, ...]], version: str) -> set[str]:
    """The names of a table that a version has."""
    release = number(version)
    return {
        name
        for name, (since, *until) in spans.items()
        if number(since) <= release and not (until and number(until[0]) <= release)
    }


def expected(name: str) -> dict[str, str]:
    """The cells of a version."""
    return dict.fromkeys(
        (
            "variables that are not listed here",
            "listed here, and not read",
            "variables without a verdict",
            "keys that are not listed here",
            "keys that are listed here, and not there",
            "keys without a verdict",
        ),
        "none",
    )


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def main() -> int:
    versions, _ = directories("What differs in a ROCm build, in every torch, as a table.")
    return table({directory.name: cells(directory) for directory in versions}, expected)


if __name__ == "__main__":
    sys.exit(main())
