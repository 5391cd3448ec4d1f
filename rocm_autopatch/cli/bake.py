"""``rocm-autopatch bake``: resolve now what every start would resolve anew."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from rocm_autopatch import (
    _ASSUME,
    _BAKED,
    _HERE,
    _start,
    files,
    fresh_interpreter,
    plan,
    search_path,
)
from rocm_autopatch.cli import terminal
from rocm_autopatch.image import facts, reference
from rocm_autopatch.policy import load, lower, select
from rocm_autopatch.text import wrapped

# What the start of an interpreter finds here, whatever is baked.
_CHILD = """
import json
from rocm_autopatch import _ASSUME, _BAKED, _HERE, _RECORD, _decide
_decide()
print(json.dumps({key: _RECORD[key] for key in ("facts", "reason", "errors")}))
"""


class NotBaked(fresh_interpreter.NoReport):
    """Nothing was written; the text says why."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "bake",
        help="resolve the policy once, so that starts need not",
        description=(
            "Resolve the policy for this interpreter and image, and write the plan where the start "
            "of every interpreter of this environment finds it. It is used as long as torch, the "
            "policies and this package are what they were; after that, starts say so and do as "
            "without it. Exit status: 0, or 1 if nothing was written; 2 for wrong usage."
        ),
        epilog="example: rocm-autopatch bake --image rocm/sgl-dev:TAG --policy /etc/team.yaml",
    )
    parser.add_argument("--image", default="", type=_image, metavar="REF", help="the image this is")
    parser.add_argument(
        "--policy", default="", help="a policy on top, as ROCM_AUTOPATCH_POLICY would name it"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help=f"default: {_BAKED}, where starts look"
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(run=run)


def _image(text: str) -> str:
    try:
        if text:  # argparse passes the default by here, too.
            reference.parse_reference(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out or Path(_BAKED)
    baked, fixed = _bake(arguments.image, arguments.policy)
    _write(out, plan.seal(plan.to_file(**baked)))
    if not arguments.out:
        _own(out)
    done = {"path": str(out), **_said(baked, fixed)}
    if arguments.json:
        terminal.data(done)
    else:
        terminal.lines(_lines(done))
    if arguments.out:
        terminal.say(f"starts look for it at {_BAKED} and nowhere else")
    return 0


def _bake(image: str, policy: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The plan with what ``_start.baked`` asks of it, and the facts that it fixes.

    Raises PolicyError and NotBaked.
    """
    package = Path(_HERE, "plans", "id")
    if not package.is_file():
        raise NotBaked(
            "this is a checkout or an editable install, which changes from start to start"
        )
    named = os.environ.get("ROCM_AUTOPATCH_POLICY", "").strip()
    if not policy and load.is_path(named) and not os.path.isabs(named):
        raise NotBaked(f"ROCM_AUTOPATCH_POLICY={named} means another file in another directory")
    start = _start_here(image)
    known = {name: (value, source) for name, (value, source) in start["facts"].items()}
    if "accelerator" not in known or known["accelerator"][0] != "rocm":
        raise NotBaked(start["reason"])
    found = facts.gather(known)
    if load.is_path(policy):
        policy = os.path.abspath(policy)
    chosen = select.select(found.values(), policy or named)
    lowered = lower.lower(chosen.layers, found.values(), chosen.policy)
    # What is for other torches goes: a start should not even read it.
    lowered["env"] = tuple(_start.for_this_torch(lowered["env"], known))
    lowered["patches"] = tuple(
        (name, target, tuple(_start.for_this_torch(rows, known)))
        for name, target, rows in lowered["patches"]
    )
    torch = Path(known["torch"][1])
    files = {Path(layer.file).resolve() for layer in chosen.layers}
    own = load.BUILTIN.resolve()
    sources = [torch, package, *sorted(file for file in files if own not in file.parents)]
    site = sorted(os.listdir(select.SITE)) if select.SITE.is_dir() else []
    sources += [select.SITE / name for name in site if select.SITE / name not in sources]
    # Records that don't hold here, too: the machine that bakes an image may have no GPU.
    rows = [row for row in select.images() if row.changes or row.base]
    asked = {name for policy in (*chosen.layers, *rows) for name in policy.when}
    fixed = sorted({*known, *asked} - {"gfx"})
    baked = {
        "plan": lowered,
        "wishes": (
            (_ASSUME, ("",)),
            ("ROCM_AUTOPATCH_POLICY", ("" if policy else named,)),
            ("ROCM_AUTOPATCH_IMAGE", ("", known.get("image", ("", ""))[0])),
        ),
        "named": policy or named,
        "torch": str(torch),
        "site": (str(select.SITE), site),
        "sources": [_start.mark(str(file)) for file in sources],
        "gfx": found.values().get("gfx", "") if "gfx" in asked else None,
        "facts": known,
        "reason": f"baked, ROCM_AUTOPATCH_POLICY={policy}"
        if policy
        else f"baked, {start['reason']}",
    }
    return baked, {name: found.values().get(name, "unknown") for name in fixed}


def _start_here(image: str) -> dict[str, Any]:
    environment = fresh_interpreter.environment()
    environment.pop(_ASSUME, None)
    environment.update({"ROCM_AUTOPATCH": "off", "ROCM_AUTOPATCH_LOG": "quiet"})
    if image:
        environment["ROCM_AUTOPATCH_IMAGE"] = image
    done = subprocess.run(
        fresh_interpreter.command(_CHILD),
        env=search_path.absolute(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise NotBaked(f"an interpreter to ask ended with status {done.returncode}")
    start: dict[str, Any] = json.loads(done.stdout)
    if image:
        start["facts"]["image"] = (image, "rocm-autopatch bake --image")
    if start["errors"]:
        raise NotBaked(start["errors"][0])
    return start


def _write(out: Path, data: bytes) -> None:
    """Put *data* at *out*, all of it or nothing."""
    try:
        files.write(out, data)
    except OSError as error:
        raise NotBaked(f"{out} can't be written: {error.strerror}") from error


def _own(out: Path) -> None:
    """List the file among those that ``pip uninstall`` removes."""
    distribution = metadata.distribution("rocm_autopatch")
    entry = f"rocm_autopatch/{out.name}"
    record = next((file for file in distribution.files or () if file.name == "RECORD"), None)
    if record is None or any(str(file) == entry for file in distribution.files or ()):
        return
    path = Path(str(distribution.locate_file(record)))
    listed = path.read_bytes() + f"{entry},,\n".encode()
    files.write(path, listed, path.stat().st_mode & 0o777)


def _said(baked: dict[str, Any], fixed: dict[str, str]) -> dict[str, Any]:
    lowered = baked["plan"]
    entries = [
        entry for patch, _, rows in lowered["patches"] if patch == "config" for entry in rows
    ]
    variables = {row[0] for row in lowered["env"] if row[1] == "default"}
    variables |= {name for entry in entries for name in entry[3:5] if name}
    return {
        "reason": baked["reason"],
        "layers": list(lowered["layers"]),
        "fixed": fixed,
        "sources": [file for file, *_ in baked["sources"]],
        "gfx": baked["gfx"],
        "variables": sorted(variables),
    }


def _lines(done: dict[str, Any]) -> Iterator[str]:
    yield f"{done['path']}: {done['reason']}"
    yield f"  layers: {' < '.join(done['layers'])}"
    for title, words in (
        ("fixed", [f"{name} {value}" for name, value in done["fixed"].items()]),
        ("used as long as these are unchanged", done["sources"]),
        ("open, a user's", ["ROCM_AUTOPATCH, _KEEP, _LOG", *done["variables"]]),
    ):
        yield from wrapped(f"{title}: {', '.join(words)}", "  ", "    ", break_long_words=False)
    if done["gfx"] is not None:
        gpu = done["gfx"] or "no GPU that is known"
        yield f"  open: a layer asks for the GPU; used on {gpu}, looked up at each start"
