"""``rocm-autopatch facts --gpu``: what caches for this machine's GPU are filled by elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.caches import gpu_facts
from rocm_autopatch.cli import values
from rocm_autopatch.cli.command import Command, CommandResult, flag_field, option_field
from rocm_autopatch.support.user_error import UserError


@dataclass(frozen=True)
class FactsArguments:
    gpu: bool = flag_field("--gpu", help="the facts of the first GPU that torch finds")
    out: Path | None = option_field(
        "--out",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help="the file that is written, in place of stdout",
    )


def show_facts(arguments: FactsArguments) -> CommandResult:
    text = gpu_facts.read_gpu().as_json()
    if arguments.out is None:
        return CommandResult(text.splitlines)
    try:
        arguments.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{arguments.out} can't be written: {error.strerror}") from None
    return CommandResult(lambda: [f"{arguments.out}: for cache fill --for {arguments.out}"])


COMMAND = Command(
    FactsArguments,
    show_facts,
    description=(
        "Write what a compile depends on of this machine's GPU, as JSON: architecture, compute "
        "units, memory, registers. With this file, cache fill compiles for it on a machine that "
        "has no GPU."
    ),
    example="rocm-autopatch facts --gpu --out mi300x.json",
    statuses={0: "written", 1: "there is no GPU"},
    usage_error=lambda arguments: None if arguments.gpu else "say what: --gpu",
    no_json="it prints JSON",
    page="caches.md#filling-them-without-a-gpu",
)
