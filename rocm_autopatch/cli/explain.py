"""``rocm-autopatch explain NAME``: who decides about one variable, key, mode or patch, and why."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from rocm_autopatch import fresh_interpreter, patches, startup
from rocm_autopatch.cli import entries, foretold, options, statuses, style, terminal
from rocm_autopatch.patches import kept
from rocm_autopatch.patches.ranks import content
from rocm_autopatch.policy import lint, lower, select
from rocm_autopatch.policy.model import DELETE_EMPTY, Policy
from rocm_autopatch.record import report as process_report
from rocm_autopatch.startup import misnamed, rows
from rocm_autopatch.support.text import wrapped

_WITHOUT_TORCH = "torch was not imported: --torch shows what it had and has"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="who decides about one variable, config key, compile mode or patch, and why",
        description=(
            "Show the entry for NAME in each layer of the policies here, which entry applies and "
            "which are overridden, and what becomes of NAME in a fresh interpreter. NAME may be "
            "the end of a key's name. What torch itself has is told from a table of torch's "
            "releases, unless --torch imports it."
        ),
        epilog="example: rocm-autopatch explain cudagraphs --assume image=rocm/sgl-dev:TAG",
    )
    statuses.state_statuses(
        parser,
        {
            0: (
                "a policy here has an entry for NAME, NAME is a variable of the digest, or with "
                "--readers, a file reads NAME"
            ),
            1: "no policy here has an entry for NAME, no policy is active, or one can't be read",
        },
    )
    parser.add_argument(
        "name",
        type=options.entry_name,
        metavar="NAME",
        help="TORCHINDUCTOR_MAX_AUTOTUNE, freezing, ...",
    )
    options.add_torch(parser, "; not imported unless asked for")
    parser.add_argument(
        "--readers",
        action="store_true",
        help="for a variable: tell from the installed files who reads it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.add_assume(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.readers:
        return _explain_name(arguments, None)
    # No other command needs it.
    from rocm_autopatch.cli import readers

    try:
        name = options.parse_variable(arguments.name)
    except argparse.ArgumentTypeError as error:
        terminal.print_error(f"rocm-autopatch explain: {error}, so --readers finds nothing")
        return 1
    looked = readers.find_readers([name], fresh_interpreter.before_us())
    read = readers.readers_data(looked)["variables"][0]
    status = _explain_name(arguments, read)
    if not arguments.json:
        terminal.print_lines(readers.reader_lines(looked))
    elif status:
        # No policy speaks of it.
        terminal.print_data([{"name": name, "readers": read}])
    return 0 if readers.is_read(looked) else status


def _explain_name(arguments: argparse.Namespace, read: dict[str, Any] | None) -> int:
    report = fresh_interpreter.report(torch=bool(arguments.torch), assume=arguments.assume)
    if not report["policies"]:
        for text in report["errors"] or [report["reason"]]:
            why = text.removeprefix(process_report.NOT_APPLIED)
            terminal.print_error(f"rocm-autopatch explain: {process_report.NOT_APPLIED}{why}")
        return 1
    report = foretold.foretell_values(report, fresh_interpreter.before_us())
    rows = [row for part in ("env", *patches.NAMES, "patches") for row in report[part]]
    rows += process_report.caches_row(report)
    facts = {name: fact["value"] for name, fact in report["facts"].items()}
    for text in report["errors"]:
        # The others are of single entries, which their own rows tell.
        if text.endswith(misnamed.INSTEAD) or text.startswith(fresh_interpreter.DIED):
            terminal.print_error(f"rocm-autopatch explain: {text}")
    named = os.environ.get("ROCM_AUTOPATCH_POLICY", "").strip()
    if not misnamed.is_there(named):
        named = ""
    if report["baked"]:
        named = startup.load(report["baked"])["named"]
    chosen = select.select(facts, named)
    rows = [*_of_empty_text(chosen.layers, facts, {row["name"] for row in rows}), *rows]
    # The name of a patch stands for its fields, too: watchdog for watchdog.warn_after.
    # So does a variable, for the keys whose values it would give.
    keys = lint.keys_by_variable(arguments.name)
    found = [
        row
        for row in rows
        if kept(row["name"], (arguments.name,))
        or row["name"].startswith(arguments.name + ".")
        or row["name"] in keys
    ]
    if not found and arguments.name in report["digest_parts"].get("variables", ()):
        _tell_digested(arguments, report["digest_parts"]["variables"][arguments.name], read)
        return 0
    if not found:
        names = [row["name"].rpartition(".")[2] for row in rows]
        hint = options.did_you_mean(arguments.name, names)
        if not hint and content.is_compared(arguments.name):
            hint = ", and it is not set here; if it were, it would be a part of the digest"
        if keys:
            hint = f", nor for {' or '.join(keys)}, of which it gives the default"
        terminal.print_error(
            f"rocm-autopatch explain: no policy here has an entry for {arguments.name}{hint}"
        )
        return 1
    digested = content.join_parts(report["digest_parts"])
    explained = [
        {
            **row,
            "in_digest": digested.get(row["name"], ""),
            "variable": arguments.name if row["name"] in keys else "",
            "variable_in_digest": digested.get(arguments.name, "") if row["name"] in keys else "",
            "layers": list(_layers_of(chosen.layers, row["name"], facts)),
            "images": list(_images_of(chosen.records, row["name"])),
            **({"readers": read} if read else {}),
        }
        for row in found
    ]
    if arguments.json:
        terminal.print_data(explained)
    else:
        shown = fresh_interpreter.secrets().data(explained)
        terminal.print_lines(map(style.colour_statuses, _entry_lines(shown)))
        if any(row["status"] == "waiting" for row in found):
            terminal.print_lines(wrapped(_WITHOUT_TORCH, "", "  "))
    return 0


def _tell_digested(arguments: argparse.Namespace, value: str, read: dict[str, Any] | None) -> None:
    """Tell of a variable of which no policy speaks, and which makes this place's digest another."""
    row = {"name": arguments.name, "value": value, "in_digest": value}
    if arguments.json:
        terminal.print_data([{**row, **({"readers": read} if read else {})}])
        return
    shown = fresh_interpreter.secrets().data(row)
    text = (
        "no policy here has an entry for it. It is a part of the digest, because a compiler or a "
        "library reads it: where it has another value, or none, the digest is another one. "
        '"rocm-autopatch diff" compares two machines'
    )
    terminal.print_lines([f"{arguments.name}: {shown['value']!r}", *wrapped(text, "  ", "  ")])


def _of_empty_text(
    stack: tuple[Policy, ...], facts: dict[str, str], known: set[str]
) -> Iterator[dict[str, Any]]:
    """Rows of the rules about a variable that is set to nothing. A start records them only where it
    is."""
    given = fresh_interpreter.before_us()
    for rule in lower.lower(stack, facts)["empty"]:
        name, *_ = rule
        if name not in known:
            yield rows.of_variable(rule, given.get(name), "unchanged", None)


def _layers_of(
    stack: tuple[Policy, ...], name: str, facts: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The entry of each policy of the stack for a name, general to specific; alternatives as they
    stand there."""
    for policy in stack:
        for said, strength, value, entry in entries.entries_of(policy):
            if said == name:
                yield {
                    "layer": policy.name,
                    "strength": strength,
                    "value": value,
                    "why": entry.why,
                    "lacks": entries.lacks_entries(entry, facts),
                    "no_trial": entry.no_trial,
                    "place": f"{policy.file}:{entry.place.line}:{entry.place.column}",
                }


def _images_of(records: tuple[Policy, ...], name: str) -> Iterator[dict[str, str]]:
    """The values that the image records for this place have for a variable."""
    for row in records:
        for setting in row.sets:
            if setting.name == name:
                yield {"image": row.name, "value": setting.value, "why": setting.why}


def _entry_lines(explained: list[dict[str, Any]]) -> Iterator[str]:
    for row in explained:
        if "layer" not in row:
            reason = f" ({row['reason']})" if row["reason"] else ""
            text = f"patch {row['name']} of {row['target']}: {row['status']}{reason}"
            yield from wrapped(text, "", "    ", break_long_words=False)
            continue
        if row["variable"]:
            yield f"{row['variable']} gives the default of {row['name']}:"
        if row["status"] == "waiting" and not row["reason"].endswith((rows.KEPT, rows.IS_SET)):
            row = {**row, "reason": ""}  # The last line says so.
        yield from wrapped(rows.sentence(row), "", "    ", break_long_words=False)
        holding = [said for said in row["layers"] if not said["lacks"]]
        counts = [said for said in holding if said["layer"] == row["layer"]][-1:]
        for said in row["layers"]:
            effect = "applies" if said in counts else "overridden"
            if said["strength"] == DELETE_EMPTY:
                effect = "applies if it is empty"
            if said["lacks"]:
                effect = f"does not hold: {said['lacks']}"
            value = "" if said["strength"] in entries.DELETIONS else f" {said['value']!r}"
            yield f"  {said['layer']}: {said['strength']}{value}  ({effect}), {said['place']}"
            yield from wrapped(said["why"], "    ", "    ")
            if said["no_trial"]:
                yield from wrapped(f"no trial: {said['no_trial']}", "    ", "    ")
        for setting in row["images"]:
            yield f"  images.yaml, {setting['image']}: the image sets it to {setting['value']!r}"
            yield from wrapped(setting["why"], "    ", "    ")
        if row["variable_in_digest"]:
            yield f"  in the digest: {row['variable']}={row['variable_in_digest']}"
        if row["in_digest"]:
            yield f"  in the digest: {row['in_digest']}"
