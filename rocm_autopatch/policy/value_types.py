"""The types of values and entries that ``grammar`` is written in.

Each type reads a node, adds a problem where it is wrong, has its JSON Schema, and says in words
what a key may have. A type knows no key of a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar, Union, cast

from rocm_autopatch.policy.problem import quoted

if TYPE_CHECKING:
    from rocm_autopatch.policy.document import Node
    from rocm_autopatch.policy.schema import PolicyReader

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
JsonSchema = dict[str, object]
Scalar = Union[None, bool, int, float, str]
# Where an entry stands, a list of as many alternatives may stand.
MOST_ALTERNATIVES = 20
# Python waits no longer than some 292 years (threading.TIMEOUT_MAX).
LONGEST_DURATION = 1_000_000_000
_NOTHING: Mapping[str, str] = {}


class SchemaDefinitions:
    """The ``$defs`` of a JSON Schema: what stands in it more than once, by name."""

    def __init__(self) -> None:
        self.made: dict[str, JsonSchema] = {}

    def schema_of(self, value: ValueType[object]) -> JsonSchema:
        """The JSON Schema of a type, or a reference to it if the type has a name there."""
        made = value.json_schema(self)
        return self.refer_to(value.shared_as, made) if value.shared_as else made

    def refer_to(self, name: str, made: JsonSchema) -> JsonSchema:
        """A reference to a part of this name. Raises ValueError if another part has the name."""
        if self.made.setdefault(name, made) != made:
            raise ValueError(f"two parts of a JSON Schema are called {name}")
        return {"$ref": f"#/$defs/{name}"}


class ValueType(Generic[T_co]):
    """What a key may have."""

    # Its name in the ``$defs`` of a JSON Schema, "" if it stands where it is used.
    shared_as: str = ""

    @property
    def off_values(self) -> tuple[bool | None, ...]:
        """What a patch that is turned off gives a setting of this type, if anything."""
        return ()

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> T_co:
        """What a node has. A problem is added if it is not of this type."""
        raise NotImplementedError

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        """The JSON Schema of this type."""
        raise NotImplementedError

    def said_values(self) -> Iterator[str]:
        """What a key may have, in words for the page of keys."""
        raise NotImplementedError

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        """The keys below it, by the path above them. Names that a user chooses are capitals."""
        return iter(())


class MappingKey(Generic[T_co]):
    """A key of a mapping: its name, what it may have, and what it means.

    ``excluded`` has, for each kind of entry that can't have this key, what a message says then. A
    ``shared`` key means the same in each mapping that has it.
    """

    def __init__(
        self,
        name: str,
        type: ValueType[T_co],
        sentence: str,
        excluded: Mapping[str, str] = _NOTHING,
        shared: bool = False,
    ) -> None:
        self.name, self.type, self.sentence = name, type, sentence
        self.excluded, self.shared = excluded, shared

    def read_key(self, reader: PolicyReader, node: Node, path: str) -> T_co:
        """What the key has, by its node."""
        return self.type.read_value(reader, node, path)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        """The JSON Schema of what the key may have."""
        made = {"description": self.sentence, **definitions.schema_of(self.type)}
        return definitions.refer_to(self.name, made) if self.shared else made


class GivenFields:
    """What one mapping gives, by key. ``names`` lead to it, and ``place`` is its node or its key's.

    ``kind`` is the one of several keys that decides what it is, "" if it has none or two.
    """

    def __init__(
        self, reader: PolicyReader, path: str, names: tuple[str, ...], place: Node
    ) -> None:
        self.reader, self.path, self.names, self.place = reader, path, names, place
        self.kind = ""
        # Without those of an entry in its short form.
        self.nodes: dict[str, Node] = {}
        self._read: dict[str, object] = {}
        # How many problems there were before anything of it was read.
        self._wrong_before = reader.wrong

    def read_fields(self, keys: Iterable[MappingKey[object]], nodes: dict[str, Node]) -> None:
        """Read those of *keys* that are among *nodes*."""
        self.nodes = nodes
        before = f"{self.path}." if self.path else ""
        for key in keys:
            if key.name in nodes:
                self.read_at(key, nodes[key.name], before + key.name)

    def read_at(self, key: MappingKey[object], node: Node, path: str) -> None:
        """Read one key from its node."""
        value = self._read[key.name] = key.read_key(self.reader, node, path)
        if self.kind in key.excluded and value not in (None, ""):
            self.reader.add_problem(node, path, key.excluded[self.kind])

    def value_of(self, key: MappingKey[T]) -> T | None:
        """What a key has, None if it is not given."""
        return cast("T | None", self._read.get(key.name))

    def text_of(self, key: MappingKey[str]) -> str:
        """The text that a key has, "" if it is not given."""
        return self.value_of(key) or ""

    def prose_of(self, key: MappingKey[str]) -> str:
        """The same with a blank for each line break."""
        return " ".join(self.text_of(key).split())

    @property
    def is_sound(self) -> bool:
        """Whether nothing of what was read is wrong."""
        return self.reader.wrong == self._wrong_before

    def add_problem(self, name: str, message: str) -> None:
        """Add a problem at a key that is given."""
        self.reader.add_problem(self.nodes[name], f"{self.path}.{name}", message)


def mapping_schema(
    keys: Iterable[MappingKey[object]], definitions: SchemaDefinitions, **more: object
) -> JsonSchema:
    """The JSON Schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": {key.name: key.json_schema(definitions) for key in keys},
        "additionalProperties": False,
        **more,
    }


# Values


class PlainText(ValueType[str]):
    """A text, of which ``objection`` says what is wrong with it, None if nothing is.

    ``limits`` are the keywords of JSON Schema that say the same, as far as they can.
    """

    def __init__(
        self,
        said: str = "a text",
        objection: Callable[[str], str | None] | None = None,
        limits: Mapping[str, object] = _NOTHING,
        shared_as: str = "",
    ) -> None:
        self.said, self.objection, self.limits = said, objection, limits
        self.shared_as = shared_as

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> str:
        text = reader.read_text(node, path)
        if self.objection and isinstance(node.value, str):
            problem = self.objection(text)
            if problem:
                reader.add_problem(node, path, problem)
        return text

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return {"type": "string", **self.limits}

    def said_values(self) -> Iterator[str]:
        yield self.said


class ChoiceText(ValueType[str]):
    """One of the words *known*; ``said`` is what the page of keys calls them, if not each."""

    def __init__(self, known: tuple[str, ...], said: str = "", shared_as: str = "") -> None:
        self.known, self.said, self.shared_as = known, said, shared_as

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> str:
        return reader.read_choice(node, path, self.known)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return {"enum": [*self.known]}

    def said_values(self) -> Iterator[str]:
        yield from [self.said] if self.said else [f"`{word}`" for word in self.known]


class SwitchWord(ValueType[str]):
    """One of the words *known*, of which YAML 1.1 reads on and off without quotes as booleans.

    If ``path`` is given, such a path is as good as a word, and ``path_said`` is what a message
    calls it.
    """

    def __init__(
        self, known: tuple[str, ...], path: PlainText | None = None, path_said: str = ""
    ) -> None:
        self.known, self.path, self.path_said = known, path, path_said

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> str:
        if isinstance(node.value, bool):
            word = "on" if node.value else "off"
            node = replace(node, value=word) if word in self.known else node
        if self.path and isinstance(node.value, str) and "/" in node.value:
            return self.path.read_value(reader, node, path)
        return reader.read_choice(node, path, self.known, (self.path_said,) if self.path else ())

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        booleans = [value for word, value in (("on", True), ("off", False)) if word in self.known]
        words: JsonSchema = {"enum": [*self.known, *booleans]}
        return {"anyOf": [words, definitions.schema_of(self.path)]} if self.path else words

    def said_values(self) -> Iterator[str]:
        yield from (f"`{word}`" for word in self.known)
        if self.path:
            yield from self.path.said_values()


class FixedValue(ValueType[None]):
    """One value, True or a number. ``expected`` is what a message calls it."""

    def __init__(self, value: int, expected: str) -> None:
        self.value, self.expected = value, expected

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> None:
        if node.value != self.value or isinstance(node.value, bool) != isinstance(self.value, bool):
            reader.add_expected(node, path, self.expected)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return {"const": self.value}

    def said_values(self) -> Iterator[str]:
        yield f"`{self.value}`".lower()


class TrueOrFalse(ValueType["bool | None"]):
    """True or false."""

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        reader.add_expected(node, path, "true or false")
        return None

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return {"type": "boolean"}

    def said_values(self) -> Iterator[str]:
        yield "`true` or `false`"


class ScalarValue(ValueType[Scalar]):
    """A plain value: a text, a finite number, true, false or null. A document has no number below
    ``smallest`` or above ``largest``."""

    def __init__(self, smallest: int, largest: int, shared_as: str = "") -> None:
        self.smallest, self.largest, self.shared_as = smallest, largest, shared_as

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> Scalar:
        if not isinstance(node.value, (type(None), bool, int, float, str)):
            reader.add_expected(node, path, "a plain value")
            return None
        if isinstance(node.value, float) and not math.isfinite(node.value):
            reader.add_expected(node, path, "a finite number")
        return node.value

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        types = ["string", "number", "boolean", "null"]
        return {"type": types, "minimum": self.smallest, "maximum": self.largest}

    def said_values(self) -> Iterator[str]:
        yield "a text, a number, `true`, `false` or `null`"


class DurationValue(ValueType["float | bool | None"]):
    """Seconds above 0; or off, if ``never`` is False, or null, if it is None."""

    def __init__(self, never: bool | None) -> None:
        self.never = never

    @property
    def off_values(self) -> tuple[bool | None, ...]:
        return (self.never,)

    @property
    def _never_said(self) -> str:
        return "null" if self.never is None else "off"

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> float | bool | None:
        # YAML 1.1 reads off without quotes as false.
        value = False if self.never is False and node.value == "off" else node.value
        if value is self.never:
            return self.never
        expected = f"a number of seconds above 0, or {self._never_said}"
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            if value <= LONGEST_DURATION:
                return value
            expected = f"at most {LONGEST_DURATION} seconds"
        reader.add_expected(node, path, expected)
        return None

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        duration: JsonSchema = {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": LONGEST_DURATION,
            "description": "Seconds.",
        }
        never: JsonSchema = {"type": "null"} if self.never is None else {"enum": ["off", False]}
        return {"anyOf": [duration, never]}

    def said_values(self) -> Iterator[str]:
        yield from ("seconds", f"`{self._never_said}`")


class TextTuple(ValueType["tuple[str, ...]"]):
    """A text, or a list of them if there may be ``several``. What is no text is left out."""

    def __init__(self, item: ValueType[str], several: bool = True, shared_as: str = "") -> None:
        self.item, self.several, self.shared_as = item, several, shared_as

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> tuple[str, ...]:
        items = [(node, path)]
        if self.several and not isinstance(node.value, str):
            items = reader.list_items(node, path)
        read = [(self.item.read_value(reader, item, at), item) for item, at in items]
        return tuple(text for text, item in read if isinstance(item.value, str))

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        item = definitions.schema_of(self.item)
        return {"anyOf": [item, {"type": "array", "items": item}]} if self.several else item

    def said_values(self) -> Iterator[str]:
        yield from self.item.said_values()
        if self.several:
            yield "a list of these"


class FieldMapping(ValueType[T_co]):
    """A mapping with some keys, of which *build* makes a value.

    ``elsewhere`` has names that are no keys here, but below the key that it gives for them.
    ``limits`` are keywords of JSON Schema.
    """

    def __init__(
        self,
        keys: tuple[MappingKey[object], ...],
        build: Callable[[GivenFields], T_co],
        required: tuple[str, ...] = (),
        elsewhere: Mapping[str, str] = _NOTHING,
        limits: Mapping[str, object] = _NOTHING,
    ) -> None:
        self.keys, self.build, self.required = keys, build, required
        self.elsewhere, self.limits = elsewhere, limits
        self._names = tuple(key.name for key in keys)

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> T_co:
        given = GivenFields(reader, path, (), node)
        nodes = reader.read_fields(node, path, self._names, self.required, self.elsewhere)
        given.read_fields(self.keys, nodes)
        return self.build(given)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        required = {"required": [*self.required]} if self.required else {}
        return mapping_schema(self.keys, definitions, **required, **self.limits)

    def said_values(self) -> Iterator[str]:
        yield "a mapping"

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        yield path, self.keys
        for key in self.keys:
            yield from key.type.key_tables(f"{path}.{key.name}" if path else key.name)


class ListOf(ValueType["tuple[T_co, ...]"]):
    """A list."""

    def __init__(self, item: ValueType[T_co]) -> None:
        self.item = item

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> tuple[T_co, ...]:
        items = reader.list_items(node, path)
        return tuple(self.item.read_value(reader, item, at) for item, at in items)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return {"type": "array", "items": definitions.schema_of(self.item)}

    def said_values(self) -> Iterator[str]:
        yield "a list of these"

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        return self.item.key_tables(path)


# Entries


class EntryType(ValueType["tuple[R_co, ...]"], Generic[R_co]):
    """What a section of a policy may have, or a part of it: it gives any number of entries."""

    # Of an entry that is a mapping, its keys.
    keys: tuple[MappingKey[object], ...] = ()

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        """The entries of a node: *names* lead to it, the section's first. Each has a *place*."""
        raise NotImplementedError

    def read_value(self, reader: PolicyReader, node: Node, path: str) -> tuple[R_co, ...]:
        return tuple(self.read_entries(reader, node, path, (), node))

    def known_names(self, name: str) -> Iterator[str]:
        """The names of entries that are known, below *name*."""
        yield name

    def said_values(self) -> Iterator[str]:
        yield "a mapping"

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        if self.keys:
            yield path, self.keys


class PolicySection(MappingKey["tuple[R_co, ...]"], Generic[R_co]):
    """A key of a policy that has entries."""

    type: EntryType[R_co]

    def read_key(self, reader: PolicyReader, node: Node, path: str) -> tuple[R_co, ...]:
        return tuple(self.type.read_entries(reader, node, path, (self.name,), node))


class AlternativeEntries(EntryType[R_co]):
    """An entry, or a list of entries of which the last one that holds counts."""

    def __init__(self, entry: EntryType[R_co], shared_as: str = "") -> None:
        self.entry, self.shared_as = entry, shared_as

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        if not isinstance(node.value, list):
            yield from self.entry.read_entries(reader, node, path, names, place)
            return
        if not 0 < len(node.value) <= MOST_ALTERNATIVES:
            message = f"expected 1 to {MOST_ALTERNATIVES} alternatives, found {len(node.value)}"
            reader.add_problem(node, path, message)
        for item, at in reader.list_items(node, path)[:MOST_ALTERNATIVES]:
            yield from self.entry.read_entries(reader, item, at, names, item)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        entry = definitions.schema_of(self.entry)
        limits = {"minItems": 1, "maxItems": MOST_ALTERNATIVES}
        return {"anyOf": [entry, {"type": "array", "items": entry, **limits}]}

    def said_values(self) -> Iterator[str]:
        yield from self.entry.said_values()
        yield "a list of these"

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        return self.entry.key_tables(path)

    def known_names(self, name: str) -> Iterator[str]:
        return self.entry.known_names(name)


class ShortEntries(EntryType[R_co]):
    """Entries without names: one in its short form, or a list of entries."""

    def __init__(self, entry: ShortEntry[R_co]) -> None:
        self.entry = entry

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        one = isinstance(node.value, str)
        for item, at in [(node, path)] if one else reader.list_items(node, path):
            yield from self.entry.read_entries(reader, item, at, names, item)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        many = {"type": "array", "items": definitions.schema_of(self.entry)}
        return {"anyOf": [definitions.schema_of(self.entry.short.type), many]}

    def said_values(self) -> Iterator[str]:
        yield from self.entry.short.type.said_values()
        yield "a list of these"

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        return self.entry.key_tables(path)


class NamedEntries(EntryType[R_co]):
    """A mapping whose names are not keys: any names, or those *known*, each with the same type.

    The page of keys writes ``stands_for`` for a name. ``objections`` says what is wrong with one,
    and ``name_limits`` says it in keywords of JSON Schema. ``unknown`` is what a message says of
    one that is not known, which is then read but left out. ``sentence`` says what each has.
    """

    def __init__(
        self,
        stands_for: str,
        entry: EntryType[R_co],
        objections: Callable[[str], Iterable[str]] | None = None,
        name_limits: Mapping[str, object] = _NOTHING,
        known: tuple[str, ...] = (),
        unknown: str = "",
        sentence: str = "",
        shared_as: str = "",
    ) -> None:
        self.stands_for, self.entry, self.objections = stands_for, entry, objections
        self.name_limits, self.known, self.unknown = name_limits, known, unknown
        self.sentence, self.shared_as = sentence, shared_as

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        for name, key_node, value, at in reader.read_mapping(node, path):
            is_known = not self.known or name in self.known
            if not is_known:
                reader.add_unknown_name(key_node, at, self.unknown, name, self.known)
            for objection in self.objections(name) if self.objections else ():
                reader.add_problem(key_node, at, objection)
            read = self.entry.read_entries(reader, value, at, (*names, name), key_node)
            yield from [*read] if is_known else [*read][:0]

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        entry = definitions.schema_of(self.entry)
        if self.sentence:
            entry = {"description": self.sentence, **entry}
        if self.known:
            names = dict.fromkeys(self.known, entry)
            return {"type": "object", "properties": names, "additionalProperties": False}
        limits = {"propertyNames": {**self.name_limits}} if self.name_limits else {}
        return {"type": "object", **limits, "additionalProperties": entry}

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        return self.entry.key_tables(f"{path}.{self.stands_for}")

    def known_names(self, name: str) -> Iterator[str]:
        # Below names that a user chooses nothing is known, and a name above others is no entry's.
        yield from () if isinstance(self.entry, NamedEntries) else self.known


class KeyedEntries(EntryType[R_co]):
    """A mapping of which each name has a type of its own.

    ``unknown`` is what a message says of another name, which is then read as ``other`` but left
    out.
    """

    def __init__(
        self, sections: tuple[PolicySection[R_co], ...], unknown: str, other: EntryType[R_co]
    ) -> None:
        self.sections, self.unknown, self.other = sections, unknown, other

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        types = {section.name: section.type for section in self.sections}
        for name, key_node, value, at in reader.read_mapping(node, path):
            if name not in types:
                reader.add_unknown_name(key_node, at, self.unknown, name, types)
            entry = types.get(name, self.other)
            read = entry.read_entries(reader, value, at, (*names, name), key_node)
            yield from [*read] if name in types else [*read][:0]

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        return mapping_schema(self.sections, definitions)

    def key_tables(self, path: str) -> Iterator[tuple[str, tuple[MappingKey[object], ...]]]:
        yield path, self.sections
        for section in self.sections:
            yield from section.type.key_tables(f"{path}.{section.name}")

    def known_names(self, name: str) -> Iterator[str]:
        for section in self.sections:
            yield from section.type.known_names(section.name)


class KindEntry(EntryType[R_co]):
    """A mapping with exactly one of the keys *kinds*, and any of *more*.

    Of two keys that are ``contradictory``, not both may be true.
    """

    def __init__(
        self,
        kinds: tuple[MappingKey[object], ...],
        more: tuple[MappingKey[object], ...],
        build: Callable[[GivenFields], R_co],
        contradictory: tuple[MappingKey[bool | None], ...] = (),
        shared_as: str = "",
    ) -> None:
        self.kinds, self.more, self.build = kinds, more, build
        self.contradictory, self.shared_as = contradictory, shared_as
        self.keys = (*kinds, *more)
        self._kinds = tuple(key.name for key in kinds)
        self._names = tuple(key.name for key in self.keys)

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        given = GivenFields(reader, path, names, place)
        fields = reader.read_fields(node, path, self._names)
        found = [kind for kind in self._kinds if kind in fields]
        if len(found) == 1:
            given.kind = found[0]
        elif isinstance(node.value, dict) and (found or not set(node.value) - set(self._names)):
            words = ", ".join(self._kinds)
            message = f"only one of {words} is allowed, found {' and '.join(found)}"
            reader.add_problem(node, path, message if found else f"one of {words} is missing")
        given.read_fields(self.keys if given.kind else self.more, fields)
        if self.contradictory and all(map(given.value_of, self.contradictory)):
            first, second = self.contradictory
            given.add_problem(second.name, f"contradicts {first.name}")
        yield self.build(given)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        more: JsonSchema = {"oneOf": [{"required": [key.name]} for key in self.kinds]}
        fit = {
            key.name: [kind.name for kind in self.kinds if kind.name not in key.excluded]
            for key in self.more
            if key.excluded
        }
        if fit:
            more["dependentSchemas"] = {
                name: {"anyOf": [{"required": [kind]} for kind in kinds]}
                for name, kinds in fit.items()
            }
        if self.contradictory:
            both = [key.name for key in self.contradictory]
            true = {key: {"const": True} for key in both}
            more["not"] = {"properties": true, "required": both}
        return mapping_schema(self.keys, definitions, **more)


class ShortEntry(EntryType[R_co]):
    """What the key *short* may have, or a mapping with this key and any of *more*."""

    def __init__(
        self,
        short: MappingKey[str],
        more: tuple[MappingKey[object], ...],
        build: Callable[[GivenFields], R_co],
        shared_as: str = "",
    ) -> None:
        self.short, self.build, self.shared_as = short, build, shared_as
        self.keys = (short, *more)
        self._names = tuple(key.name for key in self.keys)

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        given = GivenFields(reader, path, names, place)
        if isinstance(node.value, dict):
            fields = reader.read_fields(node, path, self._names, (self.short.name,))
            given.read_fields(self.keys, fields)
        else:
            given.read_at(self.short, node, path)
        yield self.build(given)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        mapping = mapping_schema(self.keys, definitions, required=[self.short.name])
        return {"anyOf": [definitions.schema_of(self.short.type), mapping]}

    def said_values(self) -> Iterator[str]:
        yield from self.short.type.said_values()
        yield "a mapping"


class SettingsEntry(EntryType[R_co]):
    """``off``, or a mapping with at least one of *settings*, and any of *more*.

    *build* gets the fields, the name of a setting, its value and the node of its key.
    """

    def __init__(
        self,
        settings: tuple[MappingKey[float | bool | None], ...],
        more: tuple[MappingKey[object], ...],
        build: Callable[[GivenFields, str, float | bool | None, Node], R_co],
        shared_as: str = "",
    ) -> None:
        self.settings, self.build, self.shared_as = settings, build, shared_as
        self.keys = (*settings, *more)
        self._names = tuple(key.name for key in self.keys)

    def read_entries(
        self, reader: PolicyReader, node: Node, path: str, names: tuple[str, ...], place: Node
    ) -> Iterator[R_co]:
        given = GivenFields(reader, path, names, place)
        if node.value is False or node.value == "off":
            for key in self.settings:
                for value in key.type.off_values:
                    yield self.build(given, key.name, value, place)
            return
        said = ", ".join(key.name for key in self.settings)
        if not isinstance(node.value, dict):
            message = f"expected off, or a mapping with {said}; found {describe_value(node)}"
            reader.add_problem(node, path, message)
            return
        fields = reader.read_fields(node, path, self._names)
        read = [key for key in self.settings if key.name in fields]
        if not read and set(node.value) == set(fields):
            reader.add_problem(node, path, f"one of {said} is missing")
        given.read_fields(self.keys, fields)
        for key in read:
            place = node.value[key.name].key
            yield self.build(given, key.name, given.value_of(key), place)

    def json_schema(self, definitions: SchemaDefinitions) -> JsonSchema:
        one = [{"required": [key.name]} for key in self.settings]
        mapping = mapping_schema(self.keys, definitions, anyOf=one)
        return {"anyOf": [{"enum": ["off", False]}, mapping]}

    def said_values(self) -> Iterator[str]:
        yield from ("`off`", "a mapping")

    def known_names(self, name: str) -> Iterator[str]:
        yield name
        yield from (f"{name}.{key.name}" for key in self.settings)


def describe_value(node: Node) -> str:
    """A node's value, as a message names it."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, str):
        return quoted(node.value)
    return str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
