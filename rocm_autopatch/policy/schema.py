"""Schema version 1 of a policy file and of images.yaml: which keys they may have, and a reader.

A reader collects every problem it meets instead of stopping at the first.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from rocm_autopatch import patches, startup
from rocm_autopatch.evidence import SUBJECTS
from rocm_autopatch.patches import compile_modes, config
from rocm_autopatch.policy import when
from rocm_autopatch.policy.document import WRONG, Node
from rocm_autopatch.policy.model import (
    DELETE_EMPTY,
    CacheRule,
    ConfigEntry,
    EnvRule,
    Issue,
    ModeRule,
    PatchRule,
    Policy,
    Range,
    Setting,
)
from rocm_autopatch.policy.problem import Hint, Problem, Problems, collected, quoted
from rocm_autopatch.policy.settings import KINDS, Unfit
from rocm_autopatch.policy.when import Conditions

VERSION = 1
ENV_ACTIONS = ("delete", "default", "set", DELETE_EMPTY)
# For a delete or a set: whether it overrides a user's value, and whether it needs a baseline.
ENV_FLAGS = ("insist", "image_only")
STRENGTHS = ("default", "set", "pin")
# The parts of a policy that change something.
_ENTRIES = ("env", "config", "compile_modes", "patches", "caches")
# What ``caches`` may be besides the path of a root.
CACHES = ("on", "off")
# What every entry may carry.
COMMON = ("since", "until", *when.SETS, "no_trial", "why")
# Where an entry stands, a list of as many alternatives may stand.
MOST_ALTERNATIVES = 20
# What a policy may set under ``patches``: by patch, its settings.
SETTINGS: dict[str, dict[str, Any]] = {
    name: patches.load(name).SETTINGS for name in patches.NAMES if patches.load(name).SETTINGS
}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Linux starts no program where one variable takes more than 128 KiB (MAX_ARG_STRLEN in execve(2)),
# or where arguments and environment together do: of that, a policy gets a part.
LONGEST_VALUE = 32 << 10
# Inductor and Triton put some 150 bytes below it, and a path has up to 4,096 (PATH_MAX).
LONGEST_ROOT = 1024
RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,4}")


def read_policy(root: Node, file: str, name: str, problems: Problems | None = None) -> Policy:
    """The policy in a document; *name* where the document gives none.

    Without *problems* to add to, raises PolicyError.
    """
    with collected(problems) as found:
        return _Reader(file, found).policy(root, name, "", ("version", "name", "extends"))


def read_images(root: Node, file: str, problems: Problems | None = None) -> tuple[Policy, ...]:
    """The rows of an images file, general to specific as they stand there.

    Without *problems* to add to, raises PolicyError.
    """
    with collected(problems) as found:
        reader = _Reader(file, found)
        fields = reader.fields(root, "", ("version", "images"), required=("version", "images"))
        if "version" in fields:
            reader.version(fields["version"], "version")
        rows = reader.items(fields["images"], "images") if "images" in fields else ()
        return tuple(reader.image(node, path) for node, path in rows)


class _Reader:
    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = problems
        # The number of problems, including those that the reader of the document reported
        self.wrong = 0

    def problem(self, node: Node, path: str, message: str, hint: Hint | None = None) -> None:
        self.wrong += 1
        if node.value is not WRONG:
            self.problems.add(Problem(self.file, node.line, node.column, path, message), hint)

    # Kinds of value

    def mapping(self, node: Node, path: str) -> Iterable[tuple[str, Node, Node, str]]:
        """Key, the key's node, value's node and path of each entry."""
        if not isinstance(node.value, dict):
            self.problem(node, path, f"expected a mapping, found {_found(node)}")
            return
        for key, entry in node.value.items():
            yield key, entry.key, entry.node, f"{path}.{key}" if path else key

    def fields(
        self, node: Node, path: str, known: Iterable[str], required: Iterable[str] = ()
    ) -> dict[str, Node]:
        known = tuple(known)
        fields = {}
        for key, key_node, value, inner in self.mapping(node, path):
            if key in known:
                fields[key] = value
            elif key in SETTINGS and "patches" in known:
                self.problem(key_node, inner, "unknown key here: it belongs under patches")
            else:
                self.problem(key_node, inner, "unknown key", _instead(key, known))
        if isinstance(node.value, dict):
            for key in required:
                if key not in node.value:
                    self.problem(node, path, f"{key} is missing")
        return fields

    def items(self, node: Node, path: str) -> list[tuple[Node, str]]:
        if not isinstance(node.value, list):
            self.problem(node, path, f"expected a list, found {_found(node)}")
            return []
        return [(item, f"{path}[{number}]") for number, item in enumerate(node.value)]

    def text(self, node: Node, path: str) -> str:
        if isinstance(node.value, str):
            return node.value
        self.problem(node, path, f"expected a text, found {_found(node)}{_quote(node)}")
        return ""

    def texts(self, node: Node, path: str) -> tuple[str, ...]:
        """A list of texts, or one text."""
        if isinstance(node.value, str):
            return (node.value,)
        items = self.items(node, path)
        texts = [self.text(item, inner) for item, inner in items]
        return tuple(text for text, (item, _) in zip(texts, items) if isinstance(item.value, str))

    def choice(
        self, node: Node, path: str, known: Iterable[str], more: tuple[str, ...] = ()
    ) -> str:
        """One of the words *known*. *more* is what else may stand there, for the message."""
        known = tuple(known)
        text = self.text(node, path)
        if text and text not in known:
            message = f"{quoted(text)} is not one of {', '.join((*known, *more))}"
            self.problem(node, path, message, _instead(text, known))
        return text

    def version(self, node: Node, path: str) -> None:
        if node.value != VERSION or isinstance(node.value, bool):
            self.problem(
                node,
                path,
                f"expected {VERSION}, the schema that this release reads, found {_found(node)}",
            )

    def one_of(
        self, node: Node, path: str, kinds: tuple[str, ...], more: tuple[str, ...]
    ) -> tuple[str, Node, dict[str, Node]]:
        """The one of *kinds* that an entry has, its node, and the other fields."""
        fields = self.fields(node, path, kinds + more)
        given = [kind for kind in kinds if kind in fields]
        if len(given) == 1:
            return given[0], fields[given[0]], fields
        if isinstance(node.value, dict) and not (set(node.value) - set(kinds + more) and not given):
            known = ", ".join(kinds)
            message = f"only one of {known} is allowed, found {' and '.join(given)}"
            self.problem(node, path, message if given else f"one of {known} is missing")
        return "", node, fields

    # Parts of a policy

    def policy(self, node: Node, name: str, path: str, head: tuple[str, ...]) -> Policy:
        body: dict[str, Callable[[Node, str], Any]] = {
            "env": self.env,
            "config": self.config,
            "compile_modes": self.modes,
            "patches": self.patches,
            "caches": self.caches,
            "known_issues": self.issues,
            "when": self.when,
            "extends": self.texts,
            "sets": self.sets,
            **dict.fromkeys(("name", "description", "image", "policy"), self.text),
        }
        known = (*head, "description", "when", *_ENTRIES, "known_issues")
        fields = self.fields(node, path, known, ("version",) if "version" in head else ())
        inner = {key: f"{path}.{key}" if path else key for key in fields}
        if "version" in fields:
            self.version(fields["version"], inner["version"])
        read = {key: body[key](fields[key], inner[key]) for key in fields if key in body}
        if "policy" in read:
            read["base"] = read.pop("policy")
        return Policy(**{"name": name, "file": self.file, **read}, places=fields)

    def image(self, node: Node, path: str) -> Policy:
        row = self.policy(node, "", path, ("name", "image", "policy", "sets"))
        if isinstance(node.value, dict):
            if not ("image" in row.places or "when" in row.places):
                self.problem(node, path, "image or when is missing")
            if not ("image" in row.places or "name" in row.places):
                self.problem(node, path, "name is missing")
        return replace(row, name=row.name or row.image)

    def sets(self, node: Node, path: str) -> tuple[Setting, ...]:
        settings = []
        for name, key_node, entry, inner in self.mapping(node, path):
            if not VARIABLE.fullmatch(name):
                self.problem(key_node, inner, "not a valid name of an environment variable")
            fields = {"value": entry}
            if isinstance(entry.value, dict):
                fields = self.fields(entry, inner, ("value", "why"), required=("value",))
            given = fields.get("value")
            value = self.text(given, inner if given is entry else f"{inner}.value") if given else ""
            settings.append(Setting(name, value, self.why(fields, inner)))
        return tuple(settings)

    def issues(self, node: Node, path: str) -> tuple[Issue, ...]:
        if isinstance(node.value, str):
            return (Issue(node.value),)
        issues = []
        for item, inner in self.items(node, path):
            if not isinstance(item.value, dict):
                issues.append(Issue(self.text(item, inner)))
                continue
            known = ("issue", "source", "mitigation")
            fields = self.fields(item, inner, known, required=("issue",))
            texts = [
                self.text(fields[key], f"{inner}.{key}") if key in fields else "" for key in known
            ]
            issues.append(Issue(*texts))
        return tuple(issues)

    def when(self, node: Node, path: str) -> Conditions:
        return self.conditions(self.fields(node, path, when.NAMES), path, when.NAMES)

    def conditions(
        self, fields: dict[str, Node], path: str, names: tuple[str, ...]
    ) -> dict[str, tuple[str, ...]]:
        conditions = {}
        for name in names:
            if name not in fields:
                continue
            given = fields[name]
            inner = f"{path}.{name}"
            texts = [(given, inner)]
            if name not in when.RANGES and not isinstance(given.value, str):
                texts = self.items(given, inner)
            for item, at in texts:
                if name in when.SETS:
                    self.choice(item, at, SUBJECTS)
                    continue
                text = self.text(item, at)
                problem = when.problem(name, text) if text else ""
                if problem:
                    self.problem(item, at, problem)
            conditions[name] = tuple(item.value for item, _ in texts if isinstance(item.value, str))
        return conditions

    def alternatives(self, node: Node, path: str, place: Node) -> list[tuple[Node, str, Node]]:
        """Each entry that stands where one may, its path and its place."""
        if not isinstance(node.value, list):
            return [(node, path, place)]
        if not 0 < len(node.value) <= MOST_ALTERNATIVES:
            message = f"expected 1 to {MOST_ALTERNATIVES} alternatives, found {len(node.value)}"
            self.problem(node, path, message)
        items = self.items(node, path)[:MOST_ALTERNATIVES]
        return [(item, inner, item) for item, inner in items]

    def common(self, fields: dict[str, Node], path: str) -> dict[str, Any]:
        """The fields of model.Common."""
        return {
            "range": self.range(fields, path),
            "why": self.why(fields, path),
            "needs": self.conditions(fields, path, when.SETS),
            "no_trial": self.prose(fields, path, "no_trial"),
        }

    def why(self, fields: dict[str, Node], path: str) -> str:
        return self.prose(fields, path, "why")

    def prose(self, fields: dict[str, Node], path: str, key: str) -> str:
        return " ".join(self.text(fields[key], f"{path}.{key}").split()) if key in fields else ""

    def range(self, fields: dict[str, Node], path: str) -> Range:
        since, until = (
            self.release(fields[key], f"{path}.{key}") if key in fields else ()
            for key in ("since", "until")
        )
        if since and until and until <= since:
            self.problem(
                fields["until"],
                f"{path}.until",
                "until must be later than since: this entry is for no torch",
            )
        return since, until

    def release(self, node: Node, path: str) -> tuple[int, ...]:
        text = self.text(node, path)
        if text and not RELEASE.fullmatch(text):
            self.problem(node, path, f"{quoted(text)} is not a torch release such as '2.6'")
            return ()
        return startup.release(text) if text else ()

    def variable(self, fields: dict[str, Node], key: str, path: str) -> str:
        if key not in fields:
            return ""
        name = self.text(fields[key], f"{path}.{key}")
        if name and not VARIABLE.fullmatch(name):
            self.problem(
                fields[key], f"{path}.{key}", "not a valid name of an environment variable"
            )
        return name

    def flag(self, key: str, fields: dict[str, Node], path: str, unfit: str) -> bool:
        """A field that is true or false. *unfit* is why this entry can't have it, "" if it can."""
        given = fields.get(key)
        if given and not isinstance(given.value, bool):
            message = f"expected true or false, found {_found(given)}"
            self.problem(given, f"{path}.{key}", message)
        elif given and unfit:
            self.problem(given, f"{path}.{key}", unfit)
        return given is not None and given.value is True

    def env(self, node: Node, path: str) -> tuple[EnvRule, ...]:
        rules = []
        for name, key_node, value, inner in self.mapping(node, path):
            if not VARIABLE.fullmatch(name):
                self.problem(key_node, inner, "not a valid name of an environment variable")
            if name.startswith("ROCM_AUTOPATCH"):
                self.problem(
                    key_node, inner, "a policy can't change rocm_autopatch's own variables"
                )
            for entry, at, place in self.alternatives(value, inner, key_node):
                rules.append(self.variable_rule(name, entry, at, place))
        return tuple(rules)

    def variable_rule(self, name: str, entry: Node, path: str, place: Node) -> EnvRule:
        action, value, fields = self.one_of(entry, path, ENV_ACTIONS, (*ENV_FLAGS, *COMMON))
        text: str | None = None
        if action in ("delete", DELETE_EMPTY):
            if value.value is not True:
                self.problem(value, f"{path}.{action}", f"expected true, found {_found(value)}")
        elif action:
            text = self.text(value, f"{path}.{action}")
            if text == "" and isinstance(value.value, str):
                self.problem(
                    value,
                    f"{path}.{action}",
                    "an empty value crashes some torch versions: write delete: true",
                )
            if len(text.encode()) > LONGEST_VALUE:
                self.problem(
                    value,
                    f"{path}.{action}",
                    f"a value of more than {LONGEST_VALUE} bytes: Linux starts no program with "
                    "a much longer one",
                )
        unfit = {
            "default": "no effect here: a default never replaces a value that is set",
            DELETE_EMPTY: "no effect here: the empty text is deleted, whoever set it",
        }
        insist, image_only = (
            self.flag(flag, fields, path, unfit.get(action, "")) for flag in ENV_FLAGS
        )
        if insist and image_only:
            self.problem(fields["image_only"], f"{path}.image_only", "contradicts insist")
        return EnvRule(
            **self.common(fields, path),
            name=name,
            action=action,
            value=text,
            insist=insist,
            image_only=image_only,
            place=place,
        )

    def config(self, node: Node, path: str) -> tuple[ConfigEntry, ...]:
        entries = []
        for module, key_node, keys, inner in self.mapping(node, path):
            if module not in config.TARGETS:
                message = f"not one of the config modules {', '.join(config.TARGETS)}"
                self.problem(key_node, inner, message, _instead(module, config.TARGETS))
            for key, at_node, value, at in self.mapping(keys, inner):
                for entry, one, place in self.alternatives(value, at, at_node):
                    read = self.config_entry(module, key, entry, one, place)
                    if module in config.TARGETS:
                        entries.append(read)
        return tuple(entries)

    def config_entry(
        self, module: str, key: str, entry: Node, path: str, place: Node
    ) -> ConfigEntry:
        before = self.wrong
        strength, value, fields = self.one_of(
            entry, path, STRENGTHS, ("yields_to", "switch", "insist", *COMMON)
        )
        plain = isinstance(value.value, (type(None), bool, int, float, str))
        if strength and not (plain and _is_finite(value.value)):
            expected = "a finite number" if plain else "a plain value"
            message = f"expected {expected}, found {_found(value)}"
            self.problem(value, f"{path}.{strength}", message)
        yields_to = self.variable(fields, "yields_to", path)
        if yields_to and strength and strength != "default":
            message = f"only a default can have yields_to, this is a {strength}"
            self.problem(fields["yields_to"], f"{path}.yields_to", message)
        switch = self.variable(fields, "switch", path)
        if switch and not isinstance(value.value, (bool, int, float, str)):
            message = "a switch needs a value that is a boolean, a number or a text"
            self.problem(fields["switch"], f"{path}.switch", message)
        unfit = f"only a pin can have insist, this is a {strength}"
        insist = self.flag("insist", fields, path, unfit if strength not in ("", "pin") else "")
        return ConfigEntry(
            **self.common(fields, path),
            module=module,
            key=key,
            strength=strength,
            value=value.value,
            yields_to=yields_to,
            switch=switch,
            insist=insist,
            place=place,
            sound=self.wrong == before,
        )

    def modes(self, node: Node, path: str) -> tuple[ModeRule, ...]:
        rules = []
        for mode, key_node, value, inner in self.mapping(node, path):
            if mode not in compile_modes.MODES:
                message = f"not a mode of torch.compile, which has {', '.join(compile_modes.MODES)}"
                self.problem(key_node, inner, message, _instead(mode, compile_modes.MODES))
            for entry, at, place in self.alternatives(value, inner, key_node):
                use, common = self.use(entry, at, compile_modes.USES)
                rules.append(ModeRule(**common, mode=mode, use=use, place=place))
        return tuple(rules)

    def patches(self, node: Node, path: str) -> tuple[PatchRule, ...]:
        rules = []
        for patch, key_node, value, inner in self.mapping(node, path):
            settings = SETTINGS.get(patch, {})
            if not settings:
                known = ", ".join(SETTINGS)
                message = f"not a patch that a policy can set; those are {known}"
                self.problem(key_node, inner, message, _instead(patch, SETTINGS))
            for entry, at, place in self.alternatives(value, inner, key_node):
                if patch in settings or not settings:
                    use, common = self.use(entry, at, settings.get(patch))
                    rules.append(PatchRule(**common, patch=patch, use=use, place=place))
                else:
                    rules += self.settings(patch, entry, at, place)
        return tuple(rules)

    def caches(self, node: Node, path: str) -> tuple[CacheRule, ...]:
        rules = []
        for entry, at, place in self.alternatives(node, path, node):
            use, common = self.use(entry, at, CACHES, path_too=True)
            rules.append(CacheRule(**common, use=use, place=place))
        return tuple(rules)

    def settings(self, patch: str, entry: Node, path: str, place: Node) -> list[PatchRule]:
        """``{FIELD: VALUE, ...}`` of a patch that has several settings, or ``off``."""
        kinds = {name.partition(".")[2]: KINDS[kind] for name, kind in SETTINGS[patch].items()}
        if entry.value is False or entry.value == "off":
            return [
                PatchRule(**self.common({}, path), patch=f"{patch}.{key}", use=value, place=place)
                for key, kind in kinds.items()
                for value in kind.off
            ]
        if not isinstance(entry.value, dict):
            message = f"expected off, or a mapping with {', '.join(kinds)}; found {_found(entry)}"
            self.problem(entry, path, message)
            return []
        fields = self.fields(entry, path, (*kinds, *COMMON))
        given = [key for key in kinds if key in fields]
        if not given and not set(entry.value) - set(COMMON):
            self.problem(entry, path, f"one of {', '.join(kinds)} is missing")
        common = self.common(fields, path)
        rules = []
        for key in given:
            value = None
            try:
                value = kinds[key].read(fields[key].value)
            except Unfit as error:
                message = f"expected {error}, found {_found(fields[key])}"
                self.problem(fields[key], f"{path}.{key}", message)
            key_node = entry.value[key].key
            rules.append(PatchRule(**common, patch=f"{patch}.{key}", use=value, place=key_node))
        return rules

    def use(
        self, entry: Node, path: str, known: tuple[str, ...] | None, path_too: bool = False
    ) -> tuple[str, dict[str, Any]]:
        """What ``WORD`` or ``{use: WORD}`` uses, and the fields of model.Common.

        If *path_too*, an absolute path is as good as a word.
        """
        fields = {"use": entry}
        if isinstance(entry.value, dict):
            fields = self.fields(entry, path, ("use", *COMMON), required=("use",))
        given = fields.get("use")
        use = ""
        if given:
            at = path if given is entry else f"{path}.use"
            if isinstance(given.value, bool) and known:
                # So YAML 1.1 reads these words without quotes.
                word = "on" if given.value else "off"
                given = replace(given, value=word) if word in known else given
            if path_too and isinstance(given.value, str) and "/" in given.value:
                use = self.root(given, at)
            else:
                more = ("the absolute path of a root",) if path_too else ()
                use = self.choice(given, at, known, more) if known else self.text(given, at)
        return use, self.common(fields, path)

    def root(self, node: Node, path: str) -> str:
        """The absolute path of a directory."""
        text = self.text(node, path)
        if not text.startswith("/") or "\0" in text or len(text.encode()) > LONGEST_ROOT:
            message = f"expected an absolute path of at most {LONGEST_ROOT} bytes"
            self.problem(node, path, f"{message}, found {_found(node)}")
        return text


def _found(node: Node) -> str:
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, str):
        return quoted(node.value)
    return str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _quote(node: Node) -> str:
    return ": put it in quotes" if isinstance(node.value, (bool, int, float)) else ""


def _instead(word: str, known: Iterable[str]) -> Hint:
    return partial(_similar, word, tuple(known))


def _similar(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]}?" if close else ""
