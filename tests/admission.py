"""Admission without an API server: evaluates deploy/kubernetes by Google's CEL, and patches a Pod.

Google's C++ implementation checks and evaluates each expression with the types that Kubernetes
gives: ``object`` and ``params`` may be anything, a variable has the type of its expression, a
mutation is a list of JSONPatch, and the values of a literal are of one type. What is not CEL is
done here: label selectors, and the order of it all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import jsonpatch
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

from tests.conftest import ROOT

PLACE = ROOT / "deploy" / "kubernetes"
VARIANTS = ("image-volume", "init-container", "kyverno")
INJECT = "rocm-autopatch/inject"
# Operations of a patch, as Kubernetes types them.
PATCHES = cel.Type.List(cel.Type("JSONPatch"))
ADDRESS = ("v1", "configmaps", "rocm-autopatch", "rocm-autopatch")
IMAGE = f"registry.example/rocm-autopatch@sha256:{'12' * 32}"
Json = dict[str, Any]


def documents(file: str) -> list[Json]:
    return [document for document in yaml.safe_load_all((PLACE / file).read_text()) if document]


def shipped() -> Json:
    """The ConfigMap of deploy/kubernetes."""
    (found,) = documents("base/parameters.yaml")
    return found


def parameters() -> Json:
    """The same with an image, without which nothing is changed."""
    found = shipped()
    found["data"]["image"] = IMAGE
    return found


def patch_type() -> Any:
    """Kubernetes' type of one operation: its value is anything that JSON has."""
    pool = descriptor_pool.DescriptorPool()
    values = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(values)
    file = descriptor_pb2.FileDescriptorProto(name="patch.proto", syntax="proto3")
    file.dependency.append(values.name)
    message = file.message_type.add(name="JSONPatch")
    kind = descriptor_pb2.FieldDescriptorProto
    for number, name in enumerate(("op", "path", "from"), 1):
        message.field.add(name=name, number=number, type=kind.TYPE_STRING)
    message.field.add(
        name="value", number=4, type=kind.TYPE_MESSAGE, type_name=".google.protobuf.Value"
    )
    for row in message.field:
        row.label = kind.LABEL_OPTIONAL
    pool.Add(values)
    pool.Add(file)
    return pool


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers, and bytes."""

    place = 0

    def number() -> int:
        nonlocal place
        found = shift = 0
        while True:
            byte = data[place]
            place += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7

    while place < len(data):
        key = number()
        size = {0: 0, 1: 8, 2: -1, 5: 4}[key & 7]
        if size == 0:
            yield key >> 3, number()
        else:
            size = number() if size < 0 else size
            yield key >> 3, data[place : place + size]
            place += size


def literals(checked: bytes) -> Iterator[set[bytes]]:
    """The types of what each list or map literal holds. *checked* is a cel.expr.CheckedExpr.

    Kubernetes refuses a literal with more than one: its environments are made with
    HomogeneousAggregateLiterals, which CEL in C++ does not have.
    """
    # It comes inside a google.protobuf.Any.
    rows = list(_fields(dict(_fields(checked))[2]))
    entries = (dict(_fields(value)) for number, value in rows if number == 3)
    types = {entry[1]: entry[2] for entry in entries}

    def walk(expression: bytes) -> Iterator[set[bytes]]:
        for number, value in _fields(expression):
            if number not in (5, 6, 7, 8, 9):  # select, call, list, struct, comprehension
                continue
            parts = list(_fields(value))
            if number == 8:
                pairs = [list(_fields(part)) for key, part in parts if key == 2]
                below = [part for pair in pairs for key, part in pair if key in (3, 4)]
                if not any(key == 1 and name for key, name in parts):
                    yield {typed(part) for pair in pairs for key, part in pair if key == 3}
                    yield {
                        typed(part, optional=(5, 1) in pair)
                        for pair in pairs
                        for key, part in pair
                        if key == 4
                    }
            else:
                children = {5: {1}, 6: {1, 3}, 7: {1}, 9: {2, 4, 5, 6, 7}}[number]
                below = [part for key, part in parts if key in children]
                if number == 7:
                    yield {typed(part) for part in below}
            for part in below:
                yield from walk(part)

    def typed(expression: bytes, optional: bool = False) -> bytes:
        found: bytes = types[dict(_fields(expression))[2]]
        if optional:  # ?"key": its value is an optional of what the map holds
            found = dict(_fields(dict(_fields(found))[14]))[2]
        return found

    for number, value in rows:
        if number == 4:
            yield from walk(value)


def _whole(value: Any) -> Any:
    """JSON with whole numbers as such: protobuf's values have no integers."""
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector of Kubernetes holds."""
    for name, value in selector.get("matchLabels", {}).items():
        if labels.get(name) != value:
            return False
    for row in selector.get("matchExpressions", []):
        name, values = row["key"], row.get("values", [])
        holds = {
            "In": labels.get(name) in values,
            # A label that is missing is in no list.
            "NotIn": labels.get(name) not in values,
            "Exists": name in labels,
            "DoesNotExist": name not in labels,
        }
        if not holds[row["operator"]]:
            return False
    return True


class Policy:
    """One variant's policy, as an API server or Kyverno would evaluate it."""

    def __init__(self, variant: str) -> None:
        (document,) = (
            row for row in documents(f"{variant}/policy.yaml") if "Binding" not in row["kind"]
        )
        self.spec: Json = document["spec"]
        self._extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings(2)]
        self._pool = patch_type()
        # What Kyverno adds to Kubernetes' CEL, as far as we use it.
        kinds = [cel.Type.MAP, *[cel.Type.STRING] * 4]
        get = cel.Overload("resource_get", cel.Type.DYN, kinds, True, self._get)
        self._library = [cel.FunctionDecl("Get", [get])] if "paramKind" not in self.spec else []
        self._map: Json = {}
        self._compiled: dict[str, Any] = {}

    def _get(self, _: Any, *address: str) -> Json:
        assert address == ADDRESS
        return self._map

    def _evaluate(
        self, expression: str, types: Mapping[str, Any], data: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The type of an expression, and its value."""
        # The types that an expression sees are the same for each Pod.
        compiled = self._compiled.get(expression)
        if compiled is None:
            environment = cel.NewEnv(
                descriptor_pool=self._pool,
                variables=types,
                extensions=self._extensions,
                functions=self._library,
            )
            compiled = self._compiled[expression] = environment.compile(expression)
            for kinds in literals(compiled.serialize()):
                assert len(kinds) <= 1, f"Kubernetes wants one type in a literal: {expression}"
        value = compiled.eval(data=data)
        assert value.type() != cel.Type.ERROR, f"{value.plain_value()}: {expression}"
        return compiled.return_type(), value.plain_value()

    def applies(self, pod: Json, namespace: Mapping[str, str] | None = None) -> bool:
        """Whether a new Pod is changed, in a namespace with these labels."""
        constraints = self.spec["matchConstraints"]
        if not selects(constraints["objectSelector"], pod["metadata"].get("labels", {})):
            return False
        if not selects(constraints["namespaceSelector"], namespace or {}):
            return False
        for condition in self.spec["matchConditions"]:
            kind, held = self._evaluate(
                condition["expression"], {"object": cel.Type.DYN}, {"object": pod}
            )
            assert kind == cel.Type.BOOL
            if not held:
                return False
        return True

    def patch(self, pod: Json, config_map: Json | None = None) -> list[Json]:
        """The operations of the mutation."""
        self._map = config_map or parameters()
        types = {"object": cel.Type.DYN}
        data = {"object": pod}
        if "paramKind" in self.spec:
            types["params"], data["params"] = cel.Type.DYN, self._map
        else:
            types["resource"], data["resource"] = cel.Type.MAP, {}
        for variable in self.spec["variables"]:
            name = f"variables.{variable['name']}"
            types[name], data[name] = self._evaluate(variable["expression"], types, data)
        (mutation,) = self.spec["mutations"]
        assert mutation["patchType"] == "JSONPatch"
        kind, found = self._evaluate(mutation["jsonPatch"]["expression"], types, data)
        assert kind == PATCHES
        return [_whole(json_format.MessageToDict(operation)) for operation in found]

    def admit(
        self, pod: Json, config_map: Json | None = None, namespace: Mapping[str, str] | None = None
    ) -> Json:
        """The Pod as it is stored."""
        if not self.applies(pod, namespace):
            return copy.deepcopy(pod)
        admitted: Json = jsonpatch.apply_patch(pod, self.patch(pod, config_map))
        return admitted


def containers(pod: Json) -> dict[str, Json]:
    """Containers and init containers, by name."""
    spec = pod["spec"]
    return {row["name"]: row for row in [*spec.get("initContainers", []), *spec["containers"]]}


def environment(container: Json) -> dict[str, str]:
    return {row["name"]: row["value"] for row in container.get("env", []) if "value" in row}
