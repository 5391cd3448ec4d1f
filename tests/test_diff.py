"""rocm-autopatch diff: whatever makes two digests differ is named, from files and from pipes."""

from __future__ import annotations

import copy
import itertools
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from rocm_autopatch import _RECORD, patches
from rocm_autopatch.cli import diff
from rocm_autopatch.patches.ranks import content
from rocm_autopatch.plan import RANGE_FIELDS
from rocm_autopatch.policy import load, lower
from rocm_autopatch.record import metrics
from rocm_autopatch.support import masking
from rocm_autopatch.support.user_error import UserError
from tests.conftest import Interpreter, label_torch, make_hooked
from tests.messages import Golden
from tests.running import run_command

FACTS = {"torch": ("2.13.0", ""), "hip": ("7.0.1", ""), "accelerator": ("rocm", "")}
SHAPE: dict[str, Any] = {
    **{name: [] for name in ("env", "policies", "errors", "notes", "patches")},
    **{name: {} for name in ("facts", "caches")},
}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    reading = load.Reading()
    stack = reading.layers(reading.policy(load.BUILTIN / "performance.yaml"))
    lowered: dict[str, Any] = dict(lower.lower(stack))
    return lowered


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]) -> dict[str, Any]:
    """What a digest is made of, to be changed."""
    for name in os.environ:
        if content.is_compared(name):
            monkeypatch.delenv(name)
    for name, value in (("plan", copy.copy(plan)), ("facts", dict(FACTS)), ("keep", ())):
        monkeypatch.setitem(_RECORD, name, value)
    monkeypatch.setitem(_RECORD, "observe", False)
    return cast("dict[str, Any]", _RECORD)


def report(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The parts of a report that are about the digest, as ``status --json`` prints them."""
    parts = content.digest_parts()
    made = {**SHAPE, "policies": ["safe"], "digest_parts": parts}
    made["digest"] = content.digest(content.digest_content())
    printed = masking.Secrets(os.environ if environ is None else environ).data(made)
    return dict(json.loads(json.dumps(printed)))


def named(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The parts of the digest that differ, of reports with different digests."""
    found = metrics.compare_reports(a, b)
    assert a["digest"] != b["digest"]
    assert not found.same
    assert found.notes == ()
    return [one.part for one in found.differences if one.part]


class TestEachIngredient:
    def test_facts(self, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        before = report()
        assert before["digest_parts"]["facts"].keys() == {*content.FACTS, "python"}
        for name in content.FACTS:
            record["facts"][name] = ("9.9", "")
            assert named(before, report()) == [f"facts.{name}"]
            del record["facts"][name]
            assert named(report(), before) == [f"facts.{name}"]
            record["facts"] = dict(FACTS)
        monkeypatch.setattr(platform, "python_version", lambda: "3.99")
        assert named(before, report()) == ["facts.python"]

    def test_the_policy_and_how_the_user_limits_it(self, record: dict[str, Any]) -> None:
        before = report()
        for change, part in (
            ({"keep": ("freezing",)}, "ROCM_AUTOPATCH_KEEP"),
            ({"observe": True}, "ROCM_AUTOPATCH"),
            ({"plan": {**record["plan"], "layers": ("safe",)}}, "policy"),
        ):
            was = {name: record[name] for name in change}
            record.update(change)
            assert named(before, report()) == [f"policy.{part}"]
            record.update(was)
        assert report() == before

    def test_every_entry_of_every_patch(self, record: dict[str, Any]) -> None:
        before = report()
        tried = 0
        whole = record["plan"]["patches"]
        for number, (name, target, entries) in enumerate(whole):
            patch = patches.load(name)
            if not patch.CHANGES_CODE:
                continue
            for place, entry in enumerate(entries):
                fields = dict(zip((*patch.FIELDS, *RANGE_FIELDS), entry))
                if fields["since"] > (2, 13) or (fields["until"] and fields["until"] <= (2, 13)):
                    continue
                label = f"{target}.{fields['name']}" if name == "config" else fields["name"]
                for field in patch.FIELDS:
                    if field in content._UNTOLD:
                        continue
                    changed = tuple({**fields, field: "another"}.values())
                    other = (*entries[:place], changed, *entries[place + 1 :])
                    rest = (*whole[:number], (name, target, other), *whole[number + 1 :])
                    record["plan"]["patches"] = rest
                    assert named(before, report()) == [f"config.{label}"]
                    tried += 1
        assert tried > 20
        record["plan"]["patches"] = whole
        assert report() == before

    def test_variables(self, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that compilers read, and those to which an entry gives way."""
        given_way = "TORCHINDUCTOR_EPILOGUE_FUSION"
        for name in (given_way, "MIOPEN_FIND_MODE", "TRITON_ANYTHING", "HIPBLASLT_X", "AITER_Y"):
            before = report()
            monkeypatch.setenv(name, "1")
            one = report()
            assert named(before, one) == [f"variables.{name}"]
            monkeypatch.setenv(name, "x" * 300)
            assert named(one, report()) == [f"variables.{name}"]


NAMES = some.sampled_from(
    ["MIOPEN_A", "MIOPEN_B", "TRITON_X_TOKEN", "AITER_URL", "DB_PASSWORD", "HF_TOKEN", "OTHER"]
)
VALUES = some.sampled_from(
    [
        *("1", "sesame1", "open sesame1 now", "hf_abcdefghijklmnopqrst", "--token sesame1 x"),
        *("redis://u:hunter2@h/0", "x" * 195 + "sesame1", "x" * 190 + " API_KEY=abcdefgh", "é"),
        *("aB3" * 80, "x" * 180 + "aB3dE5gH7" * 9, "token=sesame1", "(masked)", "sesame2"),
    ]
)


@given(some.dictionaries(NAMES, VALUES), some.dictionaries(NAMES, VALUES))
@settings(max_examples=300)
def test_no_two_digests_differ_without_a_part_that_does(
    one: dict[str, str], other: dict[str, str]
) -> None:
    """Also where variables have secrets, which the report masks wherever they stand."""
    reports = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(_RECORD, "plan", None)
        for environ in (one, other):
            patched.setattr(os, "environ", environ)
            reports.append(report(environ))
    for made in reports:
        assert content.digest(content.join_parts(made["digest_parts"])) == made["digest"]
    found = metrics.compare_reports(*reports)
    assert found.same == (reports[0]["digest"] == reports[1]["digest"])
    assert found.same == (not any(one.part for one in found.differences))


def status(python: Interpreter, file: Path, *options: str, **env: str) -> Path:
    done = run_command(python, "status", "--json", "--no-torch", *options, env=env)
    file.write_text(done.stdout)
    return file


def undated(text: str) -> str:
    """*text* without digests, which depend on the Python."""
    return re.sub("[0-9a-f]{16}", "DIGEST", text)


def compare(python: Interpreter, *words: str | Path) -> dict[str, Any]:
    done = run_command(python, "diff", "--json", *words)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["same"] else 1)
    return found


class TestTwoMachines:
    def test_what_differs(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        a = status(python311, tmp_path / "a.json", TORCHINDUCTOR_MAX_AUTOTUNE="1")
        b = status(
            python311,
            tmp_path / "b.json",
            "--image",
            "rocm/x:1",
            MIOPEN_FIND_MODE="1",
            ROCM_AUTOPATCH_KEEP="freezing",
        )
        for file in (a, b):
            file.write_text(json.dumps({**json.loads(file.read_text()), "node": file.stem}))
        done = run_command(python311, "diff", "a.json", "b.json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, "")
        assert all(len(line) < 80 for line in done.stdout.splitlines())
        golden(undated(done.stdout))
        found = compare(python311, a, b)
        parts = [one["part"] for one in found["differences"] if one["part"]]
        assert parts == ["policy.ROCM_AUTOPATCH_KEEP", "variables.MIOPEN_FIND_MODE"]
        outside = {(one["section"], one["name"]) for one in found["differences"] if not one["part"]}
        assert outside >= {
            ("image", "image"),
            ("variables", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        }
        c = status(python311, tmp_path / "c.json", ROCM_AUTOPATCH_CACHE=str(tmp_path / "caches"))
        found = compare(python311, status(python311, a), c)
        assert found["same"]
        names = {one["name"] for one in found["differences"] if one["section"] == "caches"}
        assert names >= {"use", "root", "place", "of.gpu"}

    def test_equal(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        """By pipes: two on stdin, one file and stdin, and a shell's own."""
        file = status(python311, tmp_path / "a.json")
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "node": "n01"}))
        done = run_command(python311, "diff", "a.json", "a.json", cwd=tmp_path)
        golden(undated(done.stdout))
        text = file.read_text()
        for words, stdin in ((("-", "-"), text + text), ((file, "-"), text), (("-", file), text)):
            done = run_command(python311, "diff", *words, input=stdin)
            assert (done.returncode, done.stderr) == (0, "")
            assert "The digests are equal" in done.stdout
        ours = f"{python311.path} -m rocm_autopatch"
        script = (
            f"{ours} diff <({ours} status --json --no-torch) "
            f"<(MIOPEN_FIND_MODE=1 {ours} status --json --no-torch); echo $?;"
            f"({ours} status --json --no-torch; {ours} status --json --no-torch) | {ours} diff - -"
        )
        env = python311.environment({"ROCM_AUTOPATCH_LOG": "quiet"})
        told = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path
        )
        assert (told.returncode, told.stderr) == (0, "")
        assert "MIOPEN_FIND_MODE" in told.stdout
        assert "\n1\nA: stdin" in told.stdout
        assert told.stdout.endswith("The digests are equal: programs compile alike in both.\n")

    def test_another_torch_and_another_policy(
        self, python311: Interpreter, wheel: Path, tmp_path: Path
    ) -> None:
        other = make_hooked(tmp_path / "venv", wheel)
        label_torch(other.site_packages, "2.12.0+rocm7.1", "7.1.1")
        policy = tmp_path / "team.yaml"
        policy.write_text(
            "version: 1\nname: team\nconfig: {torch._inductor.config: {freezing: {pin: true}}}\n"
        )
        a = status(python311, tmp_path / "a.json")
        b = status(other, tmp_path / "b.json", ROCM_AUTOPATCH_POLICY=str(policy))
        found = compare(python311, a, b)
        parts = {one["part"] for one in found["differences"] if one["part"]}
        assert parts >= {
            *("facts.torch", "facts.hip", "policy.policy"),
            "config.torch._inductor.config.freezing",
        }

    def test_no_policy_there(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        a = status(python311, tmp_path / "a.json")
        b = status(python311, tmp_path / "b.json", ROCM_AUTOPATCH="off", MIOPEN_FIND_MODE="1")
        for file in (a, b):
            file.write_text(json.dumps({**json.loads(file.read_text()), "node": "n"}))
        done = run_command(python311, "diff", "a.json", "b.json", cwd=tmp_path)
        assert done.returncode == 1
        golden(
            re.sub("(?<=[AB]: )(3[.]|[a-z]+[0-9]+)[^ ,]*$", "X", undated(done.stdout), flags=re.M)
        )
        both_off = compare(python311, b, b)
        assert both_off["same"]

    def test_earlier_releases(self, python311: Interpreter, tmp_path: Path) -> None:
        """They do not say what their digest is made of."""
        a = status(python311, tmp_path / "a.json")
        found = json.loads(a.read_text())
        for name in ("digest_parts", "node"):
            del found[name]
        b = tmp_path / "b.json"
        b.write_text(json.dumps({**found, "digest": "0" * 16}))
        compared = compare(python311, a, b)
        assert not compared["same"]
        assert "B is a report of an earlier release" in compared["notes"][0]

    def test_a_report_that_was_changed(self, python311: Interpreter, tmp_path: Path) -> None:
        a = status(python311, tmp_path / "a.json")
        b = tmp_path / "b.json"
        b.write_text(json.dumps({**json.loads(a.read_text()), "digest": "0" * 16}))
        assert compare(python311, a, b)["notes"] == [
            "B does not show all that its digest is made of: it is of another release, or was "
            "changed after it was made",
            "no part of the digest is seen to differ",
        ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100000, "is no JSON"),
        ("[]", "it is no JSON object"),
        ("{}", "it has no digest"),
        ('{"node": "a", "digest": "0"}', "it is of status --line"),
        (json.dumps({**SHAPE, "digest": "0", "env": [1]}), "its rows have no names"),
        (json.dumps({**SHAPE, "digest": "0", "facts": {"a": 1}}), "its facts are no objects"),
        (json.dumps({**SHAPE, "digest": "0", "digest_parts": [1]}), "its digest_parts are"),
        ("\x00\xff", "is no JSON"),
    ],
)
def test_what_is_no_report(python311: Interpreter, tmp_path: Path, text: str, said: str) -> None:
    good = status(python311, tmp_path / "good.json")
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    for words, stdin in (((good, bad), ""), ((bad, good), ""), ((good, "-"), text)):
        done = run_command(python311, "diff", *words, input=stdin)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert said in line or "stdin has 0 reports" in line


def test_what_is_wrong_on_stdin(python311: Interpreter, tmp_path: Path) -> None:
    whole = json.loads(run_command(python311, "status", "--json").stdout)
    (tmp_path / "a").write_text(json.dumps(whole))
    changed = json.dumps({**whole, "evidence": 1})
    done = run_command(python311, "diff", tmp_path / "a", "-", input=changed)
    assert done.returncode == 2
    assert f"{tmp_path}/a and stdin can't be compared, a part has another shape: " in done.stderr


@pytest.mark.parametrize("wrong", [None, 1, True, "x", [], {}, [1], [None], [{}], {"a": 1}])
def test_a_part_with_another_shape(python311: Interpreter, tmp_path: Path, wrong: Any) -> None:
    """It is compared, or wrong usage: never an error of ours, nor status 1 for equal digests."""
    whole = json.loads(run_command(python311, "status", "--json").stdout)

    def statuses_of(changed: Any) -> Iterator[int]:
        for name, report in (("a", whole), ("b", changed)):
            (tmp_path / name).write_text(json.dumps(report))
        for a, b in itertools.product("ab", repeat=2):
            files = diff.DiffArguments(str(tmp_path / a), str(tmp_path / b))
            try:
                done = diff.compare_files(files)
            except UserError as error:
                yield error.status
            else:
                assert [*done.lines()]
                yield done.status

    for name in whole:
        found = {*statuses_of({**whole, name: wrong})}
        assert found <= ({0, 1, 2} if name == "digest" else {0, 2}), name
    for name, part in whole.items():
        if isinstance(part, dict):
            for key in part:
                assert {*statuses_of({**whole, name: {**part, key: wrong}})} <= {0, 2}, (name, key)


def test_what_is_not_there(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    good = status(python311, tmp_path / "good.json")
    done = run_command(python311, "diff", good, tmp_path / "missing.json")
    assert (done.returncode, done.stdout) == (2, "")
    golden(done.stderr)
    done = run_command(python311, "diff", "-", "-", input=good.read_text())
    assert (done.returncode, done.stdout) == (2, "")
    golden(done.stderr, "one of two")
    done = run_command(python311, "diff", good)
    assert done.returncode == 2


def test_secrets_of_a_program_s_own_report(python311: Interpreter, tmp_path: Path) -> None:
    """``rocm_autopatch.status()`` masks nothing outside the digest."""
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nextends: safe\nenv:\n  VLLM_API_KEY: {delete: true}\n"
        "  CACHE_URL: {delete: true}\n"
    )
    code = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
    files = []
    for number, secret in enumerate(("sesame-1", "sesame-2")):
        env = {
            "ROCM_AUTOPATCH_POLICY": str(policy),
            "VLLM_API_KEY": secret,
            "CACHE_URL": f"redis://u:{secret}@h/{number}",
            "MIOPEN_X": secret,
        }
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(python311.value(code, env=env))
    for words in ((), ("--json",)):
        done = run_command(python311, "diff", *files, *words)
        assert done.returncode == 0
        assert masking.MASK in done.stdout
        assert "sesame" not in done.stdout


class TestExplain:
    def test_a_variable_of_the_digest(self, python311: Interpreter, golden: Golden) -> None:
        name = "MIOPEN_FIND_MODE"
        env = {name: "1"}
        done = run_command(python311, "explain", "--no-torch", name, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        golden(done.stdout)
        done = run_command(python311, "explain", "--no-torch", "--json", name, env=env)
        assert json.loads(done.stdout) == [{"name": name, "value": "1", "in_digest": "1"}]

    def test_one_that_is_not_set(self, python311: Interpreter, golden: Golden) -> None:
        done = run_command(python311, "explain", "--no-torch", "MIOPEN_FIND_MODE")
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)

    def test_an_entry(self, python311: Interpreter) -> None:
        done = run_command(python311, "explain", "--no-torch", "triton.cudagraphs")
        assert "\n  in the digest: pin False\n" in done.stdout
        env = {
            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
            "ROCM_AUTOPATCH_KEEP": "TORCHINDUCTOR_MAX_AUTOTUNE",
        }
        done = run_command(
            python311, "explain", "--no-torch", "TORCHINDUCTOR_MAX_AUTOTUNE", env=env
        )
        assert "\n  in the digest: 1\n" in done.stdout
