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


def names() -> tuple[str, ...]:
    """The built-in policies."""
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.yaml") if path != IMAGES))


def images(file: Path = IMAGES) -> tuple[Policy, ...]:
    """The rows of an images file. Raises PolicyError."""
    return schema.read_images(document.read(file), str(file))


def top(name: str) -> Policy:
    """The policy that a user means by a name: a file's path, a built-in one, or a known image.

    Raises PolicyError.
    """
    row = next((row for row in images() if row.name == name), None)
    if row is not None:
        return row
    file = find(name, Path())
    if file is None:
        message = f"no such policy: there are {', '.join(names())}, or give a file's path"
        raise PolicyError([Problem(name, 0, 0, "", message)])
    return policy(file)


def policy(file: Path) -> Policy:
    """The policy in *file*, without its bases. Raises PolicyError."""
    return schema.read_policy(document.read(file), str(file), file.stem)


def layers(top: Policy) -> tuple[Policy, ...]:
    """*top* and all that it extends, each once, after its bases. Raises PolicyError."""
    found: dict[Path, Policy] = {}
    _collect(top, Path(top.file).resolve(), (), found)
    return tuple(found.values())


def _collect(top: Policy, key: Path, above: tuple[Path, ...], found: dict[Path, Policy]) -> None:
    for base in top.extends:
        node = top.places.get("extends") or top.places["policy"]
        file = find(base, Path(top.file).parent)

        def error(message: str, base: str = base, node: document.Node = node) -> PolicyError:
            return PolicyError([Problem(top.file, node.line, node.column, base, message)])

        if file is None or not file.is_file():
            raise error(f"no such policy: there are {', '.join(names())}, or give a file's path")
        resolved = file.resolve()
        if resolved == key or resolved in above:
            raise error(f"extends itself by way of {file}")
        if resolved not in found:
            _collect(policy(file), resolved, (*above, key), found)
    # A row of images.yaml shares its file with the other rows: key it by its name.
    found[key / top.name if key == IMAGES.resolve() else key] = top


def find(name: str, directory: Path) -> Path | None:
    """The file of a built-in policy, None if there is none, or that of a path from *directory*."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return directory / name
    return BUILTIN / f"{name}.yaml" if name in names() else None
