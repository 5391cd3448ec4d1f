from collections.abc import Callable
from typing import Any

from torch import Tag
from torch._C import DispatchKeySet

def __getattr__(name: str) -> Any: ...

class _AliasInfo:
    is_write: bool

class _Argument:
    name: str
    type: object
    is_out: bool
    alias_info: _AliasInfo | None

class _Schema:
    name: str
    arguments: list[_Argument]

class OperatorBase:
    def py_impl(self, k: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...

# ``cond`` and such: an op that takes functions.
class HigherOrderOperator(OperatorBase):
    def name(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

# All overloads of an op.
class OpOverloadPacket:
    def __getattr__(self, name: str) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class OpOverload(OperatorBase):
    tags: list[Tag]
    overloadpacket: OpOverloadPacket
    _overloadname: str
    _schema: _Schema
    def name(self) -> str: ...
    def redispatch(self, keyset: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
