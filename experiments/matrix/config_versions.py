"""The config patch on the config modules of every torch from 2.4 to 2.15, without torch.

    python experiments/matrix/config_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each version runs in a process of its own. A cell of the printed table is one route to a
value at one strength. It runs in a fork of that process, in which nothing has been written yet. The
strength "torch" applies nothing: it shows that torch by itself does what is expected of a route. If
a cell is wrong, the exit status is 1.
"""

from __future__ import annotations

import copy as copy_module
import json
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from torch_files import COMPILER, DYNAMO, INDUCTOR, child, directories, load

ROOT = Path(__file__).resolve().parents[2]
# Values with two names, of which a torch may have one: 2.7 renamed some, 2.9 moved one.
NAMES = (
    ((DYNAMO, "recompile_limit"), (DYNAMO, "cache_size_limit")),
    ((DYNAMO, "accumulated_recompile_limit"), (DYNAMO, "accumulated_cache_size_limit")),
    ((DYNAMO, "fail_on_recompile_limit_hit"), (DYNAMO, "fail_on_cache_limit_hit")),
    ((COMPILER, "force_disable_caches"), (INDUCTOR, "force_disable_caches")),
)
FORMER = {new: old for (_, new), (_, old) in NAMES}
WRONG_TYPES = {bool: ("yes", 1, 0.5, None), int: ("8", True, 8.5, None), str: (1, True, None)}
STRENGTHS = ("default", "set", "pin")


def in_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def in_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@dataclass(frozen=True)
class Spot:
    """A value under test: what torch ships, what we want, and what a program writes."""

    module: Any
    key: str  # in the policy
    name: str  # in this torch
    shipped: Any
    wanted: Any
    other: Any

    @property
    def change(self) -> dict[str, Any]:
        return {self.name: self.other}

    @property
    def attribute(self) -> tuple[Any, str]:
        """The object and attribute that programs write: config.triton and cudagraphs."""
        owner, names = self.module, self.name.split(".")
        for name in names[:-1]:
            owner = getattr(owner, name)
        return owner, names[-1]

    def read(self) -> Any:
        return getattr(self.module, self.name)

    def write(self) -> Any:
        setattr(self.module, self.name, self.other)
        return self.read()

    def state(self) -> tuple[bytes, Any]:
        """The hash, and the value as saved: what torch's caches go by."""
        return self.module.get_hash(), pickle.loads(self.module.save_config())[self.name]


def exists(module: str, key: str) -> bool:
    return module in sys.modules and key in vars(sys.modules[module])["_config"]


def find(module: str, key: str, *values: Any) -> Spot:
    """A value; wanted is one of *values*, unless torch ships that."""
    owner, name = sys.modules[module], key if exists(module, key) else FORMER[key]
    shipped = getattr(owner, name)
    if isinstance(shipped, bool):
        return Spot(owner, key, name, shipped, not shipped, shipped)
    wanted = next((value for value in values if value != shipped), shipped * 2 or 1)
    return Spot(owner, key, name, shipped, wanted, wanted * 2 or 2)


@dataclass
class Cell:
    """Modules that nobody has written to yet, a strength, and what is wrong."""

    strength: str
    problems: list[str] = field(default_factory=list)

    def spots(self) -> list[Spot]:
        """The keys of the built-in policies."""
        from rocm_autopatch.policy.builtin import POLICIES
        from rocm_autopatch.startup import cpus

        values: dict[tuple[str, str], list[Any]] = {}
        patches = (patch for plan in POLICIES.values() for patch in plan["patches"])
        for name, module, entries in patches:
            for entry in entries if name == "config" else ():
                # The word stands for another number on each machine.
                if entry[2] != cpus.WORD:
                    values.setdefault((module, str(entry[0])), []).append(entry[2])
        spots = [find(*place, *some) for place, some in values.items()]
        if self.strength == "torch":
            return [replace(spot, wanted=spot.shipped, other=spot.wanted) for spot in spots]
        return spots

    def expect(self, what: str, got: object, want: object) -> None:
        if repr(got) != repr(want):  # True is not 1
            self.problems.append(f"{what}: {got!r}, not {want!r}")

    def reads(self, what: str, spot: Spot, here: Any, there: Any) -> None:
        self.expect(f"{spot.key} {what}", (spot.read(), in_thread(spot.read)), (here, there))

    def holds(self, what: str, spot: Spot) -> None:
        self.reads(what, spot, spot.wanted, spot.wanted)

    def inside(self, spot: Spot) -> Any:
        """What a program reads that has written."""
        return spot.wanted if self.strength == "pin" else spot.other

    def outside(self, spot: Spot) -> Any:
        """What other threads read then: from torch 2.12 on, a write is one thread's own."""
        override = getattr(vars(spot.module)["_config"][spot.name], "user_override", None)
        return spot.wanted if isinstance(override, ContextVar) else self.inside(spot)

    def changed(self, what: str, spot: Spot) -> None:
        self.reads(what, spot, self.inside(spot), self.outside(spot))

    def apply(self, spot: Spot, yields_to: str = "", **options: Any) -> dict[str, Any]:
        """Apply one entry, and return its row."""
        from rocm_autopatch.patches import config

        entry = (spot.key, self.strength, spot.wanted, yields_to, "", "layer", "why")
        given: dict[str, Any] = {"keep": (), "observe": False, **options}
        row: Any = config.apply(spot.module, [entry], **given)[0]
        self.expect("row", tuple(row[name] for name in config.FIELDS), entry)
        found: dict[str, Any] = row  # Not a copy: what is refused later stands there, too.
        return found

    def applied(self) -> Iterator[Spot]:
        """The values under test, after our entries."""
        spots = self.spots()
        for spot in spots if self.strength != "torch" else ():
            row = self.apply(spot)
            got = row["status"], row["before"], row["after"]
            self.expect(f"{spot.key} row", got, ("applied", spot.shipped, spot.wanted))
        yield from spots


Route = Callable[[Cell], None]


def read(cell: Cell) -> None:
    for spot in cell.applied():
        cell.holds("read", spot)
        got = in_pool(spot.read), getattr(*spot.attribute)
        cell.expect(f"{spot.key} in a pool, by attributes", got, (spot.wanted, spot.wanted))


def write_in_thread(cell: Cell) -> None:
    for spot in cell.applied():
        got = in_thread(spot.write), spot.read()
        cell.expect(f"{spot.key} there, here", got, (cell.inside(spot), cell.outside(spot)))


def permanent(write: Callable[[Spot], Any]) -> Route:
    """A write that is not undone."""

    def check(cell: Cell) -> None:
        for spot in cell.applied():
            write(spot)
            cell.changed("written", spot)

    return check


def temporary(change: Callable[[Spot], AbstractContextManager[Any]]) -> Route:
    """A change for a while, with a function inside that is decorated with another."""

    def run(cell: Cell, spot: Spot, where: str, error: bool = False) -> None:
        back = replace(spot, other=spot.shipped)
        with suppress(EOFError), change(spot):
            cell.changed(f"inside, {where}", spot)
            spot.module.patch(back.change)(cell.changed)(f"decorated, {where}", back)
            cell.changed(f"inside again, {where}", spot)
            if error:
                raise EOFError
        cell.holds(f"after, {where}", spot)

    def check(cell: Cell) -> None:
        for spot in cell.applied():
            run(cell, spot, "here")
            run(cell, spot, "with an error", error=True)
            in_thread(partial(run, cell, spot, "in a thread"))
            in_pool(partial(run, cell, spot, "in a pool"))
            cell.holds("after all", spot)

    return check


def undone_by(undo: Callable[..., Any], *args: Any) -> ExitStack:
    stack = ExitStack()
    stack.callback(undo, *args)
    return stack


def save_and_load(spot: Spot) -> ExitStack:
    saved = spot.module.save_config()
    spot.module.load_config(spot.change)
    return undone_by(spot.module.load_config, saved)


def copies(cell: Cell) -> None:
    """The hash, saved values, copies, and what codegen_config takes for changed."""
    for spot in cell.spots():
        module, hashed = spot.module, spot.name not in spot.module._compile_ignored_keys
        before = spot.state()  # torch remembers the hash, and from 2.13 on the values as well
        if cell.strength != "torch":
            cell.apply(spot)
        after = spot.state()
        cell.expect(f"{spot.key} saved", (before[1], after[1]), (spot.shipped, spot.wanted))
        moves = hashed and spot.wanted != spot.shipped
        cell.expect(f"{spot.key} moves the hash", before[0] != after[0], moves)
        cell.expect(f"{spot.key} in a thread", in_thread(spot.state), after)
        copy = module.get_config_copy()
        cell.expect(f"{spot.key} copied", (type(copy), copy[spot.name]), (dict, spot.wanted))
        copy.update(spot.change)
        listed = f"{module.__name__}.{spot.name} = " in module.codegen_config()
        if cell.strength != "pin":  # torch 2.6 lists no forced value
            cell.expect(f"{spot.key} in the code", listed, cell.strength == "set")
        with module.patch(spot.change):
            inside, want = spot.state(), (hashed and cell.strength != "pin", cell.inside(spot))
            cell.expect(f"{spot.key} inside", (inside[0] != after[0], inside[1]), want)
        cell.expect(f"{spot.key} after", spot.state(), after)
        if module.__name__ == INDUCTOR:
            portable = module.save_config_portable().get(spot.name, spot.wanted)
            cell.expect(f"{spot.key} portable", portable, spot.wanted)


def names(which: int, cell: Cell) -> None:
    """An entry with one of a value's two names: it is read and written by both."""
    for pair in NAMES:
        module, key = pair[which]
        both = [find(*place) for place in pair if exists(*place)]
        if module == COMPILER or not both:
            continue
        row = cell.apply(replace(both[0], module=sys.modules[module], key=key))
        cell.expect(f"{key} status", row["status"], "applied")
        for spot in both:
            with spot.module.patch(spot.change):
                for seen in both:
                    cell.changed(f"by entry {key}, patched as {spot.key}", seen)
            cell.holds(f"by entry {key}", spot)
        for spot in both:
            spot.write()
            for seen in both:
                cell.changed(f"by entry {key}, written as {spot.key}", seen)


def refused(
    status: str,
    entries: Callable[[Spot], list[Spot]] = lambda spot: [spot],
    **options: Callable[[Spot], Any],
) -> Route:
    """Entries that change nothing, and say so."""

    def check(cell: Cell) -> None:
        for spot in cell.spots():
            given = {name: value(spot) for name, value in options.items()}
            for entry in entries(spot):
                before = spot.module._config, spot.state(), spot.module.get_config_copy()
                row = cell.apply(entry, **given)
                after = spot.module._config, spot.state(), spot.module.get_config_copy()
                same = before == after and before[0] is after[0] and row["before"] == row["after"]
                got = row["status"], bool(row["reason"]) or status == "observed", same
                cell.expect(f"{entry.key} = {entry.wanted!r}, {given}", got, (status, True, True))

    return check


def by_torch(source: str, module: Any) -> Callable[[dict[str, Any]], Any]:
    """A function of one argument, ``changes``, of a file of torch's."""
    file = f"{Path(sys.modules['torch'].__file__ or '').parent}/_inductor/compile_fx.py"
    scope = {"config": module, "__name__": "torch._inductor.compile_fx"}
    exec(compile(f"\ndef compile_fx(changes):\n    {source}\n", file, "exec"), scope)
    compile_fx: Callable[[dict[str, Any]], Any] = scope["compile_fx"]
    return compile_fx


CONFIG_PATCHES = "with config.patch(changes): pass"
NOTHING = (None, None, None)
# Writes of another value, undone on the same line if at all: that line is to blame, once.
WRITES: dict[str, Callable[[Spot], Any]] = {
    "write": lambda s: setattr(s.module, s.name, s.other),
    "write sub-config": lambda s: setattr(*s.attribute, s.other),
    "write in thread": lambda s: in_thread(lambda: setattr(s.module, s.name, s.other)),
    "load_config": lambda s: s.module.load_config(s.change),
    "load pickled": lambda s: s.module.load_config(pickle.dumps(s.change)),
    "patch(dict)": lambda s: (p := s.module.patch(s.change), p.__enter__(), p.__exit__(*NOTHING)),
    "patch(key=)": lambda s: (p := s.module.patch(**s.change), p.__enter__(), p.__exit__(*NOTHING)),
    "patch(key, value)": lambda s: ExitStack().enter_context(s.module.patch(s.name, s.other)),
    "patch, decorator": lambda s: s.module.patch(s.change)(abs)(1),
    "closure patcher": lambda s: s.module._make_closure_patcher(**s.change)()(),
    "mock.patch": lambda s: mock.patch.object(s.module, s.name, s.other)(abs)(1),
    "mock.patch sub": lambda s: mock.patch.object(*s.attribute, s.other)(abs)(1),
    "config_patches=": lambda s: by_torch(CONFIG_PATCHES, s.module)(s.change),
}


def blamed(write: Callable[[Spot], Any]) -> Route:
    """A write that a pin refuses, on the record; and those of its own value, which are none."""

    def check(cell: Cell) -> None:
        for spot in cell.spots():
            row = cell.apply(spot)
            cell.expect(f"{spot.key} refused nothing", row["refused"], [])
            place = {"file": write.__code__.co_filename, "line": write.__code__.co_firstlineno}
            for count in (1, 2):
                write(spot)
                want = [{"value": repr(spot.other), **place, "count": count}]
                cell.expect(f"{spot.key} refused", row["refused"], want)
                cell.holds("after a refused write", spot)
            for rightful in WRITES.values():
                rightful(replace(spot, other=spot.wanted))
            spot.module.load_config(spot.module.save_config())
            cell.expect(f"{spot.key} refused no more", row["refused"], want)

    return check


def blamed_names(cell: Cell) -> None:
    """A value with two names, written by both."""
    for pair in NAMES:
        both = [find(*place) for place in pair if exists(*place)]
        for key in {spot.key for spot in both if spot.module.__name__ != COMPILER}:
            row = cell.apply(replace(both[0], module=sys.modules[pair[1][0]], key=key))
            for spot in both:
                spot.write()
            (writer,) = row["refused"]
            got = writer["line"], writer["count"]
            want = Spot.write.__code__.co_firstlineno + 1, len(both)
            cell.expect(f"{key} refused", got, want)


def blamed_torch(cell: Cell) -> None:
    """Writes in threads of torch's own."""
    for spot in cell.spots():
        row = cell.apply(spot)
        compile_fx = by_torch(CONFIG_PATCHES, spot.module)
        in_pool(partial(compile_fx, spot.change))
        (writer,) = row["refused"]
        want = compile_fx.__code__.co_filename, 3, 1
        cell.expect(f"{spot.key} refused", (writer["file"], writer["line"], writer["count"]), want)


def blamed_many(cell: Cell) -> None:
    for spot in cell.spots():
        row = cell.apply(spot)
        scope = {"write": partial(setattr, spot.module, spot.name, spot.other)}
        for line in [*range(25), *range(22)]:
            exec(compile("\n" * line + "write()", "many.py", "exec"), scope)
        got = [(writer["line"], writer["count"]) for writer in row["refused"]]
        cell.expect(f"{spot.key} writers", got, [(line + 1, 2) for line in range(20)])
        cell.expect(f"{spot.key} other writes", row["refused_more"], 7)


class Strange:
    """A value that can't be compared."""

    def __eq__(self, other: object) -> bool:
        raise EOFError


def unnoticed(cell: Cell) -> None:
    """A pin holds where noticing fails, and where the written value can't be looked at."""
    from rocm_autopatch.patches.config import refused_writes

    watched, broken = cell.spots()[::2], cell.spots()[1::2]
    rows = [cell.apply(spot) for spot in watched]
    with mock.patch.object(refused_writes, "watch_writes", side_effect=EOFError):
        for spot in broken:
            cell.apply(spot)
    with mock.patch.object(refused_writes, "_writing_place", side_effect=EOFError):
        for spot in (*watched, *broken):
            for write in WRITES.values():
                write(spot)
                write(replace(spot, other=Strange()))
                cell.holds("written, unnoticed", spot)
    cell.expect("rows", [row["refused"] for row in rows], [[]] * len(watched))


def pinned_in_a_patch(cell: Cell) -> None:
    """Pins that come late: what is undone after them knows nothing of them."""
    for spot in cell.spots():
        revert = spot.module._make_closure_patcher(**spot.change)()
        with spot.module.patch(spot.change):
            cell.apply(spot)
            cell.holds("inside", spot)
        cell.holds("after the patch", spot)
        revert()
        cell.holds("after the closure's end", spot)


def copied_entries(cell: Cell) -> None:
    """What torch's entries allow, with the pin in it; the table stays as torch made it."""
    for spot in cell.spots():
        table = vars(spot.module)["_config"]
        made = type(table), type(table[spot.name])
        cell.apply(spot)
        table = vars(spot.module)["_config"]
        if not hasattr(table[spot.name], "user_override"):  # torch 2.4 and 2.5
            for copy in (copy_module.copy, copy_module.deepcopy, by_pickle):
                cell.expect(
                    "table", (type(copy(table)), copy(table)[spot.name]), (dict, spot.wanted)
                )
            continue
        cell.expect("table", type(table), made[0])
        override = table[spot.name].user_override
        deep = () if hasattr(override, "set") else (copy_module.deepcopy, by_pickle)
        for copy in (copy_module.copy, *deep):
            entry = copy(table[spot.name])
            cell.expect(
                f"{copy} {spot.key}", (type(entry), entry.env_value_force), (made[1], spot.wanted)
            )
        if not deep:
            for copy in (copy_module.deepcopy, by_pickle):
                with suppress(TypeError):
                    cell.problems.append(f"{copy} {spot.key}: {copy(table[spot.name])}")
            token = override.set(spot.wanted)
            cell.expect("override", (override.name, override.get()), (spot.name, spot.wanted))
            override.reset(token)
            cell.expect("override reset", override.get(), type(table[spot.name]).env_value_force)


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def implied(cell: Cell) -> None:
    """A pin holds against each key that implies another value for it, from torch 2.15 on."""
    from rocm_autopatch.patches import config

    for name in (INDUCTOR, DYNAMO):
        module = sys.modules[name]
        rules = vars(module).get("_implications", {})
        release = tuple(map(int, sys.modules["torch"].__version__.split(".")[:2]))
        cell.expect(f"{name} implies", bool(rules), name == INDUCTOR and release >= (2, 15))
        shipped = {
            source: getattr(module, source) for some in rules.values() for source, *_ in some
        }
        for target, causes in rules.items():
            for source, condition, value in causes:
                setattr(module, source, condition)
                cell.expect(f"{source} implies {target}", getattr(module, target), value)
                setattr(module, source, shipped[source])
        for target, causes in rules.items():
            wanted = not causes[0][2]
            read = partial(getattr, module, target)
            row = config.apply(module, [(target, "pin", wanted, "", "", "", "")], (), False)[0]
            cell.expect(f"{target} status", row["status"], "applied")
            for source, condition, _ in causes:
                before = shipped[source]
                spot = Spot(module, source, source, before, before, condition)
                for write in WRITES.values():
                    write(spot)
                    got = read(), in_thread(read), getattr(module, source)
                    cell.expect(f"{target}, {source} written", got, (wanted, wanted, before))
            cell.expect(f"{target} refused", len(row["refused"]), len(WRITES))


def looked(cell: Cell) -> None:
    """A row as it is now: as applied, after a write here, and after one that breaks a pin."""
    from rocm_autopatch.patches import config

    for spot in cell.spots():
        row = cell.apply(spot)
        look: Any = config.look_at_values
        look = partial(look, spot.module.__name__, [row])
        cell.expect(f"{spot.key} looked at", look(), ([row], []))
        spot.write()
        want = row
        if cell.strength != "pin":
            reason = f"the calling thread reads {spot.other!r}"
            want = {**row, "after": cell.outside(spot), "reason": with_reason(row, reason)}
        cell.expect(f"{spot.key} looked at, written", look(), ([want], []))
        if cell.strength != "pin":
            want = {**want, "reason": row["reason"]}
            if cell.outside(spot) != spot.wanted:  # seen by all threads
                want["reason"] = with_reason(row, reason)
            cell.expect(f"{spot.key} looked at elsewhere", in_thread(look), ([want], []))
            continue
        entry = vars(spot.module)["_config"][spot.name]
        if hasattr(entry, "user_override"):
            entry.env_value_force = spot.other
        else:
            dict.__setitem__(vars(spot.module)["_config"], spot.name, spot.other)
        broken = f"the pin no longer holds: the calling thread reads {spot.other!r}"
        reason = with_reason(row, broken)
        want = {**row, "status": "failed", "after": spot.other, "reason": reason}
        error = f"{spot.module.__name__}.{spot.key}: {broken}"
        cell.expect(f"{spot.key} looked at, broken", look(), ([want], [error]))


def with_reason(row: dict[str, Any], reason: str) -> str:
    return "; ".join(filter(None, (row["reason"], reason)))


def after_a_write(cell: Cell) -> None:
    """A program has written before us, which only a default minds."""
    for spot in cell.spots():
        spot = replace(spot, wanted=spot.shipped, other=spot.wanted)
        spot.write()
        cell.apply(spot)
        want = spot.other if cell.strength == "default" else spot.wanted
        cell.expect(spot.key, spot.read(), want)


ROUTES: dict[str, Route] = {
    "read": read,
    "write": permanent(Spot.write),
    "write sub-config": permanent(lambda s: setattr(*s.attribute, s.other)),
    "write in thread": write_in_thread,
    "load_config": permanent(lambda s: s.module.load_config(s.change)),
    "save, load": temporary(save_and_load),
    "patch(dict)": temporary(lambda s: s.module.patch(s.change)),
    "patch(key=)": temporary(lambda s: s.module.patch(**s.change)),
    "patch(key, value)": temporary(lambda s: s.module.patch(s.name, s.other)),
    "closure patcher": temporary(lambda s: undone_by(s.module._make_closure_patcher(**s.change)())),
    "mock.patch": temporary(lambda s: mock.patch.object(s.module, s.name, s.other)),
    "mock.patch sub": temporary(lambda s: mock.patch.object(*s.attribute, s.other)),
    "hash and copies": copies,
}
# What is there only where something is applied.
RULES: dict[str, Route] = {
    "new name": partial(names, 0),
    "old name": partial(names, 1),
    "wrong type": refused(
        "failed", lambda s: [replace(s, wanted=value) for value in WRONG_TYPES[type(s.shipped)]]
    ),
    "unknown key": refused("skipped", lambda s: [replace(s, key=f"{s.key}_of_tomorrow")]),
    "keep": refused("kept", keep=lambda s: ("x", s.key.rpartition(".")[2])),
    "keep in full": refused("kept", keep=lambda s: (f"{s.module.__name__}.{s.key}",)),
    "observe": refused("observed", observe=lambda s: True),
    "yields_to": refused("skipped", yields_to=lambda s: "PATH"),
    "after a write": after_a_write,
    "look": looked,
}
# What a pin refuses, by who wrote.
REFUSED: dict[str, Route] = {
    **{f"by {name}": blamed(write) for name, write in WRITES.items()},
    "by both names": blamed_names,
    "by torch's thread": blamed_torch,
    "by many": blamed_many,
    "unnoticed": unnoticed,
    "in a patch": pinned_in_a_patch,
    "copied entries": copied_entries,
    "implied": implied,
}
ROWS = [(route, strength) for route in ROUTES for strength in ("torch", *STRENGTHS)]
ROWS += [(route, strength) for route in RULES for strength in STRENGTHS]
ROWS += [(route, "pin") for route in REFUSED]


def check(route: str, strength: str) -> list[str]:
    """What is wrong with one cell."""
    cell = Cell(strength)
    try:
        {**ROUTES, **RULES, **REFUSED}[route](cell)
    except Exception:
        cell.problems.append(traceback.format_exc())
    return cell.problems


def cells(directory: Path) -> list[list[str]]:
    """What is wrong with each cell of a torch, from a process of its own."""
    env = {name: value for name, value in os.environ.items() if "TORCH" not in name}
    env.update(ROCM_AUTOPATCH="off", ROCM_AUTOPATCH_LOG="quiet")
    found: list[list[str]] = child(directory, "cells", env)
    return found


def main() -> int:
    versions, what = directories("The config patch on every torch, as a table.")
    if what:
        sys.path.insert(0, str(ROOT))
        load(versions[0])
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            print(json.dumps(pool.starmap(check, ROWS, chunksize=1)))
        return 0
    found = {directory.name: cells(directory) for directory in versions}
    print(" " * 29, *(f"{name:6}" for name in found))
    for number, row in enumerate(ROWS):
        states = ("WRONG" if some[number] else "ok" for some in found.values())
        print("{:20} {:8}".format(*row), *(f"{state:6}" for state in states))
    for number, row in enumerate(ROWS):
        by_problem: dict[str, list[str]] = {}
        for name, some in found.items():
            for problem in some[number]:
                by_problem.setdefault(problem, []).append(name)
        for problem, names in by_problem.items():
            print(f"\n{', '.join(row)}: {problem}\n    torch {', '.join(names)}")
    return int(any(any(some) for some in found.values()))


if __name__ == "__main__":
    sys.exit(main())
