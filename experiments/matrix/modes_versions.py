"""What a mode means, by torch's own code of every version from 2.4 to 2.15, without torch.

    python experiments/matrix/modes_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each runs in a process of its own: its ``list_mode_options``, its
``_TorchCompileInductorWrapper`` and its config module, with a table and a pin of ours. A row is a
way in which a program asks. Exit status 1: a cell is wrong.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch_files import INDUCTOR, VERSIONS, fetch, load, show

ROOT = Path(__file__).resolve().parents[2]
WRAPPER = "_TorchCompileInductorWrapper"
# Modes by what is under test of them. The table's words are torch's own modes, in one step.
TABLE = {
    "reduce-overhead": "lite",  # which torch has from 2.10 on: before, the mode stays as it is
    "default": "max-autotune-no-cudagraphs",
    "max-autotune-no-cudagraphs": "reduce-overhead",
    "max-autotune": "graphs",
}
CAPTURES = "triton.cudagraphs"


def define(path: Path, names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The functions, classes and assignments of a file that have these names, and nothing else."""
    code = ast.parse("from __future__ import annotations")
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if any(getattr(one, "name", getattr(one, "id", "")) in names for one in targets):
            code.body.append(node)
    namespace = dict(given)
    for part in ast.walk(code):
        if isinstance(part, ast.Name) and not hasattr(builtins, part.id):
            namespace.setdefault(part.id, mock.MagicMock())
    exec(compile(code, str(path), "exec"), namespace)
    return namespace


def training(directory: Path) -> str:
    """What graphs/training.py uses: where each compiled graph passes, and what is called of it."""
    path = directory / "torch/_inductor/output_code.py"
    if not path.is_file():
        return "no such place"
    body = ast.parse(path.read_text()).body
    owner = next(one for one in body if getattr(one, "name", "") == "CompiledFxGraph")
    methods = {one.name: one for one in ast.walk(owner) if isinstance(one, ast.FunctionDef)}
    called = ast.unparse(methods["__call__"])
    used = path.read_text()
    good = (
        "post_compile" in methods
        and "self.current_callable(inputs)" in called
        and all(f'fx_kwargs["{name}"]' in used for name in ("is_backward", "static_input_idxs"))
    )
    return "there" if good else "changed"


def run(directory: Path) -> dict[str, str]:
    """By the name of a cell, what this torch answers."""
    load(directory)
    sys.path.insert(0, str(ROOT))
    from rocm_autopatch import startup
    from rocm_autopatch.patches import compile_modes
    from rocm_autopatch.patches import config as config_patch

    torch: Any = sys.modules["torch"]
    inductor: Any = sys.modules["torch._inductor"]
    config: Any = sys.modules[INDUCTOR]
    inductor.config = config
    given: dict[str, Any] = {"os": os, "builtins": builtins, "torch": torch}
    given["_get_origin"] = typing.get_origin
    bisector = SimpleNamespace(CompilerBisector=mock.MagicMock())
    bisector.CompilerBisector.get_config_change = lambda _: None
    sys.modules["torch._inductor.compiler_bisector"] = bisector  # type: ignore[assignment]
    sys.modules["torch._inductor.codegen"] = mock.MagicMock()
    sys.modules["torch._inductor.codegen.common"] = mock.MagicMock()
    version = SimpleNamespace(TorchVersion=lambda _: "12.6")
    sys.modules["torch.torch_version"] = version  # type: ignore[assignment]
    torch_init, inductor_init = (
        directory / "torch" / name for name in ("__init__.py", "_inductor/__init__.py")
    )
    names = ("list_mode_options", "lite_mode_options")
    inductor.list_mode_options = define(inductor_init, names, {})["list_mode_options"]
    wrapper = define(torch_init, (WRAPPER,), given)[WRAPPER]
    setattr(torch, WRAPPER, wrapper)
    compile_fx = mock.MagicMock()
    used = define(
        directory / "torch/_inductor/compile_fx.py",
        ("get_patched_config_dict",),
        {"config": config, "patch_compile_options": config.patch},
    )
    compile_fx.get_patched_config_dict = used["get_patched_config_dict"]
    sys.modules["torch._inductor.compile_fx"] = compile_fx

    plain = {name: dict(options) for name, options in inductor.list_mode_options().items()}
    entry = (CAPTURES, "pin", False, "", "", "layer", "why")
    (row,) = config_patch.apply(config, [entry], (), False)
    found = {"the pin": row["status"]}
    since = tuple(map(int, directory.name.split(".")[:2])) >= (2, 6)
    taken = training(directory)
    found["training is taken"] = (
        "from 2.6 on" if taken == ("there" if since else "no such place") else taken
    )
    entries: Any = [(name, use, "layer", "why") for name, use in TABLE.items()]
    compile_modes.apply(torch, entries, (), False)
    # The stub has no spec, by which a hook would tell that it was executed.
    hook: Any = startup.waiting.pop("torch._inductor")
    hook(inductor)

    def meant(mode: str) -> dict[str, Any]:
        use = TABLE.get(mode, mode)
        # Our graphs are for the same mode without the capture: TABLE has one such mode.
        use = "max-autotune-no-cudagraphs" if use == "graphs" else use
        return plain.get(use, plain[mode])

    unpinned = {mode: meant(mode) for mode in plain}
    expected = {
        mode: {**options, **({CAPTURES: False} if CAPTURES in options else {})}
        for mode, options in unpinned.items()
    }
    wrappers = {mode: wrapper(mode, None, None) for mode in plain}
    answers = {
        "asked for one": {mode: inductor.list_mode_options(mode) for mode in plain},
        "asked for all": inductor.list_mode_options(),
        "the wrapper's config": {mode: one.config for mode, one in wrappers.items()},
        "the compiler's config": {
            mode: {name: wrappers[mode].get_compiler_config()[name] for name in options}
            for mode, options in expected.items()
        },
    }
    for name, answer in answers.items():
        found[name] = "as compiled" if answer == expected else repr(answer)
    refused = sum(writer["count"] for writer in row["refused"])
    captures = sum(options.get(CAPTURES, False) for options in unpinned.values())
    found["writes refused"] = "of each capture" if refused == captures > 0 else str(refused)
    torchs = "KeyError" if directory.name < "2.7" and directory.name[3] == "." else "RuntimeError"
    try:
        inductor.list_mode_options("no-such-mode")
    except Exception as error:
        said = type(error).__name__
        found["no such mode"] = "torch's error" if said == torchs else said
    return found


EXPECTED = {
    "the pin": "applied",
    "asked for one": "as compiled",
    "asked for all": "as compiled",
    "the wrapper's config": "as compiled",
    "the compiler's config": "as compiled",
    # By the modes that stand for a capture here. A question is no write.
    "writes refused": "of each capture",
    "no such mode": "torch's error",
    "training is taken": "from 2.6 on",
}


def cells(directory: Path) -> dict[str, str]:
    command = [sys.executable, "-B", "-Wignore", __file__, "--run", str(directory.parent)]
    env = {**os.environ, "ROCM_AUTOPATCH": "off", "ROCM_AUTOPATCH_LOG": "quiet"}
    done = subprocess.run(
        [*command, directory.name], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What a mode means on every torch, as a table.")
    parser.add_argument("directory", type=Path, help="of unpacked versions")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="version")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    directories = [asked.directory.resolve() / name for name in asked.versions]
    if asked.run:
        print(json.dumps(run(directories[0])))
        return 0
    for directory in directories:
        if not directory.is_dir():
            fetch(directory)
    found = {directory.name: cells(directory) for directory in directories}
    wrong = False
    for name, wanted in EXPECTED.items():
        said = {version: some.get(name, "nothing") for version, some in found.items()}
        wrong = not show(f"{name:24}", said, dict.fromkeys(found, wanted)) or wrong
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
