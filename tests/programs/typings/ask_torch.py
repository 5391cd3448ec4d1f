"""Compares the stubs of torch in a directory with the torch that runs this.

    python ask_torch.py DIRECTORY

It prints what of the stubs is not true of this torch, a line for each, and then how many names it
has asked for: whether a name is there, and whether a function of Python has the parameters. A name
that only some versions of torch have says so in the comment above it: "From 2.8 on", "Until 2.7".
Names under "In builds for a GPU" are asked for only there. Attributes that only objects have are
looked for in one of the class, which EXAMPLES has.
"""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import torch
import torch._inductor.utils
from torch.multiprocessing import reductions
from torch.utils import _device, _pytree

FUNCTION = ast.FunctionDef
graph = torch.fx.Graph()
graph.output(graph.placeholder("given"))
EXAMPLES = {
    "torch.dtype": torch.float32,
    "torch.device": torch.device("cpu", 0),
    "torch.Generator": torch.default_generator,
    "torch.Tensor": torch.ones(1),
    "torch.UntypedStorage": torch.ones(1).untyped_storage(),
    "torch._C.Argument": torch.ops.aten.add_.Tensor._schema.arguments[0],
    "torch._C.FunctionSchema": torch.ops.aten.add_.Tensor._schema,
    "torch._C._AliasInfo": torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info,
    "torch._ops.OpOverload": torch.ops.aten.add_.Tensor,
    "torch.fx.Graph": graph,
    "torch.fx.GraphModule": torch.fx.GraphModule(torch.nn.Module(), graph),
    "torch.fx.Node": next(iter(graph.nodes)),
    "torch.multiprocessing.reductions.StorageWeakRef": reductions.StorageWeakRef(
        torch.ones(1).untyped_storage()
    ),
    "torch.nn.Module": torch.nn.Module(),
    "torch.utils._device.DeviceContext": _device.DeviceContext("cpu"),
    "torch.utils._pytree.TreeSpec": _pytree.tree_flatten([1, 2])[1],
}
NOW = tuple(int(part) for part in torch.__version__.split(".")[:2])
asked = 0


def number(text):
    return tuple(int(part) for part in text.split("."))


def comment(node, lines):
    """The comment above a definition."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
    found = []
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
        found.insert(0, lines[first].strip(" #"))
    return " ".join(found)


def expected(said):
    """Whether this torch should have a name with this comment; None if that can't be told."""
    if "In builds for a GPU" in said and not torch._C._has_cuda:
        return None
    since = re.search(r"From (\d+\.\d+) on", said)
    until = re.search(r"Until (\d+\.\d+)", said)
    return not ((since and number(since[1]) > NOW) or (until and number(until[1]) < NOW))


def names_in(body):
    """Each name that a module or a class of a stub defines, and its definition."""
    for node in body:
        if isinstance(node, (FUNCTION, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id, node
        elif isinstance(node, ast.ImportFrom):
            # A module of the stubs.
            yield from ((one.asname, node) for one in node.names if one.asname == one.name)


def check_parameters(name, node, there):
    """A function of Python takes what its stub says."""
    # Those of operators are Python's.
    if not inspect.isfunction(there) or (name.endswith("__") and node.name != "__init__"):
        return
    real = inspect.signature(there).parameters
    if any(one.kind == one.VAR_KEYWORD for one in real.values()):
        return
    given = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
    for one in given:
        if one not in real:
            print(f"{name}: it has no parameter {one}: {', '.join(real)}")


def check(owner, prefix, body, lines):
    global asked
    for name, node in names_in(body):
        if name in ("__getattr__", "__setattr__"):
            continue
        whole = f"{prefix}.{name}"
        wanted = expected(comment(node, lines))
        if wanted is None:
            continue
        asked += 1
        there = hasattr(owner, name) or hasattr(EXAMPLES.get(prefix), name)
        if there != wanted:
            print(f"{whole}: {'it is not there' if wanted else 'it is there'}")
        elif there and isinstance(node, ast.ClassDef):
            check(getattr(owner, name), whole, node.body, lines)
        elif there and isinstance(node, FUNCTION):
            check_parameters(whole, node, getattr(owner, name, None))


def main(directory):
    for file in sorted(directory.rglob("*.pyi")):
        parts = file.relative_to(directory).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = file.read_text(encoding="utf-8")
        # Some modules are attributes only, as C++ makes them.
        try:
            module = importlib.import_module(name)
        except ImportError:
            parent, _, last = name.rpartition(".")
            module = getattr(importlib.import_module(parent), last, None)
        if module is None:
            print(f"{name}: there is no such module")
            continue
        check(module, name, ast.parse(text).body, text.splitlines())
    print(asked, "names")


main(Path(sys.argv[1]))
