"""A graph that is not in the caches: what in its key is another one, and ``require``.

Inductor looks up each graph by the hash of its code and of all that it is compiled with. With this
module, a miss leaves in the place of the caches what went into its key. If the same graph misses
later, one line says what has changed since. Where ``ROCM_AUTOPATCH_CACHE=require``, a miss is an
error before the compile, and so is any other compile of a graph.

``FxGraphCache._lookup_graph`` makes the lookup on every torch from 2.4 to 2.15, and
``compiled_fx_graph_hash`` the key; from 2.5 on with lines that tell what is in it. What has to be
compiled goes through ``compile_fx.fx_codegen_and_compile`` (experiments/matrix/cache_versions.py).
"""

import functools
import hashlib
import os
import threading

from rocm_autopatch import _RECORD, failure, startup
from rocm_autopatch.patches import moved_configs, truncated_libraries
from rocm_autopatch.startup import caches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any, Optional

    # By name, the hash and the beginning of the value.
    Parts = dict[str, tuple[str, str]]

TARGET = "torch._inductor.codecache"
DIRECTORY = caches.KEYS
# Our event in PyTorch's trace, which the compile report reads.
CHANGED = "rocm_autopatch_cache_miss"
# The part of a key that all graphs of a process share. It is kept once.
_CONFIG = "inductor_config["
_GRAPH = "gm"
_LONGEST_VALUE = 60
# So many keys of a graph are compared, the newest ones, and so many differences are told.
_MOST_KEYS, _MOST_TOLD = 50, 3
# By thread, the key that was made last, and what is in it.
_last = threading.local()


class CacheMiss(RuntimeError):
    """``ROCM_AUTOPATCH_CACHE=require``, and a graph would have to be compiled."""


def watch_lookups(module: "ModuleType") -> None:
    """Count hits and misses of Inductor's graphs, and act on a miss. A post-import hook."""
    truncated_libraries.watch_libraries(module)
    moved_configs.keep_configs(module)
    cache: Any = getattr(module, "FxGraphCache", None)
    lookup: Any = getattr(cache, "_lookup_graph", None)
    make_key: Any = getattr(module, "compiled_fx_graph_hash", None)
    if not (callable(lookup) and callable(make_key)):
        startup.fail("caches", "misses are not seen: this torch looks graphs up in another way")
        return

    @functools.wraps(make_key)
    def compiled_fx_graph_hash(*args: object, **kwargs: object) -> object:
        made = make_key(*args, **kwargs)
        _last.key = made if isinstance(made, tuple) else (made, [])
        return made

    @functools.wraps(lookup)
    def _lookup_graph(key: str, *args: object, **kwargs: object) -> object:
        found = lookup(key, *args, **kwargs)
        graph = found[0] if isinstance(found, tuple) else found
        missed(key, graph is not None)
        return found

    module.compiled_fx_graph_hash = compiled_fx_graph_hash  # type: ignore[attr-defined]
    cache._lookup_graph = staticmethod(_lookup_graph)


def forbid_compiles(module: "ModuleType") -> None:
    """Have each compile of a graph raise CacheMiss. A post-import hook, under ``require``."""
    if not callable(getattr(module, "fx_codegen_and_compile", None)):
        startup.fail("caches", "compiles are not seen: this torch compiles graphs in another way")
        return

    def fx_codegen_and_compile(*_: object, **__: object) -> object:
        record = _RECORD["caches"]
        reason = record["reason"] if record else ""
        raise CacheMiss(
            "ROCM_AUTOPATCH_CACHE=require, but a graph is compiled: %s"
            % (
                "there are no caches of ours (%s)" % reason
                if reason
                else "Inductor's caches are off, or it keeps no such graph"
            )
        )

    module.fx_codegen_and_compile = fx_codegen_and_compile  # type: ignore[attr-defined]


def missed(key: str, hit: bool) -> None:
    """Take note of a lookup. Raises CacheMiss where a miss is an error."""
    record = _RECORD["caches"]
    assert record is not None  # Only caches.add_rows() arms the hook.
    kept = record["node"] or record["place"]
    made, lines = getattr(_last, "key", ("", []))
    if hit or key != made:
        # AOTAutograd looks up graphs by keys that it has kept. If one is not there, Inductor makes
        # its key and looks again.
        record["hits"] += hit
        return
    record["misses"] += 1
    try:
        mine = dict(_key_parts(lines))
        before = _nearest_key(kept, mine)
        if not record["require"]:
            _keep_key(kept, key, mine)
        changes = _changed_parts(mine, before) if before else ""
        if changes:
            _trace_event(changes)
        if changes and not record["require"]:
            text = "a graph is compiled again that is in the caches in %s: %s"
            startup.say("cache-miss", text % (kept, changes))
    except Exception as error:
        if failure.programs_own(error):
            raise
        changes = "why is not known: " + failure.describe(error)
    if record["require"]:
        raise CacheMiss(
            "ROCM_AUTOPATCH_CACHE=require, but graph %s is not in the caches in %s: %s. "
            '"rocm-autopatch cache warm -- COMMAND" fills them'
            % (key, _looked_up_in(kept), changes or "no such graph was compiled there")
        )


def _looked_up_in(kept: str) -> str:
    """Where Inductor has looked: a user may have named a directory of its own."""
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR", kept)
    return kept if named.startswith(kept + "/") else named


def _trace_event(changes: str) -> None:
    """Tell the compile report, by an event in torch's own trace. It costs nothing without one."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": CHANGED, "encoding": "string"},
        payload_fn=lambda: changes,
    )


def _key_parts(lines: "list[str]") -> "Iterator[tuple[str, tuple[str, str]]]":
    """What is in a key, from lines such as ``[HASH] inductor_config[freezing]: False``."""
    for line in lines:
        seal, bracket, rest = line.partition("] ")
        name, _, value = rest.partition(": ")
        if bracket:
            yield name, (seal[1:], " ".join(value[: 4 * _LONGEST_VALUE].split())[:_LONGEST_VALUE])


def _changed_parts(mine: "Parts", before: "Parts") -> str:
    """What is another one than in an earlier key."""
    different = [name for name in (*mine, *before) if mine.get(name) != before.get(name)]
    told = [
        "%s is %s, and was %s" % (name, _part_text(mine.get(name)), _part_text(before.get(name)))
        for name in dict.fromkeys(different)
        if mine.get(name, ("",))[0] != before.get(name, ("",))[0]
    ]
    if len(told) > _MOST_TOLD:
        told[_MOST_TOLD:] = ["and %d more" % (len(told) - _MOST_TOLD)]
    return "; ".join(told)


def _part_text(part: "Optional[tuple[str, str]]") -> str:
    return "not there" if part is None else part[1] or "empty"


# What is kept: a file for each config, and beneath a directory for each graph a file for each key.
# A line has a hash, a name and a value, with tabs between them. The first line of a key's file
# names the file of its config.


def _keep_key(place: str, key: str, mine: "Parts") -> None:
    config = {name: part for name, part in mine.items() if name.startswith(_CONFIG)}
    rest = {name: part for name, part in mine.items() if name not in config}
    text = _key_text(config)
    name = "config-" + _text_digest(text)
    directory = _graph_directory(place, mine)
    os.makedirs(directory, exist_ok=True)
    _write_whole("%s/%s/%s" % (place, DIRECTORY, name), text)
    _write_whole("%s/%s" % (directory, key), name + "\n" + _key_text(rest))


def _graph_directory(place: str, mine: "Parts") -> str:
    """The directory for all keys of a graph."""
    return "%s/%s/%s" % (place, DIRECTORY, _text_digest(mine.get(_GRAPH, ("",))[0]))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _key_text(parts: "Parts") -> str:
    return "".join("%s\t%s\t%s\n" % (seal, name, value) for name, (seal, value) in parts.items())


def _write_whole(path: str, text: str) -> None:
    if os.access(path, os.F_OK):
        return
    new = "%s.%d-%d.tmp" % (path, os.getpid(), threading.get_ident())
    with open(new, "w", encoding="utf-8", errors="replace") as stream:
        stream.write(text)
    os.rename(new, path)


def _nearest_key(place: str, mine: "Parts") -> "Optional[Parts]":
    """The key of the same graph that is most like this one, the newest of them; or None."""
    try:
        with os.scandir(_graph_directory(place, mine)) as entries:
            files = [(one.stat().st_mtime, one.path) for one in entries]
    except OSError:
        return None
    best, least = None, 0
    for _, path in sorted(files, reverse=True)[:_MOST_KEYS]:
        parts = _read_key("%s/%s" % (place, DIRECTORY), path)
        apart = sum(parts.get(name) != part for name, part in mine.items())
        if parts and (best is None or apart < least):
            best, least = parts, apart
    return best


def _read_key(directory: str, path: str) -> "Parts":
    found = {}
    names = [path]
    for name in names:
        try:
            with open(name, encoding="utf-8") as stream:
                lines = stream.read().split("\n")
        except (OSError, ValueError):
            continue
        for line in lines:
            fields = line.split("\t")
            if len(fields) == 3:
                found[fields[1]] = (fields[0], fields[2])
            elif line.startswith("config-") and name == path:
                names.append("%s/%s" % (directory, line))
    return found
