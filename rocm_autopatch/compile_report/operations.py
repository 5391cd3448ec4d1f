"""The content of a graph and of its generated code: operations by name and kind, kernels."""

from __future__ import annotations

import re
from collections import Counter

# "    mm: "f32[8, 8]" = torch.ops.aten.mm.default(x, y);  x = None"
_CALL = re.compile(r'^\s+\w+(?:: "[^"\n]*")? = ([A-Za-z_][\w.]*)\(', re.MULTILINE)
# Dynamo's graphs may have Python's operators: "    add: "f32[8]" = l_x_ + 1"
_OPERATOR = re.compile(
    r'^\s+\w+(?:: "[^"\n]*")? = -?[\w.]+ (@|\*\*|//|[-+*/%&|^<>]=?|==|!=) ', re.MULTILINE
)
_OPERATORS = {"@": "matmul", "+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
_KERNEL = re.compile(r"^(\w+) = async_compile\.(\w+)\(", re.MULTILINE)
_LIBRARY = re.compile(r"\b(extern_kernels|torch\.ops)\.([\w.]+)\(")

# Patterns for the last part of an operation's name, without the overload.
_KINDS = {
    "matrix product": (
        r"(add|b|baddb|_int_)?mm|addmv|mv|dot|linear|einsum|matmul|.*(gemm|scaled_mm)"
    ),
    "attention": r".*(attention|attn|mha|sdpa).*",
    "convolution": r".*conv(olution)?(\d?d|_backward|_transpose\dd)?",
    "reduction": (
        r"(sum|mean|prod|amax|amin|max|min|argmax|argmin|any|all|var|std|var_mean|logsumexp|norm"
        r"|.*softmax|.*_norm|cumsum|cumprod|sort|topk|median)(_backward.*)?"
    ),
    "shape and copy": (
        r"_?(unsafe_)?(view|reshape)|permute|transpose|t|expand|squeeze|unsqueeze|slice|select"
        r"|split(_with_sizes)?|cat|stack|clone|contiguous|copy_?|as_strided|getitem|unbind|flatten"
        r"|alias|detach|constant_pad_nd|repeat|roll|flip|gather|scatter.*|index.*|embedding.*"
        r"|slice_scatter|select_scatter|convert_element_type|_to_copy|to|device_put"
    ),
    "making a tensor": r"(full|zeros|ones|empty|arange|iota|rand|randn|scalar_tensor|eye).*|lift.*",
}
_KIND = [(kind_of_operation, re.compile(pattern)) for kind_of_operation, pattern in _KINDS.items()]
_TORCH = ("aten", "prims", "inductor", "prim", "higher_order", "quantized", "mkldnn", "mkl")


def count_operations(graph: str) -> Counter[str]:
    """How often each operation is called in a graph, given as text from the trace."""
    found: Counter[str] = Counter()
    for called in _CALL.findall(graph):
        if called.startswith("torch.ops."):
            # torch.ops.aten.mm.default: the overload says little.
            found[".".join(called.split(".")[2:4])] += 1
        else:
            found[called if called.startswith("torch.") else called.rpartition(".")[2]] += 1
    for operator in _OPERATOR.findall(graph):
        found[_OPERATORS.get(operator, operator)] += 1
    return found


def kind_of_operation(operation: str) -> str:
    """The kind of an operation."""
    namespace, _, name = operation.partition(".")
    if "c10d" in namespace or "all_reduce" in name or "all_gather" in name:
        return "communication"
    if name and namespace not in (*_TORCH, "torch"):
        return "custom"
    last = operation.rpartition(".")[2]
    for what, pattern in _KIND:
        if pattern.fullmatch(last):
            return what
    return "elementwise and other"


def count_kernels(code: str) -> tuple[int, Counter[str]]:
    """How many kernels Inductor's code defines, and its library calls by name."""
    library: Counter[str] = Counter()
    for where, name in _LIBRARY.findall(_without_comments(code)):
        library[name if where == "extern_kernels" else f"torch.ops.{name}"] += 1
    return len(_KERNEL.findall(code)), library


def _without_comments(code: str) -> str:
    # Source nodes are listed in comments.
    return re.sub(r"(?m)^\s*#.*$", "", code)
