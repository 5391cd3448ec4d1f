"""Environment variables: each that the source names is described, and the page is made of that."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

from rocm_autopatch import OFF
from rocm_autopatch.policy import load
from tests.conftest import ROOT
from tools import variables_page

OURS = re.compile(r"ROCM_AUTOPATCH(?:_[A-Z]+)*")
# Where variables are read in something else than Python.
OTHER = (
    "overlay/install.sh",
    "overlay/install.py",
    "Dockerfile.overlay",
    "Makefile",
    "deploy/kubernetes",
)


def in_python(directory: str) -> Iterator[str]:
    """The names that stand alone in a text of a Python file, as a variable that is read does."""
    for path in sorted((ROOT / directory).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if OURS.fullmatch(text):
                    yield text


def elsewhere() -> Iterator[str]:
    for name in OTHER:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*.yaml")):
            yield from OURS.findall(path.read_text(encoding="utf-8"))


def described() -> dict[str, variables_page.Variable]:
    return {one.name: one for group in variables_page.groups() for one in group.variables}


def test_each_is_described_and_there() -> None:
    found = {*in_python("rocm_autopatch"), *in_python("sitecustomize_stub"), *elsewhere()}
    # Tests make up names of variables that nothing reads.
    tests = {name for name in in_python("tests") if name.startswith("ROCM_AUTOPATCH_TEST_")}
    assert found | tests == set(described())
    # What a user meets is in the package itself.
    assert {"ROCM_AUTOPATCH", "ROCM_AUTOPATCH_POLICY"} <= set(in_python("rocm_autopatch"))


def test_the_page_is_not_stale() -> None:
    page = (ROOT / "docs" / "variables.md").read_text()
    assert "\n".join(variables_page.page()) + "\n" == page
    for name in described():
        assert f"\n- `{name}`: " in page
    for name in load.names():
        section = page.partition(f"\n### The policy `{name}`\n")[2].partition("\n#")[0]
        for rule in load.policy(load.BUILTIN / f"{name}.yaml").env:
            value = "" if rule.value is None else f"={rule.value}"
            said = f"\n{variables_page.ACTIONS[rule.action]}\n\n"
            rows = f"\n{section}".partition(said)[2].partition("\n\n")[0]
            assert f"`{rule.name}{value}`" in rows, rule.name


def test_those_that_may_name_files() -> None:
    """The description says of which variables trust.named decides whether they are obeyed."""
    asked = set()
    for path in sorted((ROOT / "rocm_autopatch").rglob("*.py")):
        for argument in re.findall(r"trust\.named\((\w+|\"\w+\")\)", path.read_text("utf-8")):
            place = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = importlib.import_module(place.removesuffix(".__init__"))
            asked.add(argument.strip('"') if '"' in argument else getattr(module, argument))
    assert asked == {name for name, one in described().items() if one.names_files}


def test_the_words_of_the_switch() -> None:
    said = described()["ROCM_AUTOPATCH"].values
    assert all(f"`{word}`" in said for word in OFF)
