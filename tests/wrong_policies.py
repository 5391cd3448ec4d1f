"""tests/data/wrong_policies.txt: policies that are wrong, and all that the loader says of each.
``python -m tests.wrong_policies`` renews what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rocm_autopatch.policy import document, schema
from rocm_autopatch.policy.problem import Problems

FILE = Path(__file__).parent / "data" / "wrong_policies.txt"
END = "\n%%\n"


def problems(data: bytes, kind: str = "policy") -> list[str]:
    found = Problems()
    root = document.parse(data, "f.yaml", found, None)
    if root and kind == "images":
        schema.read_images(root, "f.yaml", found)
    elif root:
        schema.read_policy(root, "f.yaml", "f", found)
    return [str(problem) for problem in found.shown()]


def wrong_policies() -> Iterator[tuple[str, list[str]]]:
    for case in FILE.read_text().partition("\n\n")[2].split(END)[:-1]:
        lines = case.strip("\n").split("\n")
        said = [f"f.yaml:{line[3:]}" for line in lines if line.startswith("=> ")]
        yield "\n".join(lines[: -len(said)]) + "\n", said


def renew() -> None:
    head, _, _ = FILE.read_text().partition("\n\n")
    cases = []
    for text, _ in wrong_policies():
        found = problems(text.encode())
        assert found, f"nothing is said any more of: {text}"
        cases.append(text + "\n".join(line.replace("f.yaml:", "=> ", 1) for line in found))
    FILE.write_text(head + "\n\n" + "\n%%\n\n".join(cases) + END)


if __name__ == "__main__":
    renew()
