from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

def __getattr__(name: str) -> Any: ...

class Node:
    op: str
    meta: dict[str, Any]
    def __getattr__(self, name: str) -> Any: ...

class Graph:
    nodes: Iterable[Node]
    def __init__(self) -> None: ...
    def create_node(
        self,
        op: str,
        target: str | Callable[..., Any],
        args: tuple[Any, ...] | None = ...,
        kwargs: dict[str, Any] | None = ...,
    ) -> Node: ...
    def placeholder(self, name: str) -> Node: ...
    def __getattr__(self, name: str) -> Any: ...

class GraphModule(nn.Module):
    graph: Graph

class Proxy:
    def __getattr__(self, name: str) -> Any: ...
