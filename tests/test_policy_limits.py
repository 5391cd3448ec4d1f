"""What the largest policies cost, and what is said of those that are larger."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rocm_autopatch.cli import main
from rocm_autopatch.policy import (
    PolicyError,
    document,
    load,
    lower,
    model,
    problem,
    schema,
    select,
    when,
)
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.policy_shapes import IMAGES, POLICIES

# Two minutes of one core.
pytestmark = pytest.mark.slow

# docs/policies.md promises one second on a machine of its own.
SECONDS = 3
FACTS = {
    "accelerator": "rocm",
    "torch": "2.13.0",
    "rocm": "7.0",
    "gfx": "gfx942",
    "repository": "team/serving",
    "tag": "a" * 128,
    "image": f"team/serving:{'a' * 128}",
}
SHAPES = [("policy.yaml", *item) for item in POLICIES.items()]
SHAPES += [("images.yaml", *item) for item in IMAGES.items()]
each_shape = pytest.mark.parametrize(
    ("name", "shape"), [shape[::2] for shape in SHAPES], ids=[shape[1] for shape in SHAPES]
)
Shape = Callable[[int, int], str]


def as_a_start(file: Path) -> int:
    """Read and lower as a start does that finds *file*; the number of problems that it reports."""
    try:
        if file.name == "images.yaml":
            chosen = select.select(FACTS, at=[file.parent])
        else:
            chosen = select.select(FACTS, str(file), at=())
        lower.lower(chosen.layers, FACTS)
    except PolicyError as error:
        return len(error.problems)
    return 0


@each_shape
def test_the_largest(
    name: str, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(shape(document.MAX_BYTES, document.MAX_VALUES))
    when._range.cache_clear()
    before = time.process_time()
    problems = as_a_start(file)
    start = time.process_time()
    main(["check", "--torch", "2.4..2.15", str(file)])
    checked = time.process_time()
    assert start - before < SECONDS
    assert checked - start < SECONDS
    lines = capsys.readouterr().out.splitlines()
    assert max(problems, len(lines)) <= problem.MOST + 1
    assert max(map(len, lines), default=0) < 5000


def calls(run: Callable[[], object]) -> int:
    """How many functions are called, Python's own among them."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@each_shape
def test_twice_as_much_costs_twice_as_much(
    name: str, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    counts = []
    # Past the number of problems of which each gets a hint
    for part in (16, 8):
        file.write_text(shape(document.MAX_BYTES // part, document.MAX_VALUES // part))
        when._range.cache_clear()
        counts.append(calls(lambda: (as_a_start(file), main(["check", str(file)]))))
    assert counts[1] < 2.5 * counts[0]


def operations(run: Callable[[], object]) -> int:
    """How many of Python's operations are carried out."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("entry", ["default: 1", "pin: 1", "pin: 1, since: '2.6'"])
@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_lowering_twice_as_much_costs_twice_as_much(entry: str) -> None:
    def policies(count: int) -> list[model.Policy]:
        keys = "".join(f"    k{number}: {{{entry}}}\n" for number in range(count))
        variables = "".join(f"  V{number}: {{set: a}}\n" for number in range(count))
        text = f"version: 1\nconfig:\n  torch._inductor.config:\n{keys}env:\n{variables}"
        root = document.parse(text.encode(), "f")
        return [schema.read_policy(root, name, name) for name in ("one", "two")]

    stacks = [policies(100), policies(200)]
    few, many = (operations(lambda stack=stack: lower.lower(stack)) for stack in stacks)  # type: ignore[misc]
    assert many < 2.2 * few


@pytest.mark.parametrize(
    "name", ["variables", "missing files", "sexagesimal", "as deep as allowed", "many patterns"]
)
def test_a_start(name: str, tmp_path: Path, python311: Interpreter) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICIES[name](document.MAX_BYTES, document.MAX_VALUES))

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu()
    done = python311.run("-c", "print('started')", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
    assert cpu() - before < SECONDS
    assert done.stdout == "started\n"


def said(text: str) -> list[str]:
    try:
        schema.read_policy(document.parse(text.encode(), "f"), "f", "f")
    except PolicyError as error:
        return [str(one) for one in error.problems]
    return []


def test_as_many_values_as_allowed(golden: Golden) -> None:
    items = "1," * (document.MAX_VALUES - 1)
    document.parse(f"[{items}]".encode(), "f")
    (more,) = said(f"[{items}1]")
    golden(more)


def test_a_document_of_the_largest_size(golden: Golden) -> None:
    document.parse(b"a".ljust(document.MAX_BYTES, b"#"), "f")
    (more,) = said("#" * (document.MAX_BYTES + 1))
    golden(more)


def test_a_key_of_the_largest_length(golden: Golden) -> None:
    assert "more than 1024" not in said(f"? {'k' * 1024}\n: 1\n")[0]
    golden(said(f"? {'k' * 1025}\n: 1\n")[0])


def test_a_hundred_problems_are_reported(golden: Golden) -> None:
    text = "version: 1\n" + "".join(f"nam{number}: 1\n" for number in range(250))
    found = said(text)
    assert len(found) == 101
    golden("\n".join([found[0], "...", *found[99:]]), "all")
    with pytest.raises(PolicyError) as caught:
        schema.read_policy(document.parse(text.encode(), "f"), "f", "f")
    golden(str(caught.value), "in one line")


def test_problems_are_counted_over_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    wrong = "".join(f"nam{number}: 1\n" for number in range(80))
    for name, more in (("top", "extends: base.yaml\n"), ("base", "")):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\n{more}{wrong}")
    assert main(["check", str(tmp_path / "top.yaml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 101
    golden(lines[-1])


def test_the_files_of_a_start_share_the_room(tmp_path: Path, golden: Golden) -> None:
    text = "version: 1\n" + "#" * (document.MAX_BYTES // 2)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(text)
    load.policy(tmp_path / "a.yaml")
    with pytest.raises(PolicyError) as caught:
        select.select(FACTS, at=[tmp_path])
    golden(str(caught.value))


def test_a_chain_of_policies_ends(tmp_path: Path, golden: Golden) -> None:
    for number in range(3000):
        (tmp_path / f"{number}.yaml").write_text(f"version: 1\nextends: {number + 1}.yaml\n")
    with pytest.raises(PolicyError) as caught:
        load.layers(load.policy(tmp_path / "0.yaml"))
    golden(str(caught.value))


def test_a_base_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bases in (("a", "safe"), ("b", "safe"), ("top", "[a.yaml, b.yaml, safe]")):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nextends: {bases}\n")
    opened = []
    really = os.open

    def counted(path: str, *how: int) -> int:
        opened.append(path)
        return really(path, *how)

    monkeypatch.setattr(os, "open", counted)
    select.select(FACTS, str(tmp_path / "top.yaml"), at=())
    assert len(opened) == len(set(opened)) == 5
