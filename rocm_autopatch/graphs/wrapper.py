"""``graphed``: a model or function whose calls become replays of one captured graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rocm_autopatch.graphs import record, soundness
from rocm_autopatch.graphs.buckets import Bucket, Cut, Pad
from rocm_autopatch.graphs.capture import Pools, capturing
from rocm_autopatch.graphs.leaves import TENSORS, Signatures, flatten, signature, unflatten
from rocm_autopatch.graphs.refusal import Refused
from rocm_autopatch.graphs.store import Graphs, Options
from rocm_autopatch.graphs.watch import Watched

# Each call uses these, so they are looked up once. Dynamo knows the first one by this name, too.
_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.maybe_current_level
_inference_mode = torch.is_inference_mode_enabled
_autocast = torch.is_autocast_enabled
_default_dtype = torch.get_default_dtype
_precision = torch._C._get_float32_matmul_precision
_deterministic = torch._C._get_deterministic_algorithms
OUTPUTS = ("clone", "alias")
# The structure of a call with only positional arguments, which are all tensors.
_FLAT = "flat"


class Graphed:
    """A callable that runs *function* as a graph if possible. :func:`graphed` makes it.

    All other attributes are the function's. So those of a wrapped model can be used.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        buckets: Sequence[Bucket],
        fallback: bool,
        name: str,
    ) -> None:
        self.function = function
        self._buckets = tuple(buckets)
        self._fallback = fallback
        self._parameters = inspect.signature(_plain(function)) if buckets else None
        for bucket in self._buckets:
            self._check(bucket)
        self._watched = Watched(function)
        self._signatures = Signatures()
        self._graphs = Graphs(
            self._call,
            name or _name(function),
            "graphed",
            options,
            Pools(),
            watched=self._watched,
        )
        functools.update_wrapper(self, _plain(function), updated=())

    def _check(self, bucket: Bucket) -> None:
        """Raise ValueError if a bucket names an argument that the function does not have."""
        assert self._parameters is not None
        known = self._parameters.parameters
        wrong = [name for name in bucket.inputs if name not in known]
        if wrong and not any(one.kind == one.VAR_KEYWORD for one in known.values()):
            raise ValueError(
                f"bucket {bucket.name}: {_name(self.function)} has no argument {wrong[0]}; it has "
                f"{', '.join(known) or 'none'}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # If a compiled function makes this call, Dynamo traces it and sees only the function.
        if _is_compiling():
            return self.function(*args, **kwargs)
        try:
            if capturing():
                raise Refused("another capture is under way and records the function's kernels")
            structure: Any
            shapes = None if kwargs else self._signatures.again(args)
            if shapes is not None or (not kwargs and TENSORS.issuperset(map(type, args))):
                # Most calls are like this: there is nothing to flatten.
                structure, leaves = _FLAT, list(args)
            else:
                leaves = []
                structure = flatten((args, kwargs), leaves)
            watched = self._watched
            if not watched.same():
                watched = self._watch_anew()
            grad = _grad_enabled()
            if grad or _dispatch_modes() or _function_modes() or _transforms() is not None:
                _refuse(leaves, watched)
            pads, cuts = self._bucketed(args, kwargs, leaves) if self._buckets else ((), ())
            if pads:
                shapes = _key(leaves, pads)
            elif shapes is None:
                shapes = self._signatures.of(leaves)
            # With the settings of torch that decide which kernels run.
            key = (
                structure,
                shapes,
                watched.attributes(),
                grad,
                _inference_mode(),
                _autocast() and torch.get_autocast_dtype("cuda"),
                _default_dtype(),
                _precision(),
                _deterministic(),
            )
        except Refused as refused:
            if not self._fallback:
                raise
            record.plain(self._graphs.row, str(refused))
            return self.function(*args, **kwargs)
        return self._graphs.run(key, structure, leaves, pads, cuts)

    def _call(self, structure: Any, leaves: list[Any]) -> Any:
        """Make a call from its flattened form."""
        if structure is _FLAT:
            return self.function(*leaves)
        args, kwargs = unflatten(structure, iter(leaves))
        return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "function" not in self.__dict__:
            raise AttributeError(name)  # It is being unpickled.
        return getattr(self.function, name)

    def __reduce__(self) -> Any:
        # A copy has its own graphs.
        graphs = self._graphs
        given = self.function, graphs.options, self._buckets, self._fallback, graphs.row["name"]
        return Graphed, given

    @property
    def row(self) -> dict[str, Any]:
        """This callable's row of ``rocm_autopatch.status()["graphs"]``."""
        return record.finished(self._graphs.row)

    def clear(self) -> None:
        """Drop all graphs and free their memory. Later calls capture anew."""
        self._graphs.clear()

    def _watch_anew(self) -> Watched:
        """Drop all graphs, because a module has another weight, buffer or submodule now."""
        self._graphs.clear()
        self._watched = Watched(self.function)
        self._graphs.watch(self._watched)
        return self._watched

    def _bucketed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> tuple[list[Pad], list[Cut]]:
        """How a call's leaves are padded, and its result cut."""
        pads: list[Pad] = []
        cuts: list[Cut] = []
        of_leaf = list(self._owners(args, kwargs))
        for bucket in self._buckets:
            found: list[tuple[int, int]] = []
            for index, (leaf, owner) in enumerate(zip(leaves, of_leaf)):
                dim = bucket.inputs.get(owner)
                if dim is None or type(leaf) not in TENSORS:
                    continue
                if leaf.dim() <= dim:
                    raise ValueError(f"bucket {bucket.name}: {owner} has no dimension {dim}")
                if any(pad.leaf == index for pad in pads):
                    raise ValueError(f"bucket {bucket.name}: {owner} is also in another bucket")
                found.append((index, dim))
            sizes = {leaves[index].shape[dim] for index, dim in found}
            if len(sizes) > 1:
                raise ValueError(
                    f"bucket {bucket.name}: its arguments have different sizes: {sorted(sizes)}"
                )
            if not sizes:
                continue
            (real,) = sizes
            size = bucket.size(real)
            if size is None:
                raise Refused(
                    f"bucket {bucket.name}: the call exceeds its last size, {bucket.sizes[-1]}"
                )
            pads += [Pad(index, dim, real, size, bucket.fill) for index, dim in found]
            if bucket.outputs is not None:
                cuts.append(Cut(bucket.name, bucket.outputs, size, real))
        return pads, cuts

    def _owners(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
        """The name of the argument that each leaf belongs to."""
        assert self._parameters is not None
        names: list[str] = []
        for parameter in self._parameters.parameters.values():
            if parameter.kind == parameter.VAR_POSITIONAL:
                names += [parameter.name] * len(args)
            else:
                names.append(parameter.name)
        for name, value in [*zip(names, args), *kwargs.items()]:
            within: list[Any] = []
            flatten(value, within)
            yield from [name] * len(within)


def graphed(
    function: Callable[..., Any] | None = None,
    *,
    limit: int = 16,
    warmup: int = 2,
    outputs: str = "clone",
    verify: bool | None = None,
    check: bool | None = None,
    buckets: Sequence[Bucket] = (),
    fallback: bool = True,
    name: str = "",
) -> Any:
    """Replay one HIP or CUDA graph for each signature of a function's calls. Also a decorator.

    A signature is everything but the content of tensors: structure, shapes, strides, dtypes,
    device, constants, modules' ``training``, autocast and other settings of torch. What a function
    does besides GPU work happens during the capture, and not in replays. docs/graphs.md says what
    is noticed and what is not.

    Args:
        function: a module or any callable, compiled or not. Arguments and results are pytrees of
            tensors and constants. Compile with ``mode="default"``.
        limit: how many graphs are kept. A new signature replaces the graph that was used least
            recently, if that graph was not used since the signature first appeared.
        warmup: how many calls of a signature run without a graph before the capture, at least 1.
            The last of them is observed.
        outputs: with ``"clone"``, each call returns tensors of its own. With ``"alias"``, the
            tensors are the graph's. Those that a caller still holds at the next call are then
            moved to memory of their own. A view can't be moved, and raises Refused.
        verify: compare the first replay with one more plain call, if the observed call wrote to no
            weight or buffer. This executes the function once more than it is called. None: only on
            ROCm, where illegal work in a capture may go unnoticed (pytorch#155684).
        check: compare some later replays with plain calls, too, if the observed call wrote to no
            weight or buffer. A difference ends all graphs of the process. None: as the patch
            ``graph_check`` of the policy says, and without it only on ROCm.
        buckets: dimensions that are padded.
        fallback: if a call can't run as a graph, call the function itself. False: raise Refused for
            arguments that no graph can have.
        name: its name on the record.

    Raises ValueError for a wrong option, and for a bucket of an argument that does not exist.
    """
    if outputs not in OUTPUTS:
        raise ValueError(f"outputs={outputs!r} is not one of {', '.join(OUTPUTS)}")
    if limit < 1 or warmup < 1:
        raise ValueError("limit and warmup must be at least 1")
    if buckets and outputs != "clone":
        raise ValueError('buckets cut the results, so they need outputs="clone"')
    verify = bool(torch.version.hip) if verify is None else verify
    check = soundness.checks_by_default() if check is None else check
    options = Options(limit, warmup, outputs == "clone", verify, check)

    def wrap(wrapped: Callable[..., Any]) -> Graphed:
        return Graphed(wrapped, options, buckets, fallback, name)

    return wrap if function is None else wrap(function)


def _refuse(leaves: list[Any], watched: Watched) -> None:
    """Raise Refused if no call can be a graph at present, whatever its signature."""
    if _grad_enabled() and (
        watched.needs_grad() or any(type(x) in TENSORS and x.requires_grad for x in leaves)
    ):
        raise Refused("gradients are needed: call it under torch.no_grad() or inference_mode()")
    if _dispatch_modes() or _function_modes():
        raise Refused(
            "a torch dispatch mode or function mode is active, which needs to see each operation"
        )
    if _transforms() is not None:
        raise Refused("a transform such as torch.func.vmap is active")


def _key(leaves: list[Any], pads: Sequence[Pad]) -> tuple[Any, ...]:
    """The signature of the padded leaves."""
    shown = list(leaves)
    for pad in pads:
        # On the meta device a tensor has a shape but no memory. The real device is added below.
        shown[pad.leaf] = torch.empty(pad.shape(leaves[pad.leaf]), device="meta")
    padded = tuple((pad.leaf, leaves[pad.leaf].dtype, leaves[pad.leaf].device) for pad in pads)
    return (*signature(shown), padded)


def _plain(function: Any) -> Any:
    """What has the signature and the name: a module's forward, also of a compiled module."""
    original = getattr(function, "_orig_mod", function)
    return original.forward if isinstance(original, torch.nn.Module) else original


def _name(function: Any) -> str:
    original = getattr(function, "_orig_mod", function)
    found = original if hasattr(original, "__qualname__") else type(original)
    return f"{found.__module__}.{found.__qualname__}"
