"""``rocm-autopatch explain NAME``: who decides about one variable, key, mode or patch, and why."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocm_autopatch import fresh_interpreter, patches, startup
from rocm_autopatch.cli import entries, foretold, options, style, values
from rocm_autopatch.cli.command import Command, CommandResult, flag_field, position_field
from rocm_autopatch.cli.near_words import did_you_mean
from rocm_autopatch.patches import kept
from rocm_autopatch.patches.ranks import content
from rocm_autopatch.policy import lint, lower, select
from rocm_autopatch.policy.model import DELETE_EMPTY, Policy
from rocm_autopatch.record import report as process_report
from rocm_autopatch.startup import misnamed, rows
from rocm_autopatch.support.text import wrapped
from rocm_autopatch.support.user_error import UserError

_WITHOUT_TORCH = "torch was not imported: --torch shows what it had and has"


@dataclass(frozen=True)
class ExplainArguments(options.AssumedFacts):
    name: str = position_field(
        parse=values.parse_entry, metavar="NAME", help="TORCHINDUCTOR_MAX_AUTOTUNE, freezing, ..."
    )
    torch: bool | None = options.torch_flag("; not imported unless asked for")
    readers: bool = flag_field(
        "--readers", help="for a variable: tell from the installed files who reads it"
    )
    json: bool = options.json_flag()


class _NothingSaid(UserError):
    """No policy here says something about the name. The text says why."""

    usual_page = "policies.md#looking-at-them"


def explain_name(arguments: ExplainArguments) -> CommandResult:
    if not arguments.readers:
        return _explain_entries(arguments, None)
    # No other command needs it.
    from rocm_autopatch.cli import readers

    try:
        name = values.parse_variable(arguments.name)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{error}, so --readers finds nothing") from None
    looked = readers.find_readers([name], fresh_interpreter.before_us())
    read = readers.readers_data(looked)["variables"][0]
    try:
        said = _explain_entries(arguments, read)
    except _NothingSaid as error:
        # No policy speaks of it.
        nothing = {"name": name, "readers": read}
        said = CommandResult(data=lambda: [nothing], status=error.status, remarks=error.messages)
    return replace(
        said,
        lines=lambda: [*said.lines(), *readers.reader_lines(looked)],
        status=0 if readers.is_read(looked) else said.status,
    )


def _explain_entries(
    arguments: ExplainArguments, read: Mapping[str, object] | None
) -> CommandResult:
    """What the policies here say of a name. Raises _NothingSaid."""
    report = fresh_interpreter.report(torch=bool(arguments.torch), assume=arguments.assumed)
    if not report["policies"]:
        reasons = report["errors"] or [report["reason"]]
        raise _NothingSaid(
            *(
                process_report.NOT_APPLIED + text.removeprefix(process_report.NOT_APPLIED)
                for text in reasons
            )
        )
    report = foretold.foretell_values(report, fresh_interpreter.before_us())
    rows = [row for part in ("env", *patches.NAMES, "patches") for row in report[part]]
    rows += process_report.caches_row(report)
    facts = {name: fact["value"] for name, fact in report["facts"].items()}
    # The others are of single entries, which their own rows tell.
    remarks = [
        text
        for text in report["errors"]
        if text.endswith(misnamed.INSTEAD) or text.startswith(fresh_interpreter.DIED)
    ]
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
        value = report["digest_parts"]["variables"][arguments.name]
        return _digested_result(arguments.name, value, read, remarks)
    if not found:
        names = [row["name"].rpartition(".")[2] for row in rows]
        hint = did_you_mean(arguments.name, names)
        if not hint and content.is_compared(arguments.name):
            hint = ", and it is not set here; if it were, it would be a part of the digest"
        if keys:
            hint = f", nor for {' or '.join(keys)}, of which it gives the default"
        raise _NothingSaid(*remarks, f"no policy here has an entry for {arguments.name}{hint}")
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
    waits = any(row["status"] == "waiting" for row in found)

    def lines() -> Iterator[str]:
        shown = fresh_interpreter.secrets().data(explained)
        yield from map(style.colour_statuses, _entry_lines(shown))
        if waits:
            yield from wrapped(_WITHOUT_TORCH, "", "  ")

    return CommandResult(lines, lambda: explained, remarks=remarks)


COMMAND = Command(
    ExplainArguments,
    explain_name,
    description=(
        "Show the entry for NAME in each layer of the policies here, which entry applies and "
        "which are overridden, and what becomes of NAME in a fresh interpreter. NAME may be "
        "the end of a key's name. What torch itself has is told from a table of torch's "
        "releases, unless --torch imports it."
    ),
    example="rocm-autopatch explain cudagraphs --image rocm/sgl-dev:TAG",
    statuses={
        0: (
            "a policy here has an entry for NAME, NAME is a variable of the digest, or with "
            "--readers, a file reads NAME"
        ),
        1: "no policy here has an entry for NAME, no policy is active, or one can't be read",
    },
)


def _digested_result(
    name: str, value: str, read: Mapping[str, object] | None, remarks: Sequence[str]
) -> CommandResult:
    """Of a variable of which no policy speaks, and which makes this place's digest another."""
    row = {"name": name, "value": value, "in_digest": value}
    text = (
        "no policy here has an entry for it. It is a part of the digest, because a compiler or a "
        "library reads it: where it has another value, or none, the digest is another one. "
        '"rocm-autopatch diff" compares two machines'
    )

    def lines() -> Iterator[str]:
        shown = fresh_interpreter.secrets().data(row)
        yield f"{name}: {shown['value']!r}"
        yield from wrapped(text, "  ", "  ")

    return CommandResult(
        lines, lambda: [{**row, **({"readers": read} if read else {})}], remarks=remarks
    )


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
                    "lacks": entries.lacks_entries(entry, facts) or "",
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
