"""Which variables a file reads or names: Python, C and shell sources, libraries and programs.

It is run as a script, in processes of its own, and imports only the standard library: what it looks
at may be deep enough to end an interpreter, and is never imported. A line of JSON on stdin asks,
and one on stdout answers.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import re
import resource
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocm_autopatch.probe.answers import FileMentions, FileWords, NamesInCode, ScanTask

# Larger sources are read by patterns and not by their syntax tree, which takes 100 times the size.
_LARGEST_TREE = 8 << 20
# What is read of one file, or of one section of a library.
_LARGEST = 64 << 20
# What this process may take. A file that needs more is one that can't be read.
_MEMORY = 2 << 30
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{1,99}")
_NAME = re.compile(r"[A-Z][A-Z0-9_]{1,99}")
_UPPER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
# All else becomes a blank. In libraries, the end of a string stays.
_BLANKED = bytes(c if c in _UPPER else 32 for c in range(256))
_STRINGS = bytes(c if c in _UPPER or not c else 32 for c in range(256))
_PROXY = re.compile(rb"[a-z]+_proxy")
# Names that are put together: f"VLLM_{...}", "VLLM_" + ..., and a prefix of pydantic's settings.
_PREFIXES = re.compile(
    rb"(?:environ\b[^\n]{0,12}|env\w*\()f?[\"']([A-Z][A-Z0-9_]*_)(?:\{|[\"']\s*\+)"
    rb"|env_prefix[\"']?\s*[=:]\s*[\"']([A-Za-z]\w*)"
)
_JOINED = (b"_{", b'_" +', b"_' +", b"env_prefix")
# Strings of Rust and Go have no end, so names run into one another.
_RUST, _GO = b"/rustc/", b".gopclntab"
_SECTIONS = (b".rodata", b".lrodata", b".data")
_PROGBITS, _EXECUTABLE = 1, 4
_LARGEST_CODE = 768 << 20
# So many bytes of instructions may be between two parts of a name.
_NEAR = 48
_LARGEST_DATA = 4 << 20
_ENV = re.compile(rb"env", re.IGNORECASE)

_HELPER = re.compile(r"(?:^|_)(?:env|environ)(?:_|$|[A-Z])|(?:^|[a-z_])Env(?:$|[A-Z_])|^getenv")
_WRITES = re.compile(
    r"(?i)^_*(?:set|unset|put|del|delete|remove|clear|write|export|patch|override)_?\w*env"
)
_REGISTRY = re.compile(r"^_?(?:Env(?:[A-Z_]|$)|env(?:_|$))")
_ENV_KEYWORD = re.compile(r"^env(?:_?var\w*|_name\w*|ironment_?variable)?$|_env(?:_var|_name)?$")
_C_CALL = re.compile(rb"\b(\w*env\w*)\s*\(\s*L?(\"?)([A-Za-z_][A-Za-z0-9_]+)\2\s*[,)]", re.I)
_PY_CALL = re.compile(
    rb"(?:environ(?:\.\w+)?\s*[\[(]|getenv\(|\b\w*env\w*\()\s*[\"']([A-Za-z_]\w+)[\"']"
)
_QUOTED = re.compile(rb"[\"']([A-Z][A-Z0-9_]+)[\"']")
_SHELL_READ = re.compile(
    rb"(?<!\\)\$\{?([A-Za-z_][A-Za-z0-9_]*)|(?:printenv|-v)\s+([A-Z][A-Z0-9_]+)"
)
_SHELL_SET = re.compile(rb"(?:^|[\s;])([A-Za-z_][A-Za-z0-9_]*)=", re.M)

# A name to the line and the form in which it is read first.
Found = dict[str, tuple[int, str]]
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_words(path: str) -> FileWords:
    """What may be names of variables in a file: ``kind``, and by kind their words.

    ``py``, ``c`` and ``sh``: ``words`` stand anywhere in it. ``elf``: ``words`` are whole strings,
    ``said`` stand in longer ones, ``runs`` have no end. ``prefixes`` begin names that are put
    together. Raises OSError.
    """
    with open(path, "rb") as stream:
        head = stream.read(4)
        if head == b"\x7fELF":
            return _scan_strings(stream)
        kind = _file_kind(path, head)
        if not kind:
            return {"kind": "", "words": []}
        data = head + stream.read(_LARGEST)
    reads = kind == "sh" or any(one in data for one in (b"env", b"Env", b"ENV"))
    if kind == "c" and not reads:
        return {"kind": kind, "words": []}
    words = set(data.translate(_BLANKED).split())
    # Without an underline, what no code near the environment has is no name of a variable.
    found = {w for w in words if len(w) > 1 and w[:1].isalpha() and (reads or b"_" in w)}
    if reads and b"_proxy" in data:
        found.update(_PROXY.findall(data))
    # The pattern is slow, and most files have none of this.
    joined = reads and any(one in data for one in _JOINED)
    prefixes = {one or two for one, two in _PREFIXES.findall(data)} if joined else set()
    return {"kind": kind, "words": _as_texts(found), "prefixes": _as_texts(prefixes)}


def _as_texts(found: set[bytes]) -> list[str]:
    return sorted(word.decode("ascii", "replace") for word in found if len(word) < 100)


def _file_kind(path: str, head: bytes) -> str:
    last = path.rpartition("/")[2]
    suffix = last.rpartition(".")[2] if "." in last else ""
    if suffix in ("py", "pyx", "pth"):
        return "py"
    if suffix in ("sh", "bash"):
        return "sh"
    if head[:2] == b"#!":
        with open(path, "rb") as stream:
            first = stream.readline(200)
        return "py" if b"python" in first else "sh" if b"sh" in first else ""
    return "c" if suffix and suffix not in ("so", "a", "o") else ""


def _scan_strings(stream: BinaryIO) -> FileWords:
    words: set[bytes] = set()
    said: set[bytes] = set()
    runs: set[bytes] = set()
    sections = [*_elf_sections(stream)]
    symbols = b"".join(data for name, data in sections if name == b".dynstr")
    constants = [data for name, data in sections if name not in (b".dynstr", _GO)]
    go = any(name == _GO for name, _ in sections)
    # What calls neither getenv nor a helper of another library, such as c10::utils::get_env.
    if symbols and not _ENV.search(symbols) and not any(b"environ" in one for one in constants):
        constants = []
    for data in constants:
        runs_on = go or _RUST in data
        shown = data.translate(_STRINGS)
        if b"_proxy" in data:
            words.update(_PROXY.findall(data))
        pieces = set(shown.split(b"\0"))
        longer = {piece for piece in pieces if b" " in piece}
        words |= pieces - longer
        (runs if runs_on else said).update(b" ".join(longer).split())
    words = {word for word in words if len(word) > 1 and not word[:1].isdigit()}
    runs = {word[at : at + 400] for word in runs for at in range(0, len(word), 300)}
    return {
        "kind": "elf",
        "asks": bool(constants),
        "words": _as_texts(words),
        "said": _as_texts({word for word in said - words if b"_" in word and len(word) > 3}),
        "runs": sorted(word.decode("ascii") for word in runs if b"_" in word),
        "prefixes": [],
    }


def _elf_sections(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """The symbols and constants of an ELF file of 64 bits, by section.

    Code is not read: that of GPUs may be gigabytes.
    """
    rows = [*_section_rows(stream)]
    if not rows:
        # It was stripped of its table.
        stream.seek(0)
        yield b"", stream.read(_LARGEST)
    for called, kind, _, offset, length in rows:
        constants = kind == _PROGBITS and called.startswith(_SECTIONS)
        if constants and called.startswith(b".data") and length > _LARGEST_DATA:
            continue
        if called == _GO:
            yield called, b""
        if constants or called == b".dynstr":
            stream.seek(offset)
            yield called, stream.read(min(length, _LARGEST))


def _section_rows(stream: BinaryIO) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Name, type, flags, offset and length of each section, none where there is no table."""
    stream.seek(0)
    head = stream.read(64)
    table, size, number, names = 0, 0, 0, 0
    if len(head) == 64 and head[4] == 2 and head[5] == 1:
        table = struct.unpack_from("<Q", head, 40)[0]
        size, number, names = struct.unpack_from("<HHH", head, 58)
    rows = []
    if table and size == 64:
        stream.seek(table)
        read = stream.read(size * number)
        rows = [
            struct.unpack_from("<IIQQQQ", read, at) for at in range(0, len(read) - size + 1, size)
        ]
    if names < len(rows):
        stream.seek(rows[names][4])
        texts = stream.read(min(rows[names][5], 1 << 20))
        for name, kind, flags, _, offset, length in rows:
            yield texts[name : texts.find(b"\0", name)], kind, flags, offset, length


def find_in_code(path: str, names: list[str]) -> NamesInCode:
    """Which of these names the code of a library may have in its instructions: ``names``.

    A compiler makes std::string("HSA_CU_MASK") of numbers: 8 letters, and what is left. Raises
    OSError.
    """
    found: set[str] = set()
    with open(path, "rb") as stream:
        for _, kind, flags, offset, length in [*_section_rows(stream)]:
            if kind == _PROGBITS and flags & _EXECUTABLE and length <= _LARGEST_CODE:
                stream.seek(offset)
                code = stream.read(length)
                found.update(name for name in names if _is_in_code(name.encode(), code))
    return {"names": sorted(found)}


def _is_in_code(name: bytes, code: bytes) -> bool:
    size = 8 if len(name) >= 8 else 4
    first, rest = name[:size], name[size:]
    # What is left is written as it is, or with letters before it that make it 2, 4 or 8.
    ends = {rest[:4], rest[:2], name[-8:], name[-4:], name[-2:]} if rest else {b""}
    at = code.find(first)
    while at >= 0:
        near = code[max(at - _NEAR, 0) : at] + b"\0" + code[at + size : at + size + _NEAR]
        if any(end in near for end in ends if len(end) > 1 or end == rest):
            return True
        at = code.find(first, at + 1)
    return False


def read_names(path: str) -> FileMentions:
    """What a source does with the variables that it names, each with its first line.

    ``reads`` has the form, too. ``sets`` only gives them a value or takes them away. ``named`` are
    strings that are the name and nothing else, whose use was not seen. Raises OSError.
    """
    with open(path, "rb") as stream:
        data = stream.read(_LARGEST)
    kind = _file_kind(path, data[:4])
    if kind == "py" and len(data) <= _LARGEST_TREE and not path.endswith((".pyx", ".pth")):
        try:
            # A source may have bytes that are no text, or be in another Python's language.
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        else:
            return _PythonSource(tree).found()
    patterns = {"sh": (_SHELL_READ, _SHELL_SET), "py": (_PY_CALL, None), "c": (_C_CALL, None)}
    reads, sets = patterns[kind or "c"]
    found: FileMentions = {"reads": {}, "sets": {}, "named": {}}
    for match in reads.finditer(data):
        *called, name = (group for group in match.groups() if group and group != b'"')
        writes = called and _WRITES.search(called[0].decode("ascii", "replace"))
        form = "$" if kind == "sh" else called[0].decode("ascii") if called else "a call"
        _add_mention(found["sets" if writes else "reads"], name, data, match.start(), form)
    for match in sets.finditer(data) if sets else ():
        _add_mention(found["sets"], match[1], data, match.start(), "=")
    for match in _QUOTED.finditer(data) if kind != "sh" else ():
        _add_mention(found["named"], match[1], data, match.start(), "a string")
    return found


def _add_mention(found: Found, name: bytes, data: bytes, at: int, form: str) -> None:
    text = name.decode("ascii", "replace")
    if text not in found:
        found[text] = (data.count(b"\n", 0, at) + 1, form)


class _PythonSource:
    """What a Python source does with variables."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._environ: set[str] = set()
        self._getenv = {"getenv", "getenvb"}
        self._texts: dict[str, list[str]] = {}
        self._reads: Found = {}
        self._sets: Found = {}
        self._named: Found = {}
        self._done: set[int] = set()
        self._dynamic = any(isinstance(n, _Function) and n.name == "__getattr__" for n in tree.body)
        for node in self._nodes:
            self._learn(node)
        for node in self._nodes:
            self._look(node)
        for node in self._nodes:
            if isinstance(node, ast.Constant) and id(node) not in self._done:
                self._note(self._named, node, "a string")

    def found(self) -> FileMentions:
        return {"reads": self._reads, "sets": self._sets, "named": self._named}

    def _learn(self, node: ast.AST) -> None:
        """Learn what stands for os.environ and os.getenv here, and which names stand for texts."""
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            for alias in node.names:
                if alias.name in ("environ", "environb"):
                    self._environ.add(alias.asname or alias.name)
                if alias.name in ("getenv", "getenvb"):
                    self._getenv.add(alias.asname or alias.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                called = _last_part(target)
                if called and self._is_environ(node.value):
                    self._environ.add(called)
                elif called and _dotted_name(node.value) in ("os.getenv", "os.environ.get"):
                    self._getenv.add(called)
                elif called:
                    self._texts.setdefault(called, []).extend(_literal_texts(node.value))
        elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            self._texts.setdefault(node.target.id, []).extend(_literal_texts(node.iter))

    def _is_environ(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in ("environ", "environb") or node.attr in self._environ
        if isinstance(node, ast.Name):
            return node.id in self._environ
        if isinstance(node, ast.BoolOp):
            return any(map(self._is_environ, node.values))
        if isinstance(node, ast.Dict):
            return any(
                key is None and self._is_environ(v) for key, v in zip(node.keys, node.values)
            )
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
                return self._is_environ(node.func.value) or any(map(self._is_environ, node.args))
            return _last_part(node.func) in ("dict", "deepcopy") and any(
                map(self._is_environ, node.args)
            )
        return False

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Subscript) and self._is_environ(node.value):
            reads = isinstance(node.ctx, ast.Load)
            self._take(self._reads if reads else self._sets, node.slice, "environ[]")
        elif isinstance(node, ast.Compare):
            for left, operator, right in zip(
                [node.left, *node.comparators], node.ops, node.comparators
            ):
                if isinstance(operator, (ast.In, ast.NotIn)) and self._is_environ(right):
                    self._take(self._reads, left, "in environ")
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Dict):
            self._dict(node)
        elif isinstance(node, ast.ClassDef):
            self._registry(node)
        elif (
            isinstance(node, ast.If) and _last_part(node.test) == "TYPE_CHECKING" and self._dynamic
        ):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    self._put(self._reads, one.target.id, one.lineno, "a declaration")

    def _call(self, node: ast.Call) -> None:
        called = _last_part(node.func)
        first = node.args[:1]
        if isinstance(node.func, ast.Attribute) and self._is_environ(node.func.value):
            if called in ("get", "pop", "setdefault", "__getitem__", "__contains__"):
                first += [word.value for word in node.keywords if word.arg == "key"]
                for one in first:
                    self._take(self._reads, one, f"environ.{called}")
            elif called == "update":
                for one in node.args:
                    self._write_keys(one)
                for word in node.keywords:
                    self._put(self._sets, word.arg or "", node.lineno, "environ.update")
            return
        if called in self._getenv:
            for one in [*first, *(word.value for word in node.keywords if word.arg == "key")]:
                self._take(self._reads, one, "getenv")
        elif _WRITES.search(called):
            for one in node.args:
                self._take(self._sets, one, called)
                self._write_keys(one)
        elif called == "dict" and isinstance(node.func, ast.Attribute) and node.args:
            # mock.patch.dict(os.environ, {...})
            if self._is_environ(node.args[0]):
                for one in node.args[1:]:
                    self._write_keys(one)
        elif _HELPER.search(called):
            for one in node.args:
                if one in first or "_" in "".join(_literal_texts(one)):
                    self._take(self._reads, one, called)
        for word in node.keywords:
            if word.arg and _ENV_KEYWORD.search(word.arg):
                self._write_keys(word.value)
                if not isinstance(word.value, ast.Dict):
                    self._take(self._reads, word.value, f"{word.arg}=")

    def _dict(self, node: ast.Dict) -> None:
        """A registry is a dict of names to functions. One with all of os.environ is for a child."""
        child = self._is_environ(node)
        for key, one in zip(node.keys, node.values):
            if key is not None and child:
                self._take(self._sets, key, "{**environ}")
            elif key is not None and isinstance(one, ast.Lambda):
                self._take(self._reads, key, "a registry")

    def _registry(self, node: ast.ClassDef) -> None:
        for one in node.body:
            made = one.value if isinstance(one, (ast.Assign, ast.AnnAssign)) else None
            form = _last_part(made.func) if isinstance(made, ast.Call) else ""
            if _REGISTRY.search(form):
                for target in getattr(one, "targets", None) or [getattr(one, "target", one)]:
                    self._put(self._reads, _last_part(target), one.lineno, form)

    def _write_keys(self, node: ast.AST) -> None:
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if key is not None:
                    self._take(self._sets, key, "a dict")

    def _take(self, found: Found, node: ast.AST, form: str) -> None:
        """Note the names that an argument may stand for."""
        for one in _name_parts(node):
            if isinstance(one, ast.Constant):
                self._done.add(id(one))
                self._note(found, one, form)
            else:
                for text in self._texts.get(_last_part(one), ()):
                    self._put(found, text, getattr(one, "lineno", 0), form)

    def _note(self, found: Found, node: ast.Constant, form: str) -> None:
        text = node.value
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        if isinstance(text, str) and (_WORD if found is self._reads else _NAME).fullmatch(text):
            self._put(found, text, node.lineno, form)

    def _put(self, found: Found, name: str, line: int, form: str) -> None:
        if _WORD.fullmatch(name) and (name not in found or line < found[name][0]):
            found[name] = (line, form)


def _last_part(node: ast.AST) -> str:
    """The last part of a dotted name, "" for what is none."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _dotted_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr}"
    return str(getattr(node, "id", ""))


def _name_parts(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [part for one in node.elts for part in _name_parts(one)]
    if isinstance(node, ast.IfExp):
        return [*_name_parts(node.body), *_name_parts(node.orelse)]
    return [node]


def _literal_texts(node: ast.AST) -> list[str]:
    """The texts of a literal, or of a list of them."""
    values = [getattr(one, "value", None) for one in _name_parts(node)]
    return [text for text in values if isinstance(text, str) and _WORD.fullmatch(text)]


_JOBS: dict[str, Callable[[str], FileWords | FileMentions]] = {
    "words": name_words,
    "reads": read_names,
}


def _answer_task(ask: ScanTask) -> list[FileWords | FileMentions | NamesInCode | str]:
    found: list[FileWords | FileMentions | NamesInCode | str] = []
    for path in ask["files"]:
        try:
            job = ask["job"]
            code = job == "code"
            found.append(find_in_code(path, ask["names"]) if code else _JOBS[job](path))
        except OSError as error:
            found.append(error.strerror or str(error))
        except Exception as error:
            # One odd file must not hide the others.
            found.append(f"{type(error).__name__}: {error}")
    return found


def main() -> None:
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or hard > _MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, hard))
    # Trees are freed by their counts; the collector only looks at them again and again.
    gc.disable()
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer_task(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
