"""``rocm-autopatch help``: the pages of the documentation, without a network."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocm_autopatch.cli import manual, options, terminal
from rocm_autopatch.cli.command import Command, CommandResult, position_fields
from rocm_autopatch.support.text import wrapped
from rocm_autopatch.support.user_error import UserError

# Where $PAGER is not set.
_PAGERS = ("less", "more")


@dataclass(frozen=True)
class HelpArguments:
    topic: tuple[str, ...] = position_fields(parse=str, metavar="TOPIC", help="what to read about")
    json: bool = options.json_flag()


def show_topic(arguments: HelpArguments) -> CommandResult:
    topic = " ".join(arguments.topic)
    if not topic:
        return _list_pages()
    if topic in _commands_without_page():
        return _show_options(topic)
    found = manual.find_sections(topic)
    if not found:
        raise UserError(_refusal(topic))
    if len(found) == 1 and not arguments.json:
        show_paged([*manual.section_lines(found[0])])
        return CommandResult()
    return CommandResult(
        lambda: _listed_sections(found),
        lambda: [
            {"topic": one.reference, "title": one.title, "text": "\n".join(one.lines)}
            for one in found
        ],
    )


def _listed_sections(found: Sequence[manual.PageSection]) -> Iterator[str]:
    yield f"{len(found)} sections have these words:"
    width = max(len(one.reference) for one in found)
    yield from (f"  {one.reference:{width}}  {one.title}" for one in found)
    yield f"One of them: rocm-autopatch help {found[0].reference}"


def _list_pages() -> CommandResult:
    names = manual.page_names()
    if not names:
        raise UserError(
            "no pages are installed with this package, or this Python has no bz2 to read them; "
            "docs/ of the repository has them"
        )
    text = (
        "rocm-autopatch help PAGE shows one of these. PAGE#HEADING shows a section, and words find "
        "headings: rocm-autopatch help compile still hangs. A name in brackets in a text, and what "
        "a message cites as docs/PAGE.md#HEADING, is such a topic. Options of a command: "
        "rocm-autopatch COMMAND --help."
    )
    return CommandResult(
        lambda: [*manual.listed_pages(), "", *wrapped(text, "", "")],
        lambda: [
            {
                "topic": name,
                "title": manual.page_sections(name)[0].title,
                "sections": [one.reference for one in manual.page_sections(name)[1:]],
            }
            for name in names
        ],
    )


def _commands_without_page() -> set[str]:
    from rocm_autopatch.cli import command_line

    return {*command_line.COMMANDS}.difference(manual.page_names())


def _show_options(command: str) -> CommandResult:
    from rocm_autopatch.cli import command_line

    command_line.make_parser([command]).parse_args([command, "--help"])
    return CommandResult()


def _refusal(topic: str) -> str:
    page, anchor = manual.split_reference(topic)
    if page in manual.page_names():
        sections = {one.anchor: one for one in manual.page_sections(page)[1:]}
        near = difflib.get_close_matches(anchor, sections, n=1)
        hint = f"did you mean rocm-autopatch help {sections[near[0]].reference}?" if near else ""
        headings = ", ".join(manual.page_headings(page))
        return f"the page {page} has no section {anchor!r}; {hint or f'it has: {headings}'}"
    near = difflib.get_close_matches(topic, manual.page_names(), n=1)
    more = '"rocm-autopatch help" lists the pages; docs/ of the repository has more'
    hint = f"did you mean {near[0]}?" if near else more
    return f"no page and no heading is called {topic!r}; {hint}"


def show_paged(lines: Sequence[str]) -> None:
    """Print *lines*: in a pager if stdout is a terminal that can have one."""
    command = _pager() if sys.stdout.isatty() else []
    if command:
        text = "".join(f"{line}\n" for line in lines)
        with contextlib.suppress(OSError):
            # -F: it ends where all fits on one screen; -R: it leaves colours; -X: and the text.
            environment = {"LESS": "-FRX", **os.environ}
            with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
                _feed(process, text)
            if process.returncode not in (126, 127):
                return
    terminal.print_lines(lines)


def _feed(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin
    # It may end before it has read all, and it has Ctrl-C for itself.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        process.stdin.write(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        process.stdin.close()
    with contextlib.suppress(KeyboardInterrupt):
        process.wait()


def _pager() -> list[str]:
    """The command of the pager, empty where there is none."""
    if os.environ.get("TERM", "dumb") == "dumb" or not (sys.stdin and sys.stdin.isatty()):
        return []
    if "PAGER" in os.environ:
        with contextlib.suppress(ValueError):
            return shlex.split(os.environ["PAGER"])
    for name in _PAGERS:
        found = shutil.which(name)
        # A program from an empty or relative entry of PATH, in the working directory, is not run.
        if found and os.path.isabs(found):
            return [found]
    return []


COMMAND = Command(
    HelpArguments,
    show_topic,
    description=(
        "Show a page of the documentation that is installed, or a section of one: in a pager "
        "on a terminal (PAGER), else as plain text. TOPIC is the name of a page (watchdog), a "
        "page and a heading (watchdog#phases, watchdog phases), words of a heading (a program "
        "that hangs), or what a message cites (docs/claims.md#memory-planning). Without TOPIC: "
        "the list of pages."
    ),
    example="rocm-autopatch help troubleshooting",
    statuses={0: "shown", 1: "no page is called so"},
)
