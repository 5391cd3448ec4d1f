"""``rocm-autopatch bundle``: what a bug report needs, in one file, with secrets masked."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import os
import platform
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter, policy_dirs, trust
from rocm_autopatch.cli import options, terminal, values
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    flag_field,
    option_field,
    position_field,
)
from rocm_autopatch.evidence import machine
from rocm_autopatch.record import sentences
from rocm_autopatch.support import files, masking
from rocm_autopatch.support.text import counted
from rocm_autopatch.support.user_error import UserError

# The directory that the archive has.
_TOP = "rocm-autopatch-bundle"
_MANIFEST = "manifest.json"
_FORMAT = 1
# Of a policy, in bytes.
_LONGEST = 1 << 20
# A shorter value may be in a text by chance.
_SHORTEST = 6
_KEY = re.compile(r"""(?<![\w-])["']?([A-Za-z_][\w.-]{1,63})["']?\s*:""")
# The value of an entry, whatever its quotes.
_GIVEN = re.compile(r"""\b(?:set|default)\s*:\s*(?:"([^"]*)"|'([^']*)'|([^\s,{}'"]+))""")
_REPORT = "ROCM_AUTOPATCH_REPORT"
_POLICY = "ROCM_AUTOPATCH_POLICY"
_README = """\
What "rocm-autopatch bundle" found on one machine, for a bug report. Nothing was sent anywhere.
Secrets are masked, but masking can miss one: read these files before you share them.

manifest.json   when it was made, each file with its size and SHA-256, and what was left out
status.*        what happens to a program there (rocm-autopatch status)
probe.*         what the image does to a program, without and with the package
policies/       the policy files in force, general to specific
report.*        the last compile report
versions.txt    Python, the system, and the distributions that are installed
image.json      the facts of the image and of the machine
"""


@dataclass(frozen=True)
class BundleArguments(options.AssumedFacts):
    file: Path | None = position_field(
        parse=values.parse_path,
        optional=True,
        metavar="FILE",
        help="default: rocm-autopatch-bundle-DATE.tar.gz, in the working directory",
    )
    force: bool = flag_field("--force", help="replace FILE if it is there")
    report: Path | None = option_field(
        "--report",
        parse=values.parse_path,
        default=None,
        metavar="DIR",
        help=f"the directory of the compile report; default: what {_REPORT} names",
    )
    no_torch: bool = flag_field(
        "--no-torch", help="leave torch and the probe out: seconds, no minute"
    )
    json: bool = options.json_flag("print the list as JSON")


class _LeftOut(Exception):
    """A part is not there. The text says why."""


@dataclass
class _ReportBundle:
    """What goes into an archive. ``left_out`` says of a name why it is not there."""

    secrets: masking.Secrets
    members: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add_text(self, name: str, lines: Iterable[str]) -> None:
        text = self.secrets.text("".join(f"{line}\n" for line in lines))
        self.members[name] = text.encode("utf-8", "backslashreplace")

    def add_data(self, name: str, data: Any) -> None:
        text = json.dumps(self.secrets.data(data), indent=2, default=str) + "\n"
        self.members[name] = text.encode("utf-8", "backslashreplace")

    def try_to(self, name: str, add: Callable[[], None]) -> None:
        """Add a part. If that fails, the others are worth having, too."""
        try:
            add()
        except _LeftOut as error:
            self.left_out[name] = str(error)
        except Exception as error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self.left_out[name] = self.secrets.text(said)


def write_bundle(arguments: BundleArguments) -> CommandResult:
    path = arguments.file or Path(time.strftime("rocm-autopatch-bundle-%Y%m%d-%H%M%S.tar.gz"))
    if os.path.lexists(path) and not arguments.force:
        raise UserError(f"{path} is there already; --force replaces it")
    if not path.parent.is_dir():
        raise UserError(f"there is no directory {path.parent}")
    bundle = _collect_files(arguments)
    try:
        _write_archive(path, _pack_files(bundle), arguments.force)
    except FileExistsError:
        raise UserError(f"{path} is there by now; --force replaces it") from None
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror}") from None
    return _contents_result(bundle, path)


COMMAND = Command(
    BundleArguments,
    write_bundle,
    description=(
        "Write an archive (.tar.gz) with status, probe, the policies in force, the last "
        "compile report, versions and the facts of the image. List what is in it. Nothing is "
        "sent. Secrets are masked; read it before you share it."
    ),
    example="rocm-autopatch bundle bug.tar.gz",
    statuses={
        0: "FILE is written, with what could be found",
        1: "FILE is there already, or can't be written",
    },
    page="commands.md#a-bug-report",
)


def _contents_result(bundle: _ReportBundle, path: Path) -> CommandResult:
    listed = [{"name": name, "bytes": len(data)} for name, data in _in_order(bundle)]
    out = [{"name": name, "why": why} for name, why in sorted(bundle.left_out.items())]
    size = path.stat().st_size
    lines = [
        *(f"{one['bytes']:>12,}  {one['name']}" for one in listed),
        *(f"    left out  {one['name']}: {one['why']}" for one in out),
        f"{path}: {counted(len(listed), 'file')}, {counted(size, 'byte')}. Nothing was sent.",
        "Secrets are masked, but masking can miss one: read it before you share it.",
    ]
    data = {"file": str(path), "bytes": size, "files": listed, "left_out": out}
    return CommandResult(lambda: lines, lambda: data)


# What goes in


def _status_lines(report: dict[str, Any]) -> Iterator[str]:
    yield sentences.verdict_line(report)
    yield from sentences.report_lines(report)


def _collect_files(arguments: BundleArguments) -> _ReportBundle:
    bundle = _ReportBundle(fresh_interpreter.secrets())
    policies = _policies_in_force(bundle)
    report: dict[str, Any] = {}

    def status() -> None:
        found = fresh_interpreter.report(torch=not arguments.no_torch, assume=arguments.assumed)
        report.update(found)
        bundle.add_data("status.json", found)
        bundle.add_text("status.txt", _status_lines(bundle.secrets.data(found)))

    def probe() -> None:
        from rocm_autopatch.cli import probe
        from rocm_autopatch.probe import table

        found = table.probe_place(probe.started_environment(arguments.assumed), [])
        bundle.add_data("probe.json", probe.probe_data(found))
        bundle.add_text("probe.txt", map(terminal.plain, probe.probe_lines(found)))

    def compiled() -> None:
        from rocm_autopatch.compile_report import summary
        from rocm_autopatch.compile_report.gather import gather_report

        directory = arguments.report or os.environ.get(_REPORT, "").strip()
        if not directory:
            raise _LeftOut(f"no --report DIR, and {_REPORT} names none")
        gathered = gather_report(Path(directory))
        bundle.add_data("report.json", summary.report_data(gathered))
        bundle.add_text("report.txt", summary.summary_lines(gathered))

    bundle.add_text("README.txt", _README.splitlines())
    bundle.try_to("status", status)
    bundle.try_to("policies", lambda: _add_policies(bundle, policies, report))
    bundle.try_to("report", compiled)
    bundle.try_to("versions.txt", lambda: bundle.add_text("versions.txt", _distribution_versions()))
    bundle.try_to("image.json", lambda: bundle.add_data("image.json", _image_facts(report)))
    if arguments.no_torch:
        bundle.left_out["probe"] = "--no-torch"
    else:
        bundle.try_to("probe", probe)
    return bundle


def _image_facts(report: dict[str, Any]) -> dict[str, Any]:
    kept = ("facts", "contradictions", "baseline", "known_issues", "evidence")
    return {**{name: report.get(name) for name in kept}, "machine": machine.machine_here()}


def _distribution_versions() -> Iterator[str]:
    """Python, the system, and what is installed, as pip writes it."""
    yield f"# python {platform.python_version()} ({sys.executable})"
    yield f"# system {platform.platform()}"
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # Of two with one name, an import finds the first. A broken one has no name.
        name = re.sub(r"[-_.]+", "-", str(one.metadata["Name"] or "")).lower()
        if name:
            found.setdefault(name, f"{name}=={one.version}")
    yield from sorted(found.values())


# Policies


def _policies_in_force(bundle: _ReportBundle) -> list[Path]:
    """The files of the policies here, general to specific. What they give to variables with names
    of secrets is a secret of the bundle's from here on."""
    named = os.environ.get(_POLICY, "").strip()
    found = [
        path for site in policy_dirs.directories() for path in sorted(Path(site).glob("*.yaml"))
    ]
    if named and trust.is_path(named):
        found.append(Path(named))
    bundle.try_to("reading the policies", lambda: _add_secrets(bundle, found))
    for path in found:
        # Also of a file that is no policy, and where PyYAML is missing.
        with suppress(OSError):
            for _, hidden in _split_yaml(_joined_text(path)):
                for one in _GIVEN.finditer(hidden):
                    _add_secret(bundle, one[1] or one[2] or one[3] or "")
    return found


def _add_secret(bundle: _ReportBundle, value: str) -> None:
    if len(value) >= _SHORTEST:
        bundle.secrets = bundle.secrets.and_also(value)


def _add_secrets(bundle: _ReportBundle, found: list[Path]) -> None:
    """The secrets that the files of policies have. Raises ImportError without PyYAML."""
    from rocm_autopatch.cli import entries
    from rocm_autopatch.policy import load

    reading = load.Reading()
    for file in found:
        if file.name == load.IMAGES.name:
            read = reading.images(file)
        else:
            read = reading.layers(reading.policy(file))
        for policy in read:
            values = [(name, value) for name, _, value, _ in entries.entries_of(policy)]
            values += [(one.name, one.value) for one in policy.sets]
            for name, value in values:
                if masking.is_secret(name, str(value)):
                    _add_secret(bundle, str(value))
    # Told, and no more: the files themselves are shown.
    reading.finish()


def _add_policies(bundle: _ReportBundle, found: list[Path], report: dict[str, Any]) -> None:
    """Add the files, after the built-in ones that apply."""
    built_in = Path(__file__).parent.parent / "policies"
    own = [built_in / f"{name}.yaml" for name in report.get("policies", ())]
    every = dict.fromkeys([*(path for path in own if path.is_file()), *found])
    for number, path in enumerate(every, 1):
        # A name may be a secret as well, and is another user's.
        name = re.sub(r"[^A-Za-z0-9._-]", "_", bundle.secrets.text(path.name))[-80:]
        member = f"policies/{number:02}-{name}"
        bundle.try_to(member, functools.partial(_add_policy, bundle, path, member))


def _add_policy(bundle: _ReportBundle, path: Path, member: str) -> None:
    shown = [line for line, _ in _split_yaml(_joined_text(path)) if line is not None]
    bundle.add_text(member, [f"# {path}", *shown])


def _joined_text(path: Path) -> str:
    return trust.read(str(path), _LONGEST, judged=False).decode("utf-8", "backslashreplace")


def _split_yaml(text: str) -> Iterator[tuple[str | None, str]]:
    """For each line of a policy, what may be shown of it, None if nothing, and what may not.

    That is all that belongs to a key with the name of a secret, also in a file that is no YAML: the
    value may be on the lines below, and between other keys.
    """
    hidden: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if hidden is not None and (not line.strip() or indent > hidden):
            yield None, line
            continue
        hidden = None
        ends = (key.end() for key in _KEY.finditer(line) if _is_secret(key[1]))
        end = next(ends, None)
        if end is None:
            yield line, ""
        else:
            hidden = indent
            yield f"{line[:end]} {masking.MASK}", line[end:]


def _is_secret(name: str) -> bool:
    return masking.is_secret(name, "x" * _SHORTEST)


# The archive


def _in_order(bundle: _ReportBundle) -> list[tuple[str, bytes]]:
    """The files of the archive, in an order that depends on their names alone."""
    return sorted(bundle.members.items(), key=lambda one: (one[0] != _MANIFEST, one[0]))


def _pack_files(bundle: _ReportBundle) -> bytes:
    """The archive. Its files have neither an owner nor a time of their own."""
    bundle.add_data(
        _MANIFEST,
        {
            "format": _FORMAT,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rocm_autopatch": metadata.version("rocm_autopatch"),
            "files": [
                {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in _in_order(bundle)
            ],
            "left_out": dict(sorted(bundle.left_out.items())),
        },
    )
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in _in_order(bundle):
            member = tarfile.TarInfo(f"{_TOP}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def _write_archive(path: Path, data: bytes, force: bool) -> None:
    """Write the archive as a whole, for nobody else to read. Without *force*, FileExistsError is
    raised if there is a file by now."""
    if force:
        files.write(path, data, 0o600)
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        try:
            # A link is made only where nothing is.
            os.link(name, path)
        except (PermissionError, NotImplementedError):
            # A file system without links.
            if os.path.lexists(path):
                raise FileExistsError(path) from None
            os.rename(name, path)
    finally:
        with suppress(OSError):
            os.unlink(name)
