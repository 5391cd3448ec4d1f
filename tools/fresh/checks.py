"""What may go stale: each check yields findings. Nothing that is looked at is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from rocm_autopatch import startup
from rocm_autopatch.image import reference
from rocm_autopatch.patches.config import TARGETS
from rocm_autopatch.policy import lint, load, select
from rocm_autopatch.probe import scan, variables
from rocm_autopatch.probe.index import IndexStore, ScanWorkers, make_indexes
from rocm_autopatch.probe.installed import FileGroup
from rocm_autopatch.probe.readers import NOT_READ, READ, IndexedFiles, VariableReaders
from rocm_autopatch.startup import caches
from rocm_autopatch.switches import MODE_PREFIX, SWITCHES
from tools.fresh.dockerfiles import Checkout, Stage, Variable, expand, read_stages
from tools.fresh.finding import ROOT, Finding, line_of
from tools.fresh.sources import UNKNOWN, ConfigSource, overrides
from tools.fresh.wheels import Candidate, Unpacked
from tools.torch_keys import VERSIONS

# Whose variables can be judged, by the beginnings of their names: the project of the wheel.
OWNERS = {
    "torch": ("Inductor", "Dynamo", "torch"),
    "triton": ("Triton",),
    "vllm": ("vllm",),
    "sglang": ("sglang",),
}
# Where a project declares its variables, and the names that concern what we handle.
REGISTRIES = {"vllm": "vllm/envs.py", "sglang": "sglang/srt/environ.py"}
CONCERNS = re.compile(
    r"INDUCTOR|DYNAMO|COMPILE(?!D)|AUTOTUN|_TUNE|GRAPH(?!ICS)|CACHE_(DIR|ROOT|PATH)|(JIT|KERNEL)_CACHE"
    r"|(?:^|_)(ROCM|HIP|AMD|AITER|MIOPEN|HSA|TORCH|GC)(?:_|$)"
)
# A shorter name may stand in a library's instructions, which are not kept.
_SHORT = 15
_LIMIT_S = 600.0
_VARIABLES = ROOT / "rocm_autopatch" / "probe" / "variables.yaml"
_SWITCHES = ROOT / "rocm_autopatch" / "switches.py"
_POLICIES = ROOT / "policies"
# Our texts that speak of versions.
_TEXTS = (
    *("*.md", "Makefile", "docs/*.md", "policies/*.yaml", "rocm_autopatch/**/*.py"),
    *("rocm_autopatch/**/*.yaml", "tools/**/*.py", "tools/**/*.pyi", "experiments/**/*.py"),
    *("experiments/*.yaml", "demo/*.py", "deploy/**/*.md"),
)
_HISTORY = ("CHANGELOG.md",)
_CITED = re.compile(r"\b(?:torch|triton|vllm|sglang)/[\w./]+\.py\b")
_TARGETS_FILE = "cmake/therock_amdgpu_targets.cmake"
_TARGET = re.compile(r'^\s*therock_add_amdgpu_target\(\s*(gfx\w+)\s+"([^"]*)"', re.MULTILINE)


def check_torch_release(newest: Candidate) -> Iterator[Finding]:
    """A torch that is newer than all that config keys and patches were made for and tried with."""
    last = VERSIONS[-1]
    if newest.version > Version(last):
        file = ROOT / "experiments" / "matrix" / "torch_files.py"
        yield Finding(
            "torch-release",
            "torch",
            f"{last} is the newest torch",
            line_of(file, f'"{last}"'),
            f"there is {newest.version}",
            newest.file,
            "add its number there, then tools/torch_keys.py and make matrix",
        )


def check_torch_bounds() -> Iterator[Finding]:
    """Our texts that say "2.4 to" the torch before the last one of our table of keys.

    A span that ends earlier is about those torches, and not about all that we know.
    """
    first, *_, before, last = lint.known_versions()
    said = re.compile(rf"(?<![\d.]){re.escape(first)}(?:\.\d+)? to (\d\.\d+)(?![\d.]*\d)")
    for file in _our_texts():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for bound in said.findall(line):
                if bound == before:
                    shown = file.relative_to(ROOT).as_posix()
                    yield Finding(
                        "torch-bound",
                        f"repository {shown} {bound}",
                        f"torch {first} to {bound}",
                        f"{shown}:{number}",
                        f"the table of keys goes to {last}",
                        "rocm_autopatch/policy/torch_keys.json",
                        "try it with the newest torch, and say so",
                    )


def _our_texts() -> Iterator[Path]:
    for file in sorted({file for pattern in _TEXTS for file in ROOT.glob(pattern)}):
        if file.is_file() and file.name not in _HISTORY and "__pycache__" not in file.parts:
            yield file


def check_keys(torch: Unpacked) -> Iterator[Finding]:
    """Config keys that we name, and that this torch lacks or ships otherwise than we say."""
    newest = lint.known_versions()[-1]
    known = lint.keys(newest)
    sources = {}
    for module in TARGETS:
        file = module.replace(".", "/") + ".py"
        text = torch.read(file)
        if text:
            sources[module] = file, ConfigSource(text)
    for full, where in sorted(_named_keys().items()):
        record = known.get(full)
        module, name = variables.split_key(full)
        if record is None or module not in sources:
            continue
        file, source = sources[module]
        key = source.key(name)
        if key is None:
            yield Finding(
                "key-gone",
                f"torch {full}",
                f"torch {newest} has this key",
                where,
                f"torch {torch.version} has none",
                f"{torch.file}/{file}",
                "give our entry an until, and run tools/torch_keys.py",
            )
            continue
        seen = f"{torch.file}/{file}:{key.line}"
        before = frozenset((*record.env, *record.env_default, *record.env_force))
        if before != key.variables:
            yield Finding(
                "key-variables",
                f"torch {full}",
                f"{_listed(before)} decide about it",
                where,
                f"{_listed(key.variables)} do",
                seen,
                "run tools/torch_keys.py, and look at yields_to and the verdicts",
            )
        differs = key.default != record.default or type(key.default) is not type(record.default)
        if record.has_default and key.default is not UNKNOWN and differs:
            yield Finding(
                "key-default",
                f"torch {full}",
                f"torch ships {record.default!r}",
                where,
                f"it ships {key.default!r}",
                seen,
                "run tools/torch_keys.py, and look at what our entry is for",
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no variable"


def _named_keys() -> dict[str, str]:
    """The config keys that policies, switches and verdicts name, with the first place of each."""
    found: dict[str, str] = {}
    for name in load.names():
        for entry in load.top(name).config:
            file = _POLICIES / f"{name}.yaml"
            found.setdefault(f"{entry.module}.{entry.key}", line_of(file, f"    {entry.key}:"))
    for row in SWITCHES:
        if not row.key.startswith(MODE_PREFIX) and not row.is_variable:
            found.setdefault(".".join(row.setting), line_of(_SWITCHES, f'"{row.key}"'))
    for module, keys in variables.verdict_table()["config"].items():
        for key in keys:
            found.setdefault(f"{module}.{key}", line_of(_VARIABLES, f"    {key}:"))
    return found


class Reads:
    """Which of the unpacked wheels reads a variable."""

    def __init__(self, wheels: Sequence[Unpacked], cache: Path) -> None:
        kept = IndexStore({caches.VARIABLE: str(cache)})
        workers = ScanWorkers(_LIMIT_S)
        groups = [_group(wheel) for wheel in wheels]
        indexes = make_indexes(groups, kept, workers)
        for wheel, index in zip(wheels, indexes):
            # The libraries themselves are not there any more.
            first = len(index.group.files)
            index.group.files += wheel.libraries
            for number, words in enumerate(wheel.libraries.values(), first):
                index.add(number, words)
        self._files = IndexedFiles(indexes, workers)
        self._kept = kept

    def tell(self, names: Sequence[str]) -> dict[str, VariableReaders]:
        """Who reads each variable."""
        return {name: self._files.tell(name) for name in self._files.resolved(names)}


def _group(wheel: Unpacked) -> FileGroup:
    files = [file for file in wheel.sources() if not _is_test(file)]
    return FileGroup(f"{wheel.project} {wheel.version}", str(wheel.root), files, key=wheel.file)


def _is_test(file: str) -> bool:
    return "/test/" in file or "/tests/" in file


def owner(name: str) -> str:
    """The project whose wheel shows whether a variable is read, "" if none does."""
    family = variables.family_reader(name)
    return next((project for project, families in OWNERS.items() if family in families), "")


def check_readers(
    told: Mapping[str, VariableReaders], torch: str, projects: Iterable[str]
) -> Iterator[Finding]:
    """Variables that nothing reads any more, and those that are read although we say "not read".

    *told* has the answers for ``judged_names()``, and *torch* is the newest version.
    """
    there = set(projects)
    for name, one in sorted(told.items()):
        project = owner(name)
        if project not in there:
            continue
        says = _verdicts(name, torch)
        where = line_of(_VARIABLES, f"  {name}:", name) if says else _other_place(name)
        dead = bool(says) and says <= {"not read"}
        if one.state == NOT_READ and not dead and len(name) > _SHORT:
            by = ", ".join(sorted(says)) or "what it does"
            yield Finding(
                "variable-unread",
                f"{project} {name}",
                by,
                where,
                "nothing reads it",
                f"the newest {', '.join(sorted(there))}",
                "bound the verdict by until, or say not read",
            )
        elif one.state == READ and dead:
            yield Finding(
                "variable-read",
                f"{project} {name}",
                "not read",
                where,
                "it is read",
                str(one.read_by[0]),
                "give it a verdict",
            )


def judged_names() -> list[str]:
    """The variables that verdicts, policies and image records name, and that a wheel can show."""
    table = variables.verdict_table()
    names = {*table["variables"], *table["parsed"], *variables.empty_verdicts()}
    names |= {rule.name for policy in load.names() for rule in load.top(policy).env}
    names |= {setting.name for row in load.images() for setting in row.sets}
    return sorted(name for name in names if owner(name))


def _verdicts(name: str, torch: str) -> set[str]:
    """The verdicts that we have on a variable with this torch."""
    release = startup.release(torch)
    table = variables.verdict_table()
    cases = [*table["variables"].get(name, ()), *variables.empty_verdicts().get(name, ())]
    if name in table["parsed"]:
        cases.append({"verdict": "crashes", **table["parsed"][name]})
    found = {case["verdict"] for case in cases if variables.is_within(case, release)}
    if cases and not found:
        return {"not read"}  # All that is known of it is of other torches.
    return found


def _other_place(name: str) -> str:
    files = sorted(_POLICIES.glob("*.yaml"))
    return next((place for file in files if ":" in (place := line_of(file, name))), "policies")


def check_registry(wheel: Unpacked) -> Iterator[Finding]:
    """Variables that a framework declares, that concern what we handle, and that we don't know."""
    file = REGISTRIES[wheel.project]
    if not wheel.read(file):
        yield Finding(
            "registry-gone",
            f"{wheel.project} {file}",
            "it declares its variables there",
            line_of(Path(__file__), f'"{file}"'),
            "there is no such file",
            wheel.file,
            "name the new place",
        )
        return
    found = scan.read_names(str(wheel.root / file))["reads"]
    for name, (line, _) in sorted(found.items()):
        if CONCERNS.search(name) and not variables.is_known(name):
            yield Finding(
                "variable-new",
                f"{wheel.project} {name}",
                "nothing of it",
                line_of(_VARIABLES, "\nvariables:", "variables:"),
                "it is declared",
                f"{wheel.file}/{file}:{line}",
                "give it a verdict, or accept it",
            )


def check_overrides(wheel: Unpacked) -> Iterator[Finding]:
    """What a framework changes of torch or of its variables and is not accepted as known."""
    page = ROOT / "docs" / "frameworks.md"
    for file in wheel.sources():
        if _is_test(file):
            continue
        for one in overrides(wheel.read(file)):
            yield Finding(
                "override-new",
                f"{wheel.project} {file} {one.what}",
                "nothing of it",
                line_of(page, "## Who sets what"),
                f"it is changed {'at ' if one.scope == 'import' else 'in '}{one.scope}",
                f"{wheel.file}/{file}:{one.line}",
                "see whose value wins under safe, say it there, and accept it",
            )


def check_cited(wheel: Unpacked) -> Iterator[Finding]:
    """Files of a project that our verdicts cite and that are gone."""
    for number, line in enumerate(_VARIABLES.read_text(encoding="utf-8").splitlines(), 1):
        for file in _CITED.findall(line):
            if file.startswith(f"{wheel.project}/") and not wheel.read(file):
                yield Finding(
                    "source-gone",
                    f"{wheel.project} {file}",
                    "that a verdict is from it",
                    f"rocm_autopatch/probe/variables.yaml:{number}",
                    "there is no such file",
                    wheel.file,
                    "cite the file that has it now, or bound the verdict by until",
                )


def check_spoken(row: Mapping[str, str], newest: Candidate) -> Iterator[Finding]:
    """A page that speaks of another version of a project than the newest one."""
    file = ROOT / row["file"]
    spoken: list[tuple[Version, str]] = []
    for match in re.finditer(row["text"], file.read_text(encoding="utf-8")):
        try:
            spoken.append((Version(match[1]), match[1]))
        except InvalidVersion:
            continue
    last = max(spoken, default=(None, "no version"))
    if last[0] != newest.version:
        yield Finding(
            "framework-version",
            f"{newest.project} {row['file']} {newest.version}",
            f"{newest.project} {last[1]}",
            line_of(file, f" {last[1]}"),
            f"there is {newest.version}",
            newest.file,
            "run or read it again, and say so",
        )


def check_targets(repository: str, checkout: Checkout) -> Iterator[Finding]:
    """GPUs that TheRock builds for, and that nothing of ours names; names of theirs that differ."""
    text = checkout.read(_TARGETS_FILE)
    file = ROOT / "rocm_autopatch" / "image" / "reference.py"
    ours = "\n".join(
        one.read_text(encoding="utf-8")
        for pattern in ("rocm_autopatch/**/*.py", "rocm_autopatch/**/*.yaml", "policies/*.yaml")
        for one in ROOT.glob(pattern)
    )
    known = set(re.findall(r"\bgfx[0-9][0-9a-f]{2,3}\b", ours))
    for match in _TARGET.finditer(text):
        gfx, product = match.groups()
        seen = f"{repository} {_TARGETS_FILE}:{text.count(chr(10), 0, match.start(1)) + 1}"
        if gfx not in known:
            yield Finding(
                "gpu-new",
                f"{repository} {gfx}",
                "nothing of it",
                line_of(file, "GFX_BY_PRODUCT = {"),
                f"ROCm is built for it ({product})",
                seen,
                "name it in records and verdicts that are about its family, or accept it",
            )
        for name in re.findall(r"\bMI[0-9]{2,3}[A-Z]?\b", product):
            read = reference.GFX_BY_PRODUCT.get(name.lower(), "")
            if read != gfx and gfx in known:
                yield Finding(
                    "gpu-name",
                    f"{repository} {name}",
                    f"{name} is {read or 'no GPU that we know'}",
                    line_of(file, "GFX_BY_PRODUCT = {"),
                    f"it is {gfx}",
                    seen,
                    "add the name",
                )


def check_image(row: Mapping[str, Any], checkout: Checkout) -> Iterator[Finding]:
    """What the records of an image say that its Dockerfile does not do, and the other way round.

    The *row* has the ``repository`` and the ``files``, each one's image below the next one's, the
    last one's ``stage``, the build's ``arguments``, the ``facts`` that choose our records, and what
    some arguments were when we last read them, ``seen``.
    """
    repository, name = row["repository"], row["name"]
    images = ROOT / "policies" / "images.yaml"
    data = ROOT / "tools" / "fresh" / "known.yaml"
    below: dict[str, Variable] = {}
    arguments: dict[str, Variable] = {}
    stage = Stage("")
    for number, file in enumerate(row["files"]):
        text = checkout.read(file)
        last = number == len(row["files"]) - 1
        stages, heads = read_stages(text, f"{repository} {file}", row.get("arguments", {}), below)
        found = stages.get(row.get("stage", "").lower() if last else "")
        if found is None:
            yield Finding(
                "image-file",
                f"{repository} {name} {file}",
                f"the records are from {file}",
                line_of(data, f"name: {name}"),
                f"there is no stage {row['stage']} in it" if text and last else "it is not there",
                repository,
                "find what the images are built from now",
            )
            return
        stage = found
        below = stage.environment
        for one, value in stage.arguments.items():
            heads.setdefault(one, Variable(value, f"{repository} {file}"))
        arguments = {**heads, **arguments}
    values = {one: variable.value for one, variable in (*arguments.items(), *below.items())}
    for argument, was in row.get("seen", {}).items():
        now = arguments.get(argument)
        if now is None or now.value != was:
            yield Finding(
                "image-argument",
                f"{repository} {name} {argument}",
                f"{argument} is {was}",
                line_of(data, f"{argument}: "),
                f"it is {now.value}" if now else "there is none",
                now.place if now else repository,
                "look at the records' versions and texts, then write the new value there",
            )
    facts = {fact: expand(str(text), values) for fact, text in row["facts"].items()}
    said = {
        setting.name: setting
        for record in select.records(load.images(), facts)
        for setting in record.sets
    }
    for one in sorted({*said, *below}):
        subject = f"{repository} {name} {one}"
        where = line_of(images, f"      {one}:", f"- name: {name}")
        if one not in below:
            yield Finding(
                "image-unset",
                subject,
                f"{one}={said[one].value}",
                where,
                "the Dockerfile does not set it",
                f"{repository} {row['files'][-1]}",
                "bound the record, or take it out",
            )
        elif one not in said:
            yield Finding(
                "image-missing",
                subject,
                "nothing of it",
                where,
                f"the image has {one}={below[one].value}",
                below[one].place,
                "add it to the record, or accept it",
            )
        elif said[one].value != below[one].value:
            yield Finding(
                "image-value",
                subject,
                f"{one}={said[one].value}",
                where,
                f"{one}={below[one].value}",
                below[one].place,
                "mend the record",
            )


def check_dockerfiles(
    repository: str, pattern: str, named: Iterable[str], checkout: Checkout
) -> Iterator[Finding]:
    """Dockerfiles of a repository that no row names."""
    for file in checkout.files(pattern):
        if file not in named:
            yield Finding(
                "dockerfile-new",
                f"{repository} {file}",
                "nothing of it",
                line_of(ROOT / "tools" / "fresh" / "known.yaml", f"{repository}: "),
                "there is this file",
                f"{repository} {file}",
                "see which images it makes, and add a row or accept it",
            )


# The kinds of findings that a checkout may have.
KINDS_OF_CHECKOUTS = (
    *("image-file", "image-argument", "image-unset", "image-missing", "image-value"),
    *("dockerfile-new", "gpu-new", "gpu-name"),
)


def release_of_torch(wheels: Iterable[Unpacked]) -> str:
    """The version of the torch among the wheels, or the newest one of our table."""
    found = (wheel.version for wheel in wheels if wheel.project == "torch")
    return next(found, lint.known_versions()[-1])
