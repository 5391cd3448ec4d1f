"""Read torch's config in a separate interpreter, and watch who writes to it. Run as a script.

Nothing imports this file. reading.py starts an interpreter that runs its text. The first argument
is JSON with what to do, the second is the file for the answer. Under ``python -S`` it calls
``site.main()`` itself. So it sees what sitecustomize, usercustomize and .pth files write when they
write it.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import threading
import traceback
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any, Optional, TypeVar

    from rocm_autopatch.probe.answers import (
        ChildAnswer,
        ChildTaskText,
        ConfigChange,
        ConfigWrite,
        FailedImport,
        ModuleReading,
        PlainValue,
        TorchFound,
        VariableRead,
        VariableWrite,
        WritingPlace,
    )

    Found = TypeVar("Found")

CONFIGS = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch.compiler.config",
)
MACHINERY = "torch.utils._config_module"
# Frames of these files are skipped in the search for the code that wrote.
PLUMBING = ("_config_module.py", "contextlib.py", "os.py", "_collections_abc.py", "dataclasses.py")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Writes in these functions of a context manager are temporary, so they are left out.
TEMPORARY = ("__enter__", "__exit__", "revert", "change")

# The attributes of a config module's entry that hold its value.
VALUES = ("default", "env_value_force", "env_value_default", "user_override")

stage = "site"
writes: "list[ConfigWrite]" = []
env_writes: "list[VariableWrite]" = []
reads: "dict[str, VariableRead]" = {}
last_read = ""
dropped: "set[str]" = set()


def writing_place() -> "tuple[WritingPlace, bool]":
    """The file and line that writes now, and the line of .pth or sitecustomize that led there.

    The second is whether the write is a temporary one.
    """
    found: WritingPlace = {"file": "", "line": 0, "by": ""}
    temporary = False
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        pth = _pth_line(frame)
        if pth:
            found["by"] = pth
            if not found["file"]:
                found["file"], _, line = pth.rpartition(":")
                found["line"] = int(line)
        elif file == __file__ or file.startswith("<"):
            pass
        elif not found["file"] and os.path.basename(file) not in PLUMBING:
            found["file"], found["line"] = file, frame.f_lineno
        if frame.f_globals.get("__name__") in ("sitecustomize", "usercustomize"):
            found["by"] = "%s:%d" % (file, frame.f_lineno)
        if os.path.basename(file) == PLUMBING[0] and name in TEMPORARY:
            temporary = True
        frame = frame.f_back
    if found["by"] == "%s:%d" % (found["file"], found["line"]):
        found["by"] = ""
    return found, temporary


def _pth_line(frame: "FrameType") -> str:
    """FILE:LINE of the .pth line that a frame of ``site`` executes; "" if it executes none."""
    names = frame.f_locals
    if frame.f_globals.get("__name__") != "site" or "line" not in names:
        return ""
    file = next((v for v in names.values() if isinstance(v, str) and v.endswith(".pth")), "")
    if not os.path.isabs(file):
        file = os.path.join(str(names.get("sitedir", "")), file)
    line = names.get("line", "")
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = [text.rstrip() for text in stream]
        return "%s:%d" % (file, lines.index(str(line).rstrip()) + 1)
    except (OSError, ValueError):
        return ""


def plain_value(value: object) -> "PlainValue":
    """A value as plain data. Equal values give equal data, also in different processes."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain_value(item) for item in value), key=repr)
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    return ADDRESS.sub("", repr(value))


# Variables: who reads them, and who sets them.


def watch_environment() -> None:
    kind: Any = type(os.environ)
    get, put = kind.__getitem__, kind.__setitem__

    def __getitem__(self: object, name: str) -> str:
        value: str = get(self, name)
        _note_read(name)
        return value

    def __setitem__(self: "os._Environ[str]", name: str, value: str) -> None:
        if name in dropped:
            return
        if isinstance(name, str) and self.get(name) != value:
            where, _ = writing_place()
            env_writes.append({"name": name, "value": value, "stage": stage, **where})
        put(self, name, value)

    kind.__getitem__, kind.__setitem__ = __getitem__, __setitem__


def _note_read(name: str) -> None:
    global last_read
    frame: Optional[FrameType] = sys._getframe(2)
    where, config = "", False
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        file = frame.f_code.co_filename
        if not where and os.path.basename(file) not in PLUMBING and not file.startswith("<"):
            if file == __file__:
                return
            where = "%s:%d" % (file, frame.f_lineno)
        config = config or frame.f_globals.get("__name__") in CONFIGS
        frame = frame.f_back
    last_read = name
    known = reads.setdefault(name, {"place": where, "config": config})
    if config and not known["config"]:
        reads[name] = {"place": where, "config": True}


# Config values: who writes them.


class ConfigWatch:
    """A finder that watches torch's config machinery from its import on."""

    @staticmethod
    def find_spec(
        name: str, path: "Optional[Sequence[str]]" = None, target: object = None
    ) -> "Optional[ModuleSpec]":
        if name != MACHINERY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            with contextlib.suppress(Exception):
                watch_writes(module)

        loader.exec_module = exec_module
        return spec


def watch_writes(machinery: "Any") -> None:
    """Note each write to a config module, and to its entries if torch has entries."""
    module_set = machinery.ConfigModule.__setattr__

    def __setattr__(self: "ModuleType", name: str, value: object) -> None:
        known = self.__dict__.get("_config", {})
        if name in known:
            _note_write(self.__name__, name, value)
        module_set(self, name, value)

    machinery.ConfigModule.__setattr__ = __setattr__
    load = machinery.ConfigModule.load_config

    def load_config(self: "ModuleType", *given: object) -> None:
        # In 2.4, 2.5 and 2.15 this function uses neither of the two others.
        before = read_module(self)
        load(self, *given)
        for key, value in read_module(self).items():
            if key not in before or before[key] != value:
                _note_write(self.__name__, key, value)

    machinery.ConfigModule.load_config = load_config
    entry = getattr(machinery, "_ConfigEntry", None)
    if entry is None:
        return
    entry_set = entry.__setattr__

    def set_entry(self: object, name: str, value: object) -> None:
        entry_set(self, name, value)
        ours = sys._getframe(1).f_code.co_filename == machinery.__file__
        if name in VALUES and not ours:
            _note_entry(self, value)

    entry.__setattr__ = set_entry


def _note_entry(entry: object, value: object) -> None:
    for module in CONFIGS:
        for key, known in (
            getattr(sys.modules.get(module), "__dict__", {}).get("_config", {}).items()
        ):
            if known is entry:
                _note_write(module, key, value)


def _note_write(module: str, key: str, value: object) -> None:
    target = "%s.%s" % (module, key)
    entry = sys.modules[module].__dict__["_config"][key]
    alias = getattr(entry, "alias", None)
    where, temporary = writing_place()
    if not temporary:
        plain = plain_value(value)
        writes.append({"name": alias or target, "value": plain, "stage": stage, **where})


# Values


def read_values() -> "dict[str, ModuleReading]":
    """By module, the value of each key, without keys that are an alias of another key."""
    found: dict[str, ModuleReading] = {}
    for name in CONFIGS:
        module = sys.modules.get(name)
        table = getattr(module, "__dict__", {}).get("_config")
        if table is None:
            continue
        found[name] = {"file": str(getattr(module, "__file__", "")), "values": read_module(module)}
    return found


def read_module(module: object) -> "dict[str, PlainValue]":
    values = {}
    for key, entry in list(vars(module)["_config"].items()):
        if not getattr(entry, "alias", None):
            with contextlib.suppress(Exception):
                values[key] = plain_value(getattr(module, key))
    return values


def in_a_thread(call: "Callable[[], Found]") -> "Optional[Found]":
    found: list[Found] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    return found[0] if found else None


def attempt_import(name: str, failed: "list[FailedImport]") -> bool:
    """Import a module. Put what it raises on the list, SystemExit included."""
    try:
        importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name in CONFIGS:
            return True  # torch 2.4 and 2.5 have no torch.compiler.config
        said = "%s: %s" % (type(error).__name__, error)
        trace = traceback.extract_tb(error.__traceback__)
        steps = [step for step in trace if step.filename not in (__file__, importlib.__file__)]
        last = next((s for s in reversed(steps) if not s.filename.startswith("<")), None)
        failed.append(
            {
                "import": name,
                "error": shorten_text(" ".join(said.split())),
                "file": last.filename if last else "",
                "line": (last.lineno or 0) if last else 0,
                "missing": isinstance(error, ModuleNotFoundError) and error.name == "torch",
                "last_read": last_read,
            }
        )
        return False
    return True


def shorten_text(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


def torch_here() -> "TorchFound":
    spec = None
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    torch = sys.modules.get("torch")
    version = sys.modules.get("torch.version")
    return {
        "file": spec.origin,
        "version": str(getattr(torch, "__version__", "")),
        "hip": getattr(version, "hip", None),
        "cuda": getattr(version, "cuda", None),
    }


def import_stages(imports: "list[str]") -> "Iterator[tuple[str, list[str]]]":
    for name in imports:
        yield "import " + name, [name]
    yield "import torch", ["torch", *CONFIGS]


def read_process(ask: "ChildTaskText") -> "ChildAnswer":
    global stage
    failed: list[FailedImport] = []
    changes: list[ConfigChange] = []
    before: dict[str, ModuleReading] = {}
    if not ask["site"]:
        sys.path[:] = ask["path"]
    elif not ask["hook"]:
        import site

        # After an error it goes on, as the interpreter does.
        try:
            site.main()
        except BaseException as error:
            failed.append({"import": "site", "error": repr(error), "file": "", "line": 0})
    here = dict(os.environ)
    for stage, names in (("site", []), *(import_stages(ask["imports"]) if ask["torch"] else ())):
        for name in names:
            if not attempt_import(name, failed):
                break
        now = read_values()
        for module, one in now.items():
            old = before[module]["values"] if module in before else {}
            for key, value in one["values"].items():
                if key in old and old[key] != value:
                    changes.append({"name": "%s.%s" % (module, key), "stage": stage})
        before = now
    stage = "end"
    modules = read_values()
    threads = in_a_thread(read_values) or {}
    for module, one in modules.items():
        others = threads[module]["values"] if module in threads else {}
        one["threads"] = {k: v for k, v in others.items() if v != one["values"].get(k)}
    installed = {}
    for name in ("sglang", "vllm", "aiter"):
        with contextlib.suppress(Exception):
            spec = importlib.util.find_spec(name)
            if spec is not None:
                installed[name] = str(spec.origin or "")
    # This reads the version only now, when the import of torch has ended or failed.
    torch = torch_here()
    return {
        "path": sys.path,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch,
        "modules": modules,
        "failed": failed,
        "changes": changes,
        "writes": writes,
        "env_writes": env_writes,
        "reads": reads,
        "started": here,
        "environ": dict(os.environ),
        "installed": installed,
        "report": hook_report() if ask["hook"] else None,
    }


def hook_report() -> "dict[str, object]":
    try:
        import rocm_autopatch

        return rocm_autopatch.status()
    except BaseException as error:
        return {"errors": ["%s: %s" % (type(error).__name__, error)]}


def run_child() -> None:
    ask = json.loads(sys.argv[1])
    answer = sys.argv[2]
    del sys.argv[1:]
    warnings.simplefilter("ignore")
    dropped.update(ask["without"])
    watch_environment()
    if not ask["hook"]:
        sys.meta_path.insert(0, ConfigWatch())
    found = read_process(ask)
    with open(answer, "w", encoding="utf-8") as stream:
        json.dump(found, stream, default=repr)
    os._exit(0)  # Threads and atexit functions of the imported modules must not run any more.


if __name__ == "__main__":
    run_child()
