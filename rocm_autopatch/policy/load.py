"""From a policy's name or file to its layers: the policies it extends, general to specific."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from rocm_autopatch import _DEFAULT
from rocm_autopatch.policy import document, schema
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.problem import ERROR, Hint, Problem, Problems, similar_name
from rocm_autopatch.trust import is_path

_PACKAGE = Path(__file__).resolve().parent.parent
# In a wheel the policies lie in the package; in a checkout they are a directory beside it.
BUILTIN = next(
    (path for path in (_PACKAGE / "policies", _PACKAGE.parent / "policies") if path.is_dir()),
    _PACKAGE / "policies",
)
IMAGES = BUILTIN / "images.yaml"
# The policy of an image that no record chooses another for.
DEFAULT = _DEFAULT
# The most policy files that a start reads, built-in ones included. It limits the layers, too.
MAX_FILES = 100
# Linux's PATH_MAX
_LONGEST_PATH = 4096


def names() -> tuple[str, ...]:
    """The built-in policies."""
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.yaml") if path != IMAGES))


class Reading(Problems):
    """Policy files, each read once, and all that is wrong with them.

    A file that can't be read is left out, and the list of problems says why. *judgement* is the
    severity if others can change a file (document.read). The built-in ones are not judged: they are
    trusted as much as the code beside them.
    """

    def __init__(self, judgement: str = ERROR) -> None:
        super().__init__()
        self._judgement = judgement
        self._room = document.Room()
        self._policies: dict[str, Policy | None] = {}

    def images(self, file: Path) -> tuple[Policy, ...]:
        """The rows of an images file, general to specific."""
        root = self._document(file)
        return schema.read_images(root, str(file), self) if root else ()

    def policy(self, file: Path) -> Policy | None:
        """The policy in *file*, without its bases."""
        key = os.path.realpath(file)
        if key not in self._policies:
            self._policies[key] = None
            if len(self._policies) > MAX_FILES:
                self.add(Problem(str(file), 0, 0, "", f"more than {MAX_FILES} policy files"))
                return None
            root = self._document(file)
            if root:
                self._policies[key] = schema.read_policy(root, str(file), file.stem, self)
        return self._policies[key]

    def _document(self, file: Path) -> document.Node | None:
        if os.path.realpath(file.parent) == os.path.realpath(BUILTIN):
            return document.read(file, self, "")
        return document.read(file, self, self._judgement, self._room)

    def top(self, name: str) -> Policy | None:
        """The policy that a user means by a name: a built-in one, or a file's path."""
        file = self._find(name, Path())
        if file is None:
            self.add(Problem(name, 0, 0, "", self._missing), self._similar(name))
            return None
        return self.policy(file)

    def base(self, row: Policy) -> Policy | None:
        """The policy that an image record starts from."""
        if not row.base:
            return self.top(DEFAULT)
        file = self._find(row.base, Path(row.file).parent)
        if file is None or _is_missing(file):
            self.wrong(row, "policy", row.base, self._missing, self._similar(row.base))
            return None
        return self.policy(file)

    def mitigations(self, policy: Policy) -> None:
        """Report each mitigation of a known issue that is not a built-in policy."""
        for issue in policy.known_issues:
            if issue.mitigation not in ("", *self._names):
                name = issue.mitigation
                self.wrong(policy, "known_issues", name, self._missing, self._similar(name))

    def layers(self, top: Policy | None) -> tuple[Policy, ...]:
        """*top* and all that it extends, each once, after its bases."""
        found: dict[str, Policy] = {}
        if top:
            self._collect(top, os.path.realpath(top.file), (), found)
        return tuple(found.values())

    def _collect(
        self, top: Policy, key: str, above: tuple[str, ...], found: dict[str, Policy]
    ) -> None:
        for base in top.extends or ():
            file = self._find(base, Path(top.file).parent)
            if file is None or _is_missing(file):
                self.wrong(top, "extends", base, self._missing, self._similar(base))
                continue
            resolved = os.path.realpath(file)
            if resolved == key or resolved in above:
                self.wrong(top, "extends", base, f"extends itself through {file}")
                continue
            policy = None if resolved in found else self.policy(file)
            if policy:
                self._collect(policy, resolved, (*above, key), found)
        found[key] = top

    def wrong(
        self, policy: Policy, key: str, path: str, message: str, hint: Hint | None = None
    ) -> None:
        """Add what is wrong at the value of a policy's *key*."""
        node = policy.places[key]
        short = path if len(path) < _LONGEST_PATH else f"{path[:100]}..."
        self.add(Problem(policy.file, node.line, node.column, short, message), hint)

    def _similar(self, name: str) -> Hint:
        return lambda: similar_name(name, self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return names()

    @cached_property
    def _missing(self) -> str:
        known = ", ".join(self._names)
        return f"no such policy; built-in policies: {known}; or give the path of a file"

    def _find(self, name: str, directory: Path) -> Path | None:
        """The file of a built-in policy, None if there is none, or that of a path."""
        if is_path(name):
            return directory / name if len(name) < _LONGEST_PATH else None
        return BUILTIN / f"{name}.yaml" if name in self._names else None


def _is_missing(file: Path) -> bool:
    """Whether there is no such file. If it can't be read for another reason, reading it says so."""
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def images(file: Path = IMAGES, judgement: str = ERROR) -> tuple[Policy, ...]:
    """The rows of an images file, general to specific. Raises PolicyError."""
    reading = Reading(judgement)
    rows = reading.images(file)
    reading.finish()
    return rows


def top(name: str) -> Policy:
    """The policy that a user means by a name: a built-in one, or a file's path.

    Raises PolicyError.
    """
    reading = Reading()
    return _whole(reading, reading.top(name))


def base(row: Policy) -> Policy:
    """The policy that an image record starts from. Raises PolicyError."""
    reading = Reading()
    return _whole(reading, reading.base(row))


def policy(file: Path) -> Policy:
    """The policy in *file*, without its bases. Raises PolicyError."""
    reading = Reading()
    return _whole(reading, reading.policy(file))


def layers(top: Policy) -> tuple[Policy, ...]:
    """*top* and all that it extends, each once, after its bases. Raises PolicyError."""
    reading = Reading()
    found = reading.layers(top)
    reading.finish()
    return found


def _whole(reading: Reading, policy: Policy | None) -> Policy:
    reading.finish()
    # If it were None, finish() would have raised.
    assert policy is not None
    return policy
