"""What a process has to say but for its one line: errors, and each change where that is asked."""

from rocm_autopatch import _RECORD, _start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def fail(kind: str, text: str) -> None:
    """Put an error on the record and say it once."""
    _RECORD["errors"].append(text)
    _start.say(kind, text)


def describe(error: BaseException) -> str:
    """An exception as one would name it."""
    text = str(error)
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def narrate(rows: "list[dict[str, Any]]") -> None:
    """Write a line for each row of the record, as ROCM_AUTOPATCH_LOG=debug asks."""
    from rocm_autopatch import record

    for row in rows:
        _start.write("%s: %s" % (record.sentence(row), row["why"]))


def narrate_env() -> None:
    """Write a line for each environment rule that was carried out."""
    from rocm_autopatch import record

    narrate([record.env_row(*row) for row in _RECORD["env"]])
