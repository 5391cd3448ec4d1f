"""What the patches use of torch's modules and objects, which have no types here.

A member stands here because a patch names it; not every torch from 2.4 to 2.15 has each. Only a
type checker imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Token
from datetime import timedelta
from typing import Any, Protocol


class ConvertFrame(Protocol):
    """``torch._dynamo.convert_frame``, where the compile of a frame begins."""

    __name__: str
    _compile: Callable[..., object]


class RankStore(Protocol):
    """A ``torch.distributed.Store``."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


class DistributedModule(Protocol):
    """``torch.distributed.distributed_c10d``."""

    init_process_group: Callable[..., object]

    def get_rank(self) -> int: ...
    def get_world_size(self) -> int: ...
    def _get_default_store(self) -> RankStore | None: ...


class CudaModule(Protocol):
    """``torch.cuda``."""

    default_generators: Sequence[CudaGenerator]

    def is_initialized(self) -> bool: ...
    def is_current_stream_capturing(self) -> bool: ...


class CudaGenerator(Protocol):
    """A ``torch.Generator``."""

    def get_state(self) -> object: ...
    def set_state(self, state: object, /) -> object: ...


class CacheSize(Protocol):
    """How often the code of a frame was compiled: ``torch._dynamo.cache_size``."""

    num_cache_entries_with_same_id_matched_objs: int

    def will_compilation_exceed_specific_limit(self, limit: int, /) -> bool: ...


class CompilerWrapper(Protocol):
    """A ``torch._TorchCompileInductorWrapper``."""

    config: dict[str, object]


class InductorModule(Protocol):
    """``torch._inductor``."""

    list_mode_options: Callable[..., dict[str, object]]


class CudaGraph(Protocol):
    """A ``torch.fx.Graph``."""

    nodes: Sequence[object]


class GraphModule(Protocol):
    """A ``torch.fx.GraphModule``."""

    graph: CudaGraph


class InputNode(Protocol):
    """An input of a kernel that is tuned: ``torch._inductor.ir.IRNode``."""

    def get_size(self) -> Sequence[object]: ...


class OverrideVariable(Protocol):
    """Where writes to a config value go since 2.12: a ContextVar, or what stands before one."""

    @property
    def name(self) -> str: ...
    @property
    def get(self) -> Callable[[], object]: ...
    @property
    def reset(self) -> Callable[..., object]: ...
    def set(self, value: object, /) -> Token[object]: ...


class ConfigEntry(Protocol):
    """A value of a config module since 2.6: ``torch.utils._config_module._ConfigEntry``.

    ``user_override`` is what was written, and since 2.12 an OverrideVariable.
    """

    alias: str | None
    default: object
    env_value_default: object
    env_value_force: object
    user_override: Any
    value_type: object
    _deprecation_warned: bool


class ConfigModule(Protocol):
    """A config module, whose ``__dict__`` has what patches need.

    ``_config`` has a ConfigEntry for each key, and up to 2.5 the value itself.
    """

    __name__: str
    _default: dict[str, object]
    _is_dirty: bool

    def _mark_get_dict_dirty(self, name: str, /) -> None: ...


# Another key, its value, and what this value implies for the key.
Implication = tuple[str, object, object]
