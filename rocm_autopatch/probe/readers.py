"""Which installed file reads a variable: told from the files, without importing any of them."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rocm_autopatch.policy import lint
from rocm_autopatch.probe import variables
from rocm_autopatch.probe.answers import FileMentions, NamesInCode
from rocm_autopatch.probe.index import IndexStore, ScanWorkers, WordIndex, make_indexes
from rocm_autopatch.probe.installed import find_installed
from rocm_autopatch.probe.variables import VariableVerdict
from rocm_autopatch.startup import baseline

# What is known of a variable: a file reads it; a file may read it; nothing does; nothing does, nor
# any other name of its family, so that it may be another program's; or not all could be looked at.
READ, PERHAPS, NOT_READ = "read", "perhaps", "not read"
ELSEWHERE, UNKNOWN = "elsewhere", "unknown"
LIMIT_S = 120.0
# How many files of a distribution are looked at before the next look, at first.
_AT_ONCE = 2
_MOST_NAMED = 3
# A longer text is not kept within a std::string, and so stands in a library's constants as a whole.
_SHORT = 15
_LIKE = 0.86
# Names whose readers do not have them as a whole string.
_BY_FAMILY = {
    "LD_": "the dynamic loader",
    "LC_": "the C library",
    "MALLOC_": "the C library",
    "GLIBC_": "the C library",
    "PIP_": "pip",
    "OMP_": "libgomp, whose strings lack OMP_",
    "GOMP_": "libgomp, whose strings lack GOMP_",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class VariableMention:
    """A place in a file, and how it reads or names the variable. The line is 0 in a library."""

    distribution: str
    file: str
    line: int
    form: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} ({self.form})"


@dataclass
class VariableReaders:
    """What the files say about a variable.

    ``same`` are other variables for the same config key, with which of the two torch takes.
    """

    name: str
    state: str = NOT_READ
    read_by: list[VariableMention] = field(default_factory=list)
    named_by: list[VariableMention] = field(default_factory=list)
    set_by: list[VariableMention] = field(default_factory=list)
    said_by: list[VariableMention] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    why: str = ""
    whose: str = ""
    same: list[str] = field(default_factory=list)
    verdict: VariableVerdict | None = None


@dataclass
class ReadersReport:
    """The answers, and what was looked at."""

    told: list[VariableReaders]
    files: int
    groups: int
    seconds: float
    kept: str
    notes: list[str]
    surroundings: int = 0

    @property
    def not_read(self) -> list[str]:
        """The variables that nothing reads."""
        return [one.name for one in self.told if one.state == NOT_READ]


def find_readers(
    names: Sequence[str],
    environment: Mapping[str, str],
    path: Sequence[str],
    limit_s: float = LIMIT_S,
) -> ReadersReport:
    """Look for the readers of variables, of those in *environment* if no *names* are given.

    *path* is Python's search path. After *limit_s* seconds, what was not looked at is unknown.
    """
    began = time.monotonic()
    installed = find_installed(path, environment)
    workers = ScanWorkers(limit_s)
    kept = IndexStore(environment)
    files = IndexedFiles(make_indexes(installed.groups, kept, workers), workers)
    asked = list(dict.fromkeys(names)) or sorted(filter(_is_asked, environment))
    told = [files.tell(name) for name in files.resolved(asked)]
    files.look_in_code([one.name for one in told if one.state == NOT_READ])
    told = [files.tell(one.name) if one.state == NOT_READ else one for one in told]
    if not names:
        own = [one for one in told if not variables.is_surrounding(one.name)]
        surroundings = len(environment) - len(own)
        told = own
    else:
        surroundings = 0
    files.add_near([one for one in told if one.state == NOT_READ])
    for one in told:
        if one.state == NOT_READ and not (names or one.near or files.has_family(one.name)):
            one.state = ELSEWHERE
    for one in told:
        _join_verdicts(one, environment, files.torch)
    files.save(kept)
    notes = list(installed.notes)
    if workers.late:
        notes.append(f"the time of {limit_s:.0f} s was over, so not all files were looked at")
    if workers.failed:
        first = next(iter(workers.failed.items()))
        notes.append(f"{len(workers.failed)} files can't be read, such as {first[0]}: {first[1]}")
    if kept.why:
        notes.append(f"what was found is not kept: {kept.why}")
    return ReadersReport(
        told,
        sum(len(group.files) for group in installed.groups),
        len(installed.groups),
        time.monotonic() - began,
        "" if kept.why else kept.directory,
        notes,
        surroundings,
    )


def _is_asked(name: str) -> bool:
    return not name.startswith("ROCM_AUTOPATCH") and bool(_NAME.fullmatch(name))


class IndexedFiles:
    """What is known of all files, and what has to be looked at more closely."""

    def __init__(self, indexes: list[WordIndex], workers: ScanWorkers) -> None:
        self.indexes = indexes
        self._workers = workers

    @property
    def torch(self) -> str:
        """The version of the torch that is installed, "" if none is."""
        names = (index.group.name.partition(" ") for index in self.indexes)
        return next((version for name, _, version in names if name == "torch"), "")

    def save(self, kept: IndexStore) -> None:
        """Keep what was found."""
        for index in self.indexes:
            kept.save(index)

    def resolved(self, names: Sequence[str]) -> Sequence[str]:
        """The same names, after the sources that may read them were looked at.

        Of each group, files are looked at until one reads the name. Each time they are more, so
        that a name in many files takes few rounds.
        """
        number = _AT_ONCE
        while not self._workers.late:
            wanted: dict[str, tuple[WordIndex, int]] = {}
            for index in self.indexes:
                for name in names:
                    for one in self._open_questions(index, name)[:number]:
                        wanted[index.group.path(index.group.files[one])] = index, one
            if not wanted:
                break
            found: dict[str, FileMentions] = self._workers.ask("reads", list(wanted))
            for path, (index, one) in wanted.items():
                if path in found:
                    index.trees[one] = found[path]
                    index.changed = True
                else:
                    index.skipped.add(one)
            number *= 2
        return names

    def look_in_code(self, names: Sequence[str]) -> None:
        """Look for short names in the instructions of libraries."""
        short = [name for name in names if len(name) <= _SHORT]
        new = [index for index in self.indexes if not index.code.keys() >= set(short)]
        files = {
            index.group.path(index.group.files[one]): (index, one)
            for index in new
            for one in index.asking
        }
        found: dict[str, NamesInCode] = self._workers.ask("code", list(files), short)
        if self._workers.late:
            return
        for index in new:
            index.changed = True
            index.code.update((name, []) for name in short)
        for path, (index, one) in files.items():
            for name in found[path]["names"] if path in found else ():
                index.code[name].append(one)

    def _open_questions(self, index: WordIndex, name: str) -> list[int]:
        """The files of a group that may read a name and were not looked at, the likeliest first."""
        if name in index.strings:
            return []
        numbers = index.words.get(name, ())
        if any(name in index.trees[one]["reads"] for one in numbers if one in index.trees):
            return []
        return sorted(
            (one for one in numbers if one not in index.trees and one not in index.skipped),
            key=lambda one: _reading_order(index.group.files[one]),
        )

    def tell(self, name: str) -> VariableReaders:
        """What the files say about a name."""
        told = VariableReaders(name)
        for index in self.indexes:
            self._tell_of(index, name, told)
        if told.read_by:
            told.state = READ
            return told
        family = next((f for f in _BY_FAMILY if name.startswith(f)), "")
        if family:
            told.why = f"{_BY_FAMILY[family]} reads such names"
        if told.named_by or family:
            told.state = PERHAPS
        elif name != name.upper():
            told.state = UNKNOWN
            told.why = "names with small letters are not looked for everywhere"
        elif self._workers.late:
            told.state = UNKNOWN
            told.why = "not all files were looked at"
        return told

    def _tell_of(self, index: WordIndex, name: str, told: VariableReaders) -> None:
        group = index.group

        def reader(number: int, line: int, form: str) -> VariableMention:
            return VariableMention(group.name, group.shown(group.files[number]), line, form)

        for number in index.strings.get(name, ()):
            told.read_by.append(reader(number, 0, "a string"))
        for number in index.words.get(name, ()):
            tree = index.trees.get(number)
            if tree is None:
                continue
            parts = (
                (tree["reads"], told.read_by),
                (tree["named"], told.named_by),
                (tree["sets"], told.set_by),
            )
            for mentions, found in parts:
                if name in mentions:
                    line, form = mentions[name]
                    found.append(reader(number, line, form))
                    break
            else:
                told.said_by.append(reader(number, 0, "a text"))
        for number in index.said.get(name, ()):
            told.said_by.append(reader(number, 0, "a longer string"))
        if told.read_by:
            return
        told.named_by += [reader(one, 0, "in its instructions") for one in index.code.get(name, ())]
        for run, numbers in index.runs.items():
            if name in run:
                told.named_by += [reader(one, 0, "within a string") for one in numbers]
        for prefix, numbers in index.prefixes.items():
            if len(prefix) > 3 and name.startswith(prefix.upper()):
                form = f"names that begin with {prefix}"
                told.named_by += [reader(one, 0, form) for one in numbers]
        # A linker keeps the end of a longer string only once.
        if name not in index.words and name not in index.said:
            ends = [word for word in index.strings if word.endswith(name) and word != name]
            for word in ends[:1]:
                told.named_by += [
                    reader(one, 0, f"the end of {word}") for one in index.strings[word]
                ]

    def add_near(self, unread: Sequence[VariableReaders]) -> None:
        """Add the names that are read and near to those that nothing reads."""
        if not unread:
            return
        known = {name for index in self.indexes for name in (*index.words, *index.strings)}
        known = {name for name in known if "_" in name.strip("_")}
        close = {one.name: list(_near_names(one.name, known)) for one in unread}
        self.resolved(list(dict.fromkeys(name for names in close.values() for name in names)))
        for one in unread:
            read = (name for name in close[one.name] if self._is_read(name))
            one.near = [name for name, _ in zip(read, range(_MOST_NAMED))]

    def has_family(self, name: str) -> bool:
        """Whether the table has such names, or a distribution is called like their first word."""
        head = name.partition("_")[0].lower()
        names = {index.group.name.partition(" ")[0].lower() for index in self.indexes}
        return variables.is_listed(name) or any(re.split("[_.-]", one)[0] == head for one in names)

    def _is_read(self, name: str) -> bool:
        return self.tell(name).state == READ


def _reading_order(file: str) -> tuple[bool, bool, int, str]:
    """The order in which files are looked at: registries first, tests last."""
    last = file.rpartition("/")[2]
    return "test" in file, not re.match(r"_?(env|config)", last), file.count("/"), file


def _near_names(name: str, known: Iterable[str]) -> Iterator[str]:
    """Names that are written almost so, the nearest first, and those of another family."""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(name)
    head, _, tail = name.partition("_")
    found = []
    for other in known:
        if other == name:
            continue
        family, _, rest = other.partition("_")
        if rest == tail and tail.count("_") and (family in head or head in family):
            found.append((_LIKE, other))
        elif abs(len(other) - len(name)) <= 4 and (
            other[:2] == name[:2] or other[-3:] == name[-3:]
        ):
            matcher.set_seq1(other)
            if matcher.quick_ratio() >= _LIKE and matcher.ratio() >= _LIKE:
                found.append((matcher.ratio(), other))
    return (other for _, other in sorted(found, key=lambda row: (-row[0], row[1]))[:8])


def _join_verdicts(told: VariableReaders, environment: Mapping[str, str], torch: str) -> None:
    """Add what the table of verdicts and the image's record know."""
    value = environment.get(told.name)
    if value is not None:
        image, _ = baseline.read()
        whose = baseline.origin(told.name, value, image)
        told.whose = {"image": "the image's", "user": "a user's"}.get(whose, "")
        verdict = variables.of_variable(told.name, value, torch, environment=environment)
        told.verdict = verdict if verdict.row else None
    told.same = list(_same_setting(told.name, variables.minor_version(torch))) if torch else []


def _same_setting(name: str, version: str) -> Iterator[str]:
    """Other variables that decide about the same config key, by the table of torch's keys."""
    for key in variables.fed_keys(version).get(name, ()):
        record = lint.keys(version)[key]
        kinds = (record.env_force, record.env_default, record.env)
        rank = {one: at for at, names in reversed([*enumerate(kinds)]) for one in names}
        for other, at in sorted(rank.items()):
            if other != name:
                order = "is asked, too"
                if at != rank[name]:
                    order = "outranks it" if at < rank[name] else "is outranked by it"
                yield f"{key}: {other} {order}"
