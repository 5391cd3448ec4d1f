"""The built-in policies as plans, which ``setup.py`` writes into the wheel."""

from __future__ import annotations

from collections.abc import Iterator

from rocm_autopatch.evidence import defects
from rocm_autopatch.plan import Plan
from rocm_autopatch.policy import load, lower, plan_file, select
from rocm_autopatch.policy.problem import PolicyError, Problem

DEFAULT = load.DEFAULT


def _plan(name: str = "", **more: str) -> Plan:
    facts = {**lower.BUILT_IN_FACTS, **more}
    chosen = select.select(facts, name, at=())
    return lower.lower(chosen.layers, facts, chosen.policy)


def _images() -> Iterator[tuple[str, str]]:
    """Image reference -> key of POLICIES, for the records that name an image."""
    for number, row in enumerate(load.images()):
        acts = row.changes or row.base not in ("", DEFAULT)
        if row.image and not row.when:
            yield row.image, f"image-{number}" if acts else DEFAULT
        elif acts:
            # A start compares references: ranges and patterns cost too much in every process.
            node = row.places["when"]
            message = f"{row.name}: a built-in record with changes must have image, and no when"
            raise PolicyError([Problem(row.file, node.line, node.column, "when", message)])


IMAGES: dict[str, str] = dict(_images())
POLICIES: dict[str, Plan] = {
    **{name: _plan(name) for name in load.names()},
    **{key: _plan(image=image) for image, key in IMAGES.items() if key != DEFAULT},
}


def files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in ``rocm_autopatch/plans``."""
    shared: dict[str, bytes] = {}
    for name, plan in POLICIES.items():
        yield f"{name}.plan", plan_file.content(plan, shared)
    yield from shared.items()
    yield "images.index", plan_file.pack(IMAGES)
    yield defects.INDEX, plan_file.pack(defects.read_source())
