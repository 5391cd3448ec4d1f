"""The registry of switches: what its rows say is so, and a new row is all that a switch needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocm_autopatch.patches import compile_modes
from rocm_autopatch.policy import lint
from rocm_autopatch.switches import MODE_PREFIX, MODES, SWITCHES, Switch, switches_that_stop
from tests.conftest import ROOT, Interpreter
from tests.programs import program_file
from tools import switch_parts

# A switch that torch has and that no row is about.
ROW = """\
    Switch(
        "triton.dense_indexing",
        True,
        "Indices have the shape of the block.",
        where="gpu",
        code=True,
        own=False,
        subject="dense_indexing",
        proven="Compiles with dense indices work.",
        safe="Off, as in torch itself. Nobody asked for it.",
        performance="Off, as in torch itself. Indices take more registers.",
        turned_on_by="INDUCTOR_DENSE_INDEXING",
        stops=("codegen",),
    ),
)
"""
LOOK = program_file("switches/new_row.py")
FOLDERS = (
    *("rocm_autopatch", "policies", "tools", "docs", "evidence"),
    *("experiments", "benchmarks", "surroundings"),
)


class TestRows:
    def test_each_is_there_once(self) -> None:
        toggles = [row.toggle for row in SWITCHES]
        assert len(toggles) == len({*toggles}) > 60
        names = [one.name for one in MODES] + [row.subject for row in SWITCHES if row.subject]
        assert len(names) == len({*names})

    @pytest.mark.parametrize("row", SWITCHES, ids=lambda row: str(row.toggle))
    def test_it_is_whole(self, row: Switch) -> None:
        sentences = (row.about, row.proven, row.safe, row.performance)
        assert all(text.endswith(".") for text in sentences if text)
        assert row.about
        assert bool(row.subject) == bool(row.proven)
        assert row.where in ("", "rocm", "cuda", "gpu", "cpu")
        # A policy sets torch's own value of a key.
        if (row.safe or row.performance) and not row.is_variable:
            assert row.own is not None
        # Only what can be turned on has a variable for that, and only what can gain.
        assert not row.turned_on_by or (row.performance and row.subject)
        if row.performance and row.subject and not row.is_variable:
            assert row.turned_on_by or row.variable
        assert not row.stops or False in (row.value, row.own)

    @pytest.mark.parametrize(
        "row", [row for row in SWITCHES if not row.is_mode], ids=lambda row: str(row.toggle)
    )
    def test_torch_has_it(self, row: Switch) -> None:
        """The key, its own value and its variable, in each torch that has it."""
        if row.is_variable:
            assert isinstance(row.value, str)
            return
        module, key = row.setting
        records = [
            lint.keys(version)[f"{module}.{key}"]
            for version in lint.known_versions()
            if f"{module}.{key}" in lint.keys(version)
        ]
        assert records
        assert all(record.fits(row.value) for record in records)
        if row.own is not None:
            assert {(type(one.default), one.default) for one in records} == {
                (type(row.own), row.own)
            }
        if row.variable:
            assert row.variable in lint.variables_of(module, key)

    @pytest.mark.parametrize(
        "row", [row for row in SWITCHES if row.is_mode], ids=lambda row: str(row.toggle)
    )
    def test_there_is_such_a_mode(self, row: Switch) -> None:
        assert row.key[len(MODE_PREFIX) :] in compile_modes.MODES
        assert row.value in compile_modes.USES

    def test_what_stops_a_phase(self) -> None:
        assert switches_that_stop("configs") == [
            ("max_autotune_pointwise", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE"),
            ("max_autotune", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        ]
        # It is on by itself, so its variable is not what turned it on.
        assert switches_that_stop("pads") == [("shape_padding", "")]
        assert switches_that_stop("lock") == []


class TestParts:
    @pytest.mark.parametrize("name", switch_parts.PARTS)
    def test_it_is_not_stale(self, name: str) -> None:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert switch_parts.PARTS[name](text) == text

    @pytest.mark.parametrize("name", [n for n in switch_parts.PARTS if n != "docs/switches.md"])
    def test_a_file_without_a_place_for_it(self, name: str) -> None:
        with pytest.raises(ValueError, match="has no"):
            switch_parts.PARTS[name]("# Nothing is here.\n")

    def test_an_entry_that_somebody_changed(self) -> None:
        text = (ROOT / "policies" / "performance.yaml").read_text(encoding="utf-8")
        changed = text.replace("        gains: freezing\n", "")
        assert changed != text
        assert switch_parts.performance(changed) == text


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one more row, after ``make docs``."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyc"))
    registry = copy / "rocm_autopatch" / "switches.py"
    text = registry.read_text(encoding="utf-8")
    assert text.endswith("\n)\n")
    registry.write_text(text[:-2] + ROW, encoding="utf-8")
    run_python(copy, "tools/switch_parts.py", ".")
    run_python(copy, "tools/json_schema.py", "docs")
    for page in ("measurements", "variables"):
        made = run_python(copy, f"tools/{page}_page.py")
        (copy / "docs" / f"{page}.md").write_text(made, encoding="utf-8")
    return copy


def run_python(checkout: Path, *command: str) -> str:
    """What a Python without our hook prints that has the checkout."""
    env = {"PYTHONPATH": str(checkout), "ROCM_AUTOPATCH": "off"}
    command = (sys.executable, *command)
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestNewRow:
    def test_all_have_it(self, checkout: Path) -> None:
        seen = json.loads(run_python(checkout, str(LOOK), "triton.dense_indexing"))
        assert seen["file"] == str(checkout / "rocm_autopatch" / "switches.py")
        about = "Indices have the shape of the block."
        assert ["triton.dense_indexing=true", about, True] in seen["tune"]
        pin = {"triton.dense_indexing": {"pin": True, "insist": True}}
        assert seen["prove"] == {"extends": ["safe"], "config": {"torch._inductor.config": pin}}
        assert seen["battery"] == "dense_indexing"
        assert seen["evidence"] == "Compiles with dense indices work."
        by = "INDUCTOR_DENSE_INDEXING"
        off = f"Off, as in torch itself. Indices take more registers. {by}=1 turns it on."
        gains = "On this machine, it was proven to work and to gain 3 % or more."
        assert seen["policies"] == {
            "safe": [[False, "", "Off, as in torch itself. Nobody asked for it."]],
            "performance": [[False, by, off], [True, by, gains]],
        }
        assert seen["watchdog"] == [["triton.dense_indexing", ""]]

    def test_the_pages_have_it(self, checkout: Path) -> None:
        docs = checkout / "docs"
        assert "\n- `triton.dense_indexing=true`: " in (docs / "switches.md").read_text()
        row = "\n- `dense_indexing`: Compiles with dense indices work\n"
        assert row in (docs / "evidence.md").read_text()
        assert "\n| `dense_indexing` | ? | ? | " in (docs / "measurements.md").read_text()
        schema = json.loads((docs / "evidence.schema.json").read_text())
        assert "dense_indexing" in schema["properties"]["subjects"]["properties"]
        for name in ("policy", "images"):
            assert '"dense_indexing"' in (docs / f"{name}.schema.json").read_text()

    def test_the_policies_are_right(self, checkout: Path) -> None:
        for name in ("safe", "performance"):
            run_python(checkout, "-m", "rocm_autopatch", "check", f"policies/{name}.yaml")

    def test_only_these_files_changed(self, checkout: Path) -> None:
        """CONTRIBUTING.md has the same list."""
        changed = {
            str(file.relative_to(checkout))
            for folder in FOLDERS
            for file in (checkout / folder).rglob("*")
            if file.is_file()
            and file.suffix != ".pyc"
            and (ROOT / file.relative_to(checkout)).read_bytes() != file.read_bytes()
        }
        schemas = (f"docs/{name}.schema.json" for name in ("policy", "images", "evidence"))
        made = {"docs/measurements.md", "docs/variables.md", *schemas, *switch_parts.PARTS}
        assert changed == {"rocm_autopatch/switches.py", *made}
        page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        section = page.partition("## Add a switch\n")[2].partition("\n## ")[0]
        for name in changed:
            schema = re.sub(r"/\w+(?=\.schema)", "/{policy,images,evidence}", name)
            assert f"`{schema}`" in section, name


def test_no_start_loads_it(python: Interpreter, tmp_path: Path) -> None:
    """Not even one that reads a policy, which may ask for evidence by the name of a switch."""
    policy = tmp_path / "team.yaml"
    policy.write_text("version: 1\nextends: performance\n")
    policy.chmod(0o644)
    code = "import sys; print('rocm_autopatch.policy' in sys.modules, *sorted("
    code += "name for name in sys.modules if name.startswith('rocm_autopatch.switches')))"
    env = {"ROCM_AUTOPATCH_POLICY": str(policy)}
    done = python.run("-c", code, env=env)
    assert (done.stdout, done.stderr) == ("True\n", "")
