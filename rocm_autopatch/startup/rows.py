"""Rows of the record as text, and the row of a variable.

A start loads it only where ``ROCM_AUTOPATCH_LOG=debug`` asks for a line for each change.
"""

from rocm_autopatch import _RECORD
from rocm_autopatch.plan import ENV_FIELDS, named_fields
from rocm_autopatch.startup import baseline
from rocm_autopatch.support import masking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Optional

    from rocm_autopatch.plan import EnvRow

# How the reason ends for which a waiting entry will not be applied, as a patch says it later.
KEPT, IS_SET = "ROCM_AUTOPATCH_KEEP", " is set in the environment"
_ORIGINS = {"image": " (set by the image)", "user": " (set by a user)"}


def of_variable(
    rule: "EnvRow",
    before: "Optional[str]",
    status: str,
    image: "Optional[dict[str, str]]",
) -> "dict[str, Optional[str]]":
    """A row of the record, made from what a start records of an environment rule.

    *image* are the variables of the image itself, None where they are not known.
    """
    said = named_fields(ENV_FIELDS, rule)
    return {
        "name": said["name"],
        "action": said["action"],
        "before": before,
        "after": said["value"] if status == "applied" else before,
        "wanted": said["value"],
        "origin": baseline.origin(said["name"], before, image),
        "status": "given" if status in baseline.GIVEN else status,
        "reason": status if status in baseline.GIVEN else "",
        "layer": said["layer"],
        "why": said["why"],
    }


def narrate_start(write: "Callable[[str], None]") -> None:
    """Write a line for each environment rule that the start of this process carried out."""
    image, _ = baseline.read()
    done = [of_variable(rule, was, status, image) for rule, was, status in _RECORD["env"]]
    for line in lines(done):
        write(line)


def lines(rows: "Sequence[Mapping[str, Any]]") -> "Iterator[str]":
    """A line for each row, with secrets masked."""
    for row in rows:
        yield masking.text("%s: %s" % (sentence(row), row["why"]))


def sentence(row: "Mapping[str, Any]") -> str:
    """What became of a variable, config value or compile mode, without the reason for the entry."""
    reason = " (%s)" % row["reason"] if row.get("reason") else ""
    return "%s: %s  [%s %s, %s]%s" % (
        *(row["name"], entry_change(row), entry_strength(row), row["status"], row["layer"], reason),
    )


def entry_strength(row: "Mapping[str, Any]") -> str:
    """How strongly an entry asks: ``delete``, ``default``, ``set``, ``pin`` or ``use``."""
    word: str = row.get("action") or row.get("strength") or "use"
    return word


def entry_change(row: "Mapping[str, Any]") -> str:
    """The value before and after an entry, or what it will be or would be."""
    change = _value(row["before"]) + _ORIGINS.get(row.get("origin", ""), "")
    if row["after"] != row["before"]:
        change += " -> " + _value(row["after"])
    elif row["status"] == "observed":
        change += ", would become " + _value(row["wanted"])
    elif row["status"] == "waiting" and row["reason"].endswith((KEPT, IS_SET)):
        change = "will stay as it is"
    elif row["status"] == "waiting":
        change = "will become " + _value(row["wanted"])
        if "own" in row and row["own"] == row["wanted"]:
            change = "%s, as torch itself has it" % _value(row["wanted"])
        elif "own" in row:
            change = "%s, %s" % (_value(row["own"]), change)
    return change


def _value(value: object) -> str:
    return "unset" if value is None else repr(value)
