"""``rocm-autopatch prove``: which modes and switches of torch.compile work on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocm_autopatch.cli import options, terminal, values
from rocm_autopatch.cli.command import Command, CommandResult, flag_field, option_field
from rocm_autopatch.cli.near_words import did_you_mean
from rocm_autopatch.evidence import SUBJECTS as SENTENCES
from rocm_autopatch.evidence import file
from rocm_autopatch.evidence.file import EvidenceError
from rocm_autopatch.measure.prove import FAULTS, FRESH_STARTS, ProofRefused, fresh_starts, trials
from rocm_autopatch.measure.prove.proof import ProofRequest, prepare_proof
from rocm_autopatch.measure.prove.subjects import SUBJECTS
from rocm_autopatch.probe import images
from rocm_autopatch.support import processes
from rocm_autopatch.support.text import wrapped
from rocm_autopatch.support.user_error import UserError

# The figures of a subject, as they are called in the evidence file: ratios.
_FIGURES = ("cold", "warm", "steady", "memory")


def _parse_names(text: str) -> tuple[str, ...]:
    names = values.parse_names(text)
    known = (*SUBJECTS, *trials.NAMES, FRESH_STARTS)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            text = f"{name!r} is no trial and no subject; see --list{hint}"
            raise argparse.ArgumentTypeError(text)
    return names


@dataclass(frozen=True)
class ProveArguments(options.AssumedFacts):
    quick: bool = flag_field("--quick", help="2 minutes at most: only whether our graphs work")
    only: tuple[str, ...] = options.only_option("trials and subjects", _parse_names)
    list: bool = flag_field("--list", help="print the names of trials and subjects, and end")
    out: Path | None = option_field(
        "--out",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help=f"the evidence file (default: one named for this machine in {file.SITE})",
    )
    again: bool = flag_field("--again", help="run everything anew, also what FILE has already")
    device: str | None = option_field(
        "--device",
        parse=str,
        default=None,
        choices=("cuda", "cpu"),
        help="where programs run (default: on the GPU if torch finds one)",
    )
    json: bool = options.json_flag("print the evidence as JSON")
    record: Path | None = option_field(
        "--record",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help="note what was proven in an images file, in the row of this image",
    )


def prove_here(arguments: ProveArguments) -> CommandResult:
    if arguments.list:
        return CommandResult(_list_subjects, _subjects_data)
    request = ProofRequest(
        quick=arguments.quick,
        only=arguments.only,
        out=arguments.out,
        again=arguments.again,
        device=arguments.device,
        assume=arguments.assumed,
    )
    proof = None
    try:
        if arguments.record:
            images.check_images_file(arguments.record)
        proof = prepare_proof(request, terminal.print_error)
        if arguments.record and not proof.place.get("image"):
            raise ProofRefused("--record needs the image's name: give --image REPOSITORY:TAG")
        proof.battery.run()
    except KeyboardInterrupt:
        known = proof.out if proof and proof.out.exists() else None
        what = f"{known} has what is known" if known else "nothing is known yet"
        raise UserError(f"interrupted; {what}", status=processes.INTERRUPTED) from None
    except EvidenceError as error:
        raise UserError(str(error), page="evidence.md") from None
    except OSError as error:
        what = f"{proof.out} can't be written: {error.strerror}" if proof else str(error)
        raise UserError(what) from None
    written, out = proof.document(), proof.out
    return CommandResult(
        lambda: _proof_lines(written, out),
        lambda: written,
        summary=images.record_proof(arguments.record, written) if arguments.record else "",
    )


COMMAND = Command(
    ProveArguments,
    prove_here,
    description=(
        "Run small programs and real models on this machine, in each mode and with each "
        "switch, with empty and with warm caches, each start in a process of its own. Compare "
        "their results with eager mode, and their times with the mode default. What works "
        "becomes evidence, which policies may ask for (proven: NAME). Use the machine for "
        "nothing else meanwhile. A second call goes on where the first one ended."
    ),
    example="rocm-autopatch prove --quick && rocm-autopatch bake",
    statuses={
        0: "everything was run, whatever it proves",
        1: "nothing can be proven here, or FILE can't be written",
    },
    page="evidence.md#the-battery",
)


def _trial_sentences() -> Iterator[tuple[str, str]]:
    for name in trials.NAMES:
        yield name, (trials.load_trial(name).__doc__ or "").partition("\n\n")[0]
    yield FRESH_STARTS, (fresh_starts.__doc__ or "").partition("\n\n")[0]


def _list_subjects() -> Iterator[str]:
    for title, said in (("subjects", SENTENCES.items()), ("trials", _trial_sentences())):
        yield title
        for name, sentence in said:
            yield from wrapped(f"{name}: {sentence}", "  ", "    ")


def _subjects_data() -> dict[str, dict[str, str]]:
    return {"subjects": dict(SENTENCES), "trials": dict(_trial_sentences())}


def _proof_lines(written: Mapping[str, Any], out: Path) -> Iterator[str]:
    here = written["place"]
    yield from wrapped(
        f"{here['gpu'] or here['device']}, driver {here['driver']}, torch {here['torch']}, triton "
        f"{here['triton']}: {written['battery']} battery",
        "",
        "  ",
    )
    yield ""
    yield _figure_cells(("", "sound", "gains", *_FIGURES))
    for name, said in written["subjects"].items():
        figures = [f"{said[key]:.2f}x" if key in said else "" for key in _FIGURES]
        yield _figure_cells(
            (name, _verdict_word(said["sound"]), _verdict_word(said["gains"]), *figures)
        )
    rows = [row for row in written["trials"] if row["status"] in FAULTS]
    if rows:
        yield ""
    for row in rows:
        text = f"{row['subject']} in {row['trial']}, {row['start']} start: {row['status']}: "
        yield from wrapped(text + row["reason"], "  ", "    ")
    yield ""
    for said, names in _fresh_sentences(written["subjects"]).items():
        yield from wrapped(f"{', '.join(names)}: {said}", "", "  ")
    yield from wrapped(
        f"ratios are to the mode default under safe. The evidence is in {out}; "
        '"rocm-autopatch status" says what policies make of it, and "rocm-autopatch bake" keeps '
        "starts cheap",
        "",
        "  ",
    )


def _fresh_sentences(subjects: Mapping[str, Any]) -> dict[str, list[str]]:
    """What fresh starts say, by the sentence the subjects of which it is true."""
    found: dict[str, list[str]] = {}
    for name, said in subjects.items():
        if "fresh_starts" in said:
            right = f"{said['fresh_starts']} fresh processes were right; {said['seldom_faults']}"
            found.setdefault(right, []).append(name)
    return found


def _verdict_word(verdict: bool | None) -> str:
    return "?" if verdict is None else "yes" if verdict else "no"


def _figure_cells(cells: tuple[str, ...]) -> str:
    first, *rest = cells
    return (first.ljust(28) + "".join(cell.rjust(11) for cell in rest)).rstrip()
