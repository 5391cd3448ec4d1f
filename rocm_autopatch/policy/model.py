"""What a policy is: its entries, as they were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rocm_autopatch.policy.document import Node
from rocm_autopatch.policy.when import Conditions

DELETE_EMPTY = "delete_empty"
# Torch versions that an entry is for: from the first, before the second; () is open.
Range = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Common:
    """What every entry may carry.

    It holds only for the torch versions of ``range``, and where evidence has what it ``needs``.
    ``no_trial`` says why no trial can be about it. Several entries of one name in one policy are
    alternatives: of those that hold, the last one counts.
    """

    range: Range
    why: str
    needs: Conditions
    no_trial: str
    place: Node = field(compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What it is about: entries of one policy with the same names are alternatives."""
        raise NotImplementedError


@dataclass(frozen=True)
class EnvRule(Common):
    """``NAME: {delete: true}``, ``{default: TEXT}``, ``{set: TEXT}`` or ``{delete_empty: true}``.

    The last deletes the variable only if its value is the empty text, whoever gave it. It stands
    beside rules of the other kinds, and is no alternative to them.
    With ``insist`` it overrides a value that a user gave, too. With ``image_only`` it changes a
    value only if a baseline says that the image sets it.
    """

    name: str
    action: str
    value: str | None
    insist: bool
    image_only: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.action) if self.action == DELETE_EMPTY else (self.name,)


@dataclass(frozen=True)
class ConfigEntry(Common):
    """``KEY: {default: VALUE}``, ``{set: VALUE}`` or ``{pin: VALUE}`` of a config module.

    With ``insist`` a pin takes the place of another layer's pin below it, which otherwise is an
    error. It is not ``sound`` where something is wrong with it but its key, which then can still be
    looked up.
    """

    module: str
    key: str
    strength: str
    value: Any
    yields_to: str
    switch: str
    insist: bool
    sound: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return self.module, self.key


@dataclass(frozen=True)
class UseRule(Common):
    """``NAME: USE`` or ``NAME: {use: USE}`` in a section, or ``SECTION: USE`` without a name.

    In ``compile_modes``, the name is a mode and ``use`` what it stands for. In ``patches`` it is a
    patch, or ``PATCH.FIELD`` if the patch has several settings. In ``caches``, ``use`` is on, off,
    or the path of the root of all caches.
    """

    section: str
    name: str
    use: str | float | bool | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class Issue:
    """Something known to be wrong. ``mitigation`` is the name of a policy against it, or ""."""

    text: str
    source: str = ""
    mitigation: str = ""


@dataclass(frozen=True)
class Setting:
    """A variable that an image sets: its value, and since when, by what evidence."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Policy:
    """A policy as written, before its bases are put under it.

    ``extends`` is None where it is not given: the policy then goes on top of what a place chooses
    by itself. The row of an images file is a policy too; ``image``, ``base`` and ``sets`` are its.
    ``entries`` has those of each section, by its name (``grammar.SECTIONS``).
    """

    name: str
    file: str
    description: str = ""
    extends: tuple[str, ...] | None = None
    when: Conditions = field(default_factory=dict)
    entries: Mapping[str, tuple[Common, ...]] = field(default_factory=dict)
    known_issues: tuple[Issue, ...] = ()
    image: str = ""
    base: str = ""
    sets: tuple[Setting, ...] = ()
    places: dict[str, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def env(self) -> tuple[EnvRule, ...]:
        """The rules of environment variables."""
        return cast("tuple[EnvRule, ...]", self.entries.get("env", ()))

    @property
    def config(self) -> tuple[ConfigEntry, ...]:
        """The values of config keys."""
        return cast("tuple[ConfigEntry, ...]", self.entries.get("config", ()))

    @property
    def uses(self) -> Iterator[UseRule]:
        """What the other sections use."""
        for entries in self.entries.values():
            yield from (entry for entry in entries if isinstance(entry, UseRule))

    @property
    def changes(self) -> bool:
        """Whether it has an entry that changes anything by itself."""
        return any(self.entries.values())
