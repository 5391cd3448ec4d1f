"""From a policy's name or file to its layers: the policies it extends, general to specific."""

from __future__ import annotations

from pathlib import Path

from rocm_autopatch.policy import document, schema
from rocm_autopatch.policy.problem import PolicyError, Problem
from rocm_autopatch.policy.schema import Policy

_PACKAGE = Path(__file__).resolve().parent.parent
# In a wheel the policies lie in the package; in a checkout they are a directory beside it.
BUILTIN = next(
    (path for path in (_PACKAGE / "policies", _PACKAGE.parent / "policies") if path.is_dir()),
    _PACKAGE / "policies",
)
IMAGES = BUILTIN / "images.yaml"
# The policy of an image that no record chooses another for.
DEFAULT = "safe"


def names() -> tuple[str, ...]:
    """The built-in policies."""
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.yaml") if path != IMAGES))


def images(file: Path = IMAGES) -> tuple[Policy, ...]:
    """The rows of an images file, general to specific. Raises PolicyError."""
    return schema.read_images(document.read(file), str(file))


def top(name: str) -> Policy:
    """The policy that a user means by a name: a built-in one, or a file's path.

    Raises PolicyError.
    """
    file = find(name, Path())
    if file is None:
        raise PolicyError([Problem(name, 0, 0, "", _missing())])
    return policy(file)


def base(row: Policy) -> Policy:
    """The policy that an image record starts from. Raises PolicyError."""
    if not row.base:
        return top(DEFAULT)
    file = find(row.base, Path(row.file).parent)
    if file is None or not file.is_file():
        node = row.places["policy"]
        raise PolicyError([Problem(row.file, node.line, node.column, row.base, _missing())])
    return policy(file)


def mitigations(policy: Policy) -> None:
    """Raise PolicyError if a known issue names a policy that is not built in."""
    node = policy.places.get("known_issues")
    wrong = [
        issue.mitigation for issue in policy.known_issues if issue.mitigation not in ("", *names())
    ]
    if node and wrong:
        raise PolicyError(
            [Problem(policy.file, node.line, node.column, name, _missing()) for name in wrong]
        )


def policy(file: Path) -> Policy:
    """The policy in *file*, without its bases. Raises PolicyError."""
    return schema.read_policy(document.read(file), str(file), file.stem)


def layers(top: Policy) -> tuple[Policy, ...]:
    """*top* and all that it extends, each once, after its bases. Raises PolicyError."""
    found: dict[Path, Policy] = {}
    _collect(top, Path(top.file).resolve(), (), found)
    return tuple(found.values())


def _collect(top: Policy, key: Path, above: tuple[Path, ...], found: dict[Path, Policy]) -> None:
    for base in top.extends or ():
        node = top.places["extends"]
        file = find(base, Path(top.file).parent)

        def error(message: str, base: str = base, node: document.Node = node) -> PolicyError:
            return PolicyError([Problem(top.file, node.line, node.column, base, message)])

        if file is None or not file.is_file():
            raise error(_missing())
        resolved = file.resolve()
        if resolved == key or resolved in above:
            raise error(f"extends itself by way of {file}")
        if resolved not in found:
            _collect(policy(file), resolved, (*above, key), found)
    found[key] = top


def _missing() -> str:
    return f"no such policy: there are {', '.join(names())}, or give a file's path"


def is_path(name: str) -> bool:
    """Whether a policy's name is that of a file."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def find(name: str, directory: Path) -> Path | None:
    """The file of a built-in policy, None if there is none, or that of a path from *directory*."""
    if is_path(name):
        return directory / name
    return BUILTIN / f"{name}.yaml" if name in names() else None
