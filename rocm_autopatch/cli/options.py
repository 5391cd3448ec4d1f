"""Options that several commands have, with one meaning in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.cli import values
from rocm_autopatch.cli.command import flag_field, option_field, optional_flag, repeated_option
from rocm_autopatch.support.processes import INTERRUPTED
from rocm_autopatch.support.user_error import UserError

# A run that takes longer counts as hanging: half an hour, in seconds.
TIMEOUT_S = 1800.0
# What --metric names, once or several times.
METRIC = "a number that counts, by its name as the command prints it, or 'wall time'"


def image_option(help: str) -> str:
    """``--image``, the one way to name an image on a command line."""
    return option_field("--image", parse=values.parse_image, default="", metavar="REF", help=help)


@dataclass(frozen=True)
class AssumedFacts:
    """The options ``--image`` and ``--assume``, of commands that look at a place."""

    image: str = image_option("the image to take in place of the one found here")
    assume: tuple[str, ...] = repeated_option(
        "--assume",
        parse=values.parse_assumption,
        metavar="NAME=VALUE",
        help="a fact to take in place of the one found here, such as accelerator=rocm",
    )

    @property
    def assumed(self) -> list[str]:
        """All that is assumed, each as NAME=VALUE."""
        return [*self.assume, *([f"image={self.image}"] if self.image else [])]


def json_flag(help: str = "print JSON", group: str = "") -> bool:
    """``--json``."""
    return flag_field("--json", help=help, group=group)


def torch_flag(when: str) -> bool | None:
    """``--torch`` and ``--no-torch``; *when* says what holds without."""
    text = f"import torch, as a program would, which takes seconds{when}"
    return optional_flag("--torch", help=text)


def plot_option() -> Path | None:
    """``--plot``."""
    text = "draw a .png or .svg file (needs matplotlib)"
    return option_field("--plot", parse=values.parse_path, default=None, metavar="FILE", help=text)


def plot_trouble(draw: Callable[[], None]) -> list[str]:
    """Draw what ``--plot`` asks for; the remark on why it could not be written, if it could not."""
    try:
        draw()
    except OSError as error:
        return [f"--plot: {error}"]
    return []


def timeout_option() -> float:
    """``--timeout``, in seconds."""
    return option_field(
        "--timeout",
        parse=values.parse_duration,
        default=TIMEOUT_S,
        metavar=values.DURATION,
        help="a run that takes longer counts as hanging, and is killed (default: 30m)",
    )


def number_option(default: str = "") -> tuple[str, ...]:
    """``--number``: how to find a number in what a command prints."""
    text = "take the number in this regular expression's one group, (?P<NAME>...) to name it"
    return repeated_option("--number", parse=str, metavar="REGEX", help=text + default)


def toggle_option(help: str, required: bool = False) -> tuple[str, ...]:
    """``--toggle``: a switch of torch, a variable, a mode or a policy, with its values."""
    return repeated_option(
        "--toggle", parse=str, metavar="NAME[=VALUE,...]", help=help, required=required
    )


def only_option(
    what: str, parse: Callable[[str], tuple[str, ...]] = values.parse_names
) -> tuple[str, ...]:
    """``--only``: of all that would be measured, what is."""
    text = f"only these {what}; --list shows their names"
    return option_field("--only", parse=parse, default=(), metavar="NAME,...", help=text)


def seed_option(more: str = "") -> int | None:
    """``--seed``."""
    text = f"seed of the order of runs{more} (default: random)"
    return option_field("--seed", parse=int, default=None, help=text)


def interrupted_early() -> UserError:
    """The error where Ctrl-C came before something was measured."""
    return UserError("interrupted before the first run", status=INTERRUPTED)
