"""Values of torch's config modules, in three strengths that mean the same from 2.4 to 2.15.

- ``default``: what a program reads if nothing else sets the key. A program's write, ``mode=``,
  ``options=`` and the environment variable named in ``yields_to`` still win.
- ``set``: written once, like a write in a program's first line. Later writes win.
- ``pin``: no write changes it, in any thread. refused_writes.py records who writes.

A config module (torch/utils/_config_module.py) is changed through its entries, never through its
attributes alone. Since 2.12 only one thread sees a write to an attribute (pytorch#118387), and
``patch()``, ``load_config`` and ``_make_closure_patcher`` bypass ``__setattr__`` on some versions.
On 2.6 and later an entry's ``env_value_force`` is read before all other values. 2.4 and 2.5 have a
plain dict of values instead of entries: it is replaced by a dict that refuses writes. On 2.15 and
later a key may imply another one, ahead of all of the other one's own values. So a pin of the other
one refuses those values of the first that would imply something else.
"""

import contextlib
import contextvars
import functools
import os
import sys
import types
import typing

from rocm_autopatch import failure
from rocm_autopatch.patches import kept, row
from rocm_autopatch.patches.config import refused_writes
from rocm_autopatch.startup import cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import ConfigEntry, ConfigModule, Implication
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import ConfigRow

# What torch 2.7 renamed in torch._dynamo.config; it keeps the old names as aliases.
FORMER_NAMES = {
    "recompile_limit": "cache_size_limit",
    "accumulated_recompile_limit": "accumulated_cache_size_limit",
    "fail_on_recompile_limit_hit": "fail_on_cache_limit_hit",
    "skip_code_recursive_on_recompile_limit_hit": "skip_code_recursive_on_cache_limit_hit",
}
# Why an entry is skipped.
NO_SUCH_KEY = "this torch has no such key"
TITLE = "Config"
TARGETS = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch.compiler.config",
)
SETTINGS: "dict[str, tuple[str, ...] | str]" = {}
NOUN = "config value"
CHANGES_CODE = True
OF_MODULE = True
FIELDS = ("name", "strength", "wanted", "yields_to", "switch", "layer", "why")


def apply(
    module: "ModuleType",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[ConfigRow]":
    """Apply *entries* to a config module. If one fails, the others are still applied."""
    rows = []
    for entry in entries:
        done: ConfigRow = row(FIELDS, entry)
        try:
            done["status"], done["reason"] = _apply_entry(module, done, keep, observe)
        except Exception as error:
            if failure.programs_own(error):
                raise
            done["status"], done["reason"] = "failed", "%s: %s" % (type(error).__name__, error)
        rows.append(done)
    return rows


def _apply_entry(
    module: "ModuleType", done: "ConfigRow", keep: "tuple[str, ...]", observe: bool
) -> "tuple[str, str]":
    key, strength = done["name"], done["strength"]
    owner, name = _resolve_key(module, key)
    if owner is None:
        return "skipped", NO_SUCH_KEY
    entry = owner.__dict__["_config"][name]
    with _without_warning(entry):
        done["before"] = done["after"] = _read_value(owner, name)
        if any(kept("%s.%s" % (module.__name__, n), keep) for n in (key, *names(key))):
            return "kept", "ROCM_AUTOPATCH_KEEP"
        if done["yields_to"] and done["yields_to"] in os.environ:
            return "skipped", "%s is set in the environment" % done["yields_to"]
        value, why = _switched_value(done["wanted"], done["switch"]), ""
        if value == cpus.WORD and not isinstance(done["before"], str):
            value = cpus.cpu_share()
            why = "for " + cpus.describe_limits() if value != done["before"] else ""
        done["wanted"] = value
        kinds = _declared_types(getattr(entry, "value_type", None))
        if not fits(value, done["before"], kinds):
            taken = {type(done["before"]), *kinds} - {type(None)}
            kind = " or ".join(sorted(one.__name__ for one in taken))
            return "failed", "the value %r has the wrong type: this key takes %s" % (value, kind)
        against = refused_writes.pin_against(entry, value)
        if strength == "pin" and not against:
            against = _why_unpinnable(owner, name, value)
        if against:
            return "failed", against
        if observe:
            return "observed", ""
        _write_value(owner, name, done)
        done["after"] = _read_value(owner, name)
        implied = _implied_by(owner, name)
    if done["after"] == value:
        return "applied", why if name == key else "this torch calls the key %s" % name
    if implied:
        return "skipped" if strength == "default" else "failed", implied
    if strength == "default":
        return "skipped", "the program, or a variable that torch reads, gives another value"
    return "failed", "the key still reads %r" % (done["after"],)


def _implications_of(module: "ConfigModule", name: str) -> "tuple[Implication, ...]":
    """Another key, its value, and what this value implies for *name*, on torch 2.15 and later."""
    found: tuple[Implication, ...] = module.__dict__.get("_implications", {}).get(name, ())
    return found


def _implied_by(module: "ConfigModule", name: str) -> "Optional[str]":
    """Which key implies the value of *name* now, as text, None if none does."""
    for source, condition, value in _implications_of(module, name):
        if refused_writes.is_same_value(_read_value(module, source), condition):
            return "%s is %r, which implies %r for this key" % (source, condition, value)
    return None


def _keys_against(
    module: "ConfigModule", name: str, is_wrong: "Callable[[object], bool]"
) -> "Iterator[tuple[str, object]]":
    """The keys, and their values, that imply a wrong value for *name*, also by way of others."""
    for source, condition, value in _implications_of(module, name):
        if is_wrong(value):
            yield source, condition
            yield from _keys_against(
                module, source, functools.partial(refused_writes.is_same_value, condition)
            )


def _why_unpinnable(module: "ConfigModule", name: str, value: object) -> "Optional[str]":
    """Why *name* can't be pinned to *value*, None if it can be."""
    for source, condition in _keys_against(
        module, name, lambda one: not refused_writes.is_same_value(one, value)
    ):
        if refused_writes.is_same_value(_read_value(module, source), condition):
            text = "%s is %r, which implies another value for this key: pin %s as well"
            return text % (source, condition, source)
    return None


def _switched_value(value: "Any", switch: str) -> object:
    """The value, or the value of the variable *switch* in the same type, if that is set."""
    text = os.environ.get(switch, "") if switch else ""
    if not text:
        return value
    if isinstance(value, bool):
        words = {"1": True, "true": True, "0": False, "false": False}
        if text.lower() not in words:
            raise ValueError("%s=%s is not 1, 0, true or false" % (switch, text))
        return words[text.lower()]
    try:
        return type(value)(text)
    except ValueError:
        raise ValueError("%s=%s is not of type %s" % (switch, text, type(value).__name__)) from None


def names(key: str) -> "tuple[str, ...]":
    """The other names that torch has had for a key."""
    return tuple(
        [old if key == new else new for new, old in FORMER_NAMES.items() if key in (new, old)]
    )


def _resolve_key(module: "ModuleType", key: str) -> "tuple[Optional[ConfigModule], str]":
    """The module and key that hold the value, past aliases and renames; None if there are none."""
    table = module.__dict__["_config"]
    if key not in table:
        former = FORMER_NAMES.get(key, key)
        return (module, former) if former in table else (None, key)
    alias = getattr(table[key], "alias", None)
    if alias is None:
        return module, key
    # To read an alias, torch imports its module (_get_alias_module_and_name). We import nothing.
    home, _, name = alias.rpartition(".")
    if home not in sys.modules:
        raise LookupError("this key is an alias of %s, whose module is not imported" % alias)
    return sys.modules[home], name


@contextlib.contextmanager
def _without_warning(entry: "ConfigEntry") -> "Iterator[None]":
    """Read a deprecated key without torch's one warning (2.12 and later): the program gets that."""
    warned = getattr(entry, "_deprecation_warned", None)
    if warned is not None:
        entry._deprecation_warned = True
    try:
        yield
    finally:
        if warned is not None:
            entry._deprecation_warned = warned


def _read_value(module: "ConfigModule", name: str) -> object:
    # A new thread starts with an empty context. So this is what all threads read, without what this
    # thread alone may have written. Only look_at_values() uses a real thread. Here the import lock
    # of the module is held, and we would wait for ever for a thread that needs this lock. Torch
    # does need it: reading an alias imports its module, often the one that is being imported.
    return contextvars.Context().run(getattr, module, name)


def foresee_row(row: "ConfigRow") -> "dict[str, object]":
    """What else is known of a row that waits: the number that ``cpus`` stands for here."""
    return {"wanted": cpus.cpu_share()} if row["wanted"] == cpus.WORD else {}


def look_at_values(target: str, rows: "list[ConfigRow]") -> "tuple[list[ConfigRow], list[str]]":
    """The rows of a config module with the values of now, and an error for each lost pin.

    ``after`` is what a new thread reads. The calling thread may read another value.
    """
    module = sys.modules.get(target)
    if module is None:
        return rows, []
    looked, errors = [], []
    here = _values_now(module, rows)
    for one, mine, others in zip(rows, here, _in_a_thread(lambda: _values_now(module, rows))):
        done: ConfigRow = {**one, "after": others}
        if "refused" in one:
            done["refused"] = [writer.copy() for writer in one["refused"]]
        if not mine == others == one["after"]:
            seen = "new threads read %r" % (others,)
            if mine != one["after"]:
                seen = "the calling thread reads %r" % (mine,)
            if one["strength"] == "pin" and one["status"] == "applied":
                done["status"], seen = "failed", "the pin no longer holds: " + seen
                errors.append("%s.%s: %s" % (target, one["name"], seen))
            done["reason"] = "; ".join([text for text in (one["reason"], seen) if text])
        looked.append(done)
    return looked, errors


def _values_now(module: "ModuleType", rows: "list[ConfigRow]") -> "list[object]":
    return [_value_now(module, one) for one in rows]


def _value_now(module: "ModuleType", one: "ConfigRow") -> object:
    try:
        owner, name = _resolve_key(module, one["name"])
        if owner is None:
            return one["after"]
        with _without_warning(owner.__dict__["_config"][name]):
            value = getattr(owner, name)
    except Exception as error:
        if failure.programs_own(error):
            raise
        # The key is an alias into a module that is not imported, or a mock.patch that is ending
        # hides it.
        return None
    # A report is plain data, but a program may write anything.
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _in_a_thread(read: "Callable[[], list[object]]") -> "list[object]":
    """What *read* returns in a new thread; in an empty context if no thread can be started."""
    import threading

    found: list[list[object]] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    try:
        thread.start()
        thread.join(10)  # A debugger's hooks run in new threads, too, and may stop them.
    except RuntimeError:
        pass  # The limit of threads is reached, or the interpreter is ending.
    return found[0] if found else contextvars.Context().run(read)


def fits(value: object, before: object, kinds: "set[type]") -> bool:
    """Whether a value is of the key's type. Torch itself checks this only in ``options=``.

    *kinds* are the types in the key's declaration.
    """
    if len(kinds) > 1 and type(value) in kinds:
        return True
    if before is None:
        # Where nothing else is declared, it may be anything.
        taken = kinds - {type(None)}
        return value is None or not taken or (type(value) is int and float in taken)
    if isinstance(before, bool) or isinstance(value, bool):
        return isinstance(before, bool) and isinstance(value, bool)
    if isinstance(before, float):
        return isinstance(value, (int, float))
    return isinstance(value, type(before))


def _declared_types(declared: object) -> "set[type]":
    """The types in an annotation such as ``Optional[int]`` or ``Literal[True, "auto"]``.

    Of ``list[int]`` that is ``list``, and of ``Any`` there is none.
    """
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return {type(argument) for argument in arguments}
    if origin is not typing.Union and origin is not getattr(types, "UnionType", typing.Union):
        found = origin or declared
        return {found} - {typing.Any, object} if isinstance(found, type) else set()
    return {kind for argument in arguments for kind in _declared_types(argument)}


def _write_value(module: "ConfigModule", name: str, done: "ConfigRow") -> None:
    strength, value = done["strength"], done["wanted"]
    entry = module.__dict__["_config"][name]
    if not hasattr(entry, "user_override"):
        _write_plain(module, name, done)
        return
    if strength == "pin":
        pin = refused_writes.PinnedValue(done, value)
        for source, condition in _keys_against(
            module, name, lambda one: not refused_writes.is_same_value(one, value)
        ):
            implying = module.__dict__["_config"][source]
            refused_writes.watch_implying(
                implying, refused_writes.ImplyingValue(pin, source, condition)
            )
        entry.env_value_force = value
        try:
            refused_writes.watch_writes(entry, pin)
        except Exception as error:
            if failure.programs_own(error):
                raise
            # The pin still works, but refused writes are not recorded.
            done.pop("refused", None)
    else:
        entry.default = value
        if strength == "set":
            # The default is for new threads. The value of the env_name_default variable ranks
            # above the default, so it is replaced as well.
            if entry.env_value_default is not type(entry).env_value_default:
                entry.env_value_default = value
            setattr(module, name, value)
    _forget_hashes(module, name)


def as_pinned(module: "ModuleType", options: "dict[str, object]") -> "dict[str, object]":
    """A copy of *options* in which each pinned key of a config module has its pinned value.

    So has a key that torch itself takes from a variable, whatever a program writes.
    """
    table = module.__dict__["_config"]
    found = dict(options)
    for name in options:
        entry = table.get(name)
        if hasattr(entry, "user_override"):
            if entry.env_value_force is not type(entry).env_value_force:
                found[name] = entry.env_value_force
        elif isinstance(table, _PinnedValues) and name in table.pins:
            found[name] = table.pins[name].value
    return found


def _forget_hashes(module: "ConfigModule", name: str) -> None:
    """Have torch compute the config's hashes and copies anew: they are in Inductor's cache keys."""
    if hasattr(module, "_hash_dirty_var"):  # 2.13 and later
        module._hash_dirty_var.set(True)
        module._mark_get_dict_dirty(name)
    else:
        module._is_dirty = True


class _PinnedValues(dict):  # type: ignore[type-arg]
    """The values of a config module of torch 2.4 and 2.5. Pinned ones can't be changed."""

    def __init__(self, values: "dict[str, object]") -> None:
        super().__init__(values)
        self.pins: dict[str, refused_writes.PinnedValue] = {}

    def __setitem__(self, name: str, value: object) -> None:
        pin = self.pins.get(name)
        if pin is not None:
            pin.refuses(value)
            value = pin.value
        super().__setitem__(name, value)

    def update(self, *changes: "Any", **more: "Any") -> None:
        for name, value in dict(*changes, **more).items():
            self[name] = value

    def __reduce__(self) -> "Any":
        return dict, (dict(self),)


def _write_plain(module: "ConfigModule", name: str, done: "ConfigRow") -> None:
    strength, value = done["strength"], done["wanted"]
    table = module.__dict__["_config"]
    if strength == "pin":
        if not isinstance(table, _PinnedValues):
            table = module.__dict__["_config"] = _PinnedValues(table)
        table.pins[name] = refused_writes.PinnedValue(done, value)
        table[name] = value
    else:
        # codegen_config leaves out a key whose value equals the one in _default.
        if strength == "set" or table[name] == module._default[name]:
            table[name] = value
        if strength == "default":
            module._default[name] = value
    module._is_dirty = True
