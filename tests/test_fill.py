"""``cache fill``: the place of a GPU that is not here, and what is said of it.

The tests with a program that only writes files say nothing of compilers: test_fill_amd.py does.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch.caches import CacheRefused, fill, fill_targets, image_layout, places
from rocm_autopatch.cli.cache import fill as fill_command
from rocm_autopatch.compiling_gpu import GPUS, build, connection
from rocm_autopatch.startup import caches, kfd
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden
from tests.programs import program_file
from tests.running import QUIET, last_said, run_mounted
from tests.test_cache_command import FIELDS, FILES, a_here, a_place, quiet

ANSWERS = yaml.safe_load((ROOT / "tests/data/gpu_answers.yaml").read_text())
# As the driver of each GPU has it: its version, SIMDs, SIMDs of a unit, and PCI device id.
NODES = {
    "mi300x": (90402, 1216, 4, 29857),
    "mi308x": (90402, 320, 4, 29858),
    "rx9070xt": (120001, 128, 2, 30032),
}


def nodes_of(gpu: str, directory: Path) -> Path:
    """The driver's files of a machine with a CPU and this GPU, as what stands for /sys/class."""
    version, simds, each, device = NODES[gpu]
    nodes = directory / f"class-{gpu}" / kfd.NODES.removeprefix("sys/class/")
    texts = (
        "simd_count 0\nsimd_per_cu 0\ngfx_target_version 0\n",
        f"simd_count {simds}\nsimd_per_cu {each}\ngfx_target_version {version}\n"
        f"device_id {device}\n",
    )
    for number, text in enumerate(texts):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(text)
    return directory / f"class-{gpu}"


def at_home(directory: Path) -> dict[str, str]:
    return {"HOME": str(directory), "XDG_CACHE_HOME": ""}


def on_machine(
    gpu: str,
    directory: Path,
    python: Interpreter,
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    layer: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run our Python where the driver has the files of this GPU, with a read-only layer."""
    planted = directory / f"class-{gpu}"
    if not planted.exists():
        nodes_of(gpu, directory)
    script = f"mount -t tmpfs none /sys/class && cp -r {planted}/. /sys/class"
    if layer:
        above = Path(caches.LAYER).parent
        script += f" && mount -t tmpfs none {above.parent} && mkdir {above}"
        script += f" && cp -r {layer} {caches.LAYER}"
    given = {**at_home(directory), "ROCM_AUTOPATCH_CACHE": "on", **(env or {})}
    return run_mounted(script, python.path, *words, env=given)


SHOW = """
import json, rocm_autopatch
report = rocm_autopatch.status()
print(json.dumps([report["caches"]["place"], report["policies"]]))
"""


class TestTargets:
    def test_each_that_is_known(self) -> None:
        for name, facts in GPUS.items():
            target = fill_targets.target_named(name)
            assert target.facts == facts
            if facts.vendor == "amd":
                assert (target.units % 2, facts.wavefront) in ((0, 32), (0, 64)), name
                assert facts.lds >= 64 * 1024
        units = {name: fill_targets.target_named(name).driver_words for name in GPUS}
        expected = {
            "mi300x": "gfx942:304",
            "mi308x": "gfx942:80",
            "mi300a": "gfx942:228",
            "mi355x": "gfx950:256",
            "mi250x": "gfx90a:110",
            "mi210": "gfx90a:104",
            "rx7900xtx": "gfx1100:96",
            "w7900": "gfx1100:96",
            "rx9070xt": "gfx1201:64",
            "h100": "",
        }
        assert {name: units[name] for name in expected} == expected

    @pytest.mark.parametrize(
        ("spelled", "name"),
        [
            ("MI300X", "mi300x"),
            ("AMD Instinct MI355X", "mi355x"),
            ("RX 7900 XTX", "rx7900xtx"),
            ("AMD Radeon RX-9070-XT", "rx9070xt"),
            ("Radeon PRO W7900", "w7900"),
        ],
    )
    def test_spellings(self, spelled: str, name: str) -> None:
        assert fill_targets.target_named(spelled).facts == GPUS[name]

    @pytest.mark.parametrize("name", ["mi999", "", "gfx942", "amd"])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(CacheRefused, match=r"mi300x, mi355x, .*facts --gpu"):
            fill_targets.target_named(name)

    def test_a_file(self, tmp_path: Path) -> None:
        """It says more than a name: partitions of a GPU, and its PCI device id."""
        part = replace(GPUS["mi300x"], processors=38)
        made = fill_targets.make_target(part, 38, 29857)
        file = tmp_path / "cpx.json"
        file.write_text(made.as_json())
        assert fill_targets.target_named(str(file)) == made
        assert made.driver_words == "gfx942:38:29857"

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"target": "gfx942; x"}, "no architecture"),
            ({"compute_units": -1}, "not both numbers"),
            ({"compute_units": "304"}, "not both numbers"),
            ({"device_id": 2**40}, "not both numbers"),
            ({"memory": "192"}, "memory"),
            ({"vendor": "intel"}, "vendor"),
            ({"processors": 0}, "processors: no GPU has 0"),
            ({"processors": 38}, "of two GPUs: 38 make 38 units, and it has 304"),
            ({"compute_units": 80}, "of two GPUs: 304 make 304 units, and it has 80"),
            ({"lds_of_block": -1}, "lds_of_block: no GPU has -1"),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path: Path, change: dict[str, Any], why: str) -> None:
        file = tmp_path / "facts.json"
        said = json.loads(fill_targets.target_named("mi300x").as_json())
        file.write_text(json.dumps({**said, **change}))
        with pytest.raises(CacheRefused, match=why):
            fill_targets.target_named(str(file))

    def test_a_file_with_a_part(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"vendor": "amd", "name": "x", "major": 9}')
        with pytest.raises(CacheRefused, match="these are missing: target, minor, memory, "):
            fill_targets.target_named(str(tmp_path / "a.json"))

    def test_no_file(self, tmp_path: Path) -> None:
        for text in ("", "[]", "[" * 100_000):
            (tmp_path / "a.json").write_text(text)
            with pytest.raises(CacheRefused, match="has no facts"):
                fill_targets.target_named(str(tmp_path / "a.json"))
        with pytest.raises(CacheRefused, match="No such file"):
            fill_targets.target_named(str(tmp_path / "b.json"))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one['known']}-{one['hip']}")
def test_known_gpus_are_as_drivers_answered(answer: dict[str, Any]) -> None:
    facts = asdict(fill_targets.target_named(answer["known"], answer["hip"]).facts)
    facts["lds_of_block"] = facts["lds_of_block"] or facts["lds"]
    other = ("name", "memory") if answer.get("virtual") else ()
    expected = {name: value for name, value in answer["facts"].items() if name not in other}
    assert {name: facts[name] for name in expected} == expected


class TestPlace:
    @pytest.mark.parametrize("field", [*FIELDS])
    def test_each_field_names_another(self, field: str) -> None:
        """Torch and its label, Triton, HIP, the GPU, Python, and what the policy comes to."""
        other = caches.name({**FIELDS, field: FIELDS[field] + "0"})
        assert other != caches.name(FIELDS)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("gfx942:304", [("gfx942", 0, 304)]),
            ("gfx942:304:29857", [("gfx942", 29857, 304)]),
            ("gfx942", [("gfx942", 0, 0)]),
            *(
                (value, [])
                for value in ("", "304", "gfx9/2:1", "gfx942:-1", "gfx942:²", "gfx942:x")
            ),
            ("gfx942:" + "9" * 40, []),
        ],
    )
    def test_described(
        self, value: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("ROCM_AUTOPATCH_GPU", value)
        monkeypatch.setattr(kfd, "NODES", "no/such/directory")
        assert kfd.gpus() == expected
        # Of another root, and of an environment that a program has put in its place, nothing.
        assert kfd.gpus(str(tmp_path)) == []
        monkeypatch.setattr(os, "environ", {})
        assert kfd.gpus() == []

    def test_no_gpu_is_overruled(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("ROCM_AUTOPATCH_GPU", "gfx942:304")
        planted = nodes_of("mi308x", tmp_path)
        monkeypatch.setattr(kfd, "NODES", str(planted / "kfd/kfd/topology/nodes"))
        assert kfd.gpus() == [("gfx942", 29858, 80)]

    @pytest.mark.parametrize("gpu", [*NODES])
    def test_it_is_that_of_a_start_there(
        self, python311: Interpreter, tmp_path: Path, gpu: str
    ) -> None:
        target = fill_targets.target_named(gpu)
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nextends: safe\nenv: {TEAM: {default: a}}\n")
        policy.chmod(0o644)
        for env in ({}, {"ROCM_AUTOPATCH_POLICY": str(policy)}):
            there = on_machine(gpu, tmp_path, python311, "-c", SHOW, env=env)
            given = {**at_home(tmp_path), "ROCM_AUTOPATCH_CACHE": "on", **env}
            here = python311.run(
                "-c", SHOW, env={**given, "ROCM_AUTOPATCH_GPU": target.driver_words}
            )
            assert json.loads(there.stdout) == json.loads(here.stdout)
            assert f"_{target.facts.gfx}-{target.units}_" in there.stdout
            # Nothing else tells the GPU: this is what it is without.
            assert "_no-gpu_" in python311.run("-c", SHOW, env=given).stdout


# Our command with a stand-in that is nothing: what a program writes counts as compiled.
COMMAND = """
import sys
from rocm_autopatch import compiling_gpu

def prepare_stand_in(python, facts, directory):
    return {"NAME": facts.name}

compiling_gpu.prepare_stand_in = prepare_stand_in
from rocm_autopatch.cli import main
sys.exit(main(sys.argv[1:]))
"""
# Two graphs and three kernels, where Inductor and vLLM have them.
PROGRAM = program_file("fill/as_frameworks_do.py").read_text()


def filled(
    python: Interpreter, home: Path, code: str, *options: str, target: str = "mi300x", **env: str
) -> tuple[int, str, str]:
    given = {**at_home(home), "ROCM_AUTOPATCH_LOG": "quiet", **env}
    program = PROGRAM + textwrap.dedent(code)
    words = ("cache", "fill", "--for", target, *options, "--", str(python.path), "-c", program)
    done = python.run("-c", COMMAND, *words, env=given, check=False)
    err = re.sub(r"in \d[^\s;]* ?m?s(?=[;:\n])", "in <TIME>", done.stderr)
    return done.returncode, done.stdout, err


def read_member(tar: tarfile.TarFile, name: str) -> Any:
    stream = tar.extractfile(name)
    assert stream
    return json.load(stream)


def place_in(home: Path) -> Path:
    (place,) = (home / ".cache/rocm-autopatch").glob("torch-*")
    return place


class TestFill:
    def test_what_is_said(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        status, out, err = filled(python311, tmp_path, "both(); print(os.environ['NAME'])")
        place = place_in(tmp_path)
        assert (status, out) == (0, "AMD Instinct MI300X\n")
        golden(err, "first", PLACE=place)
        assert "_gfx942-304_" in place.name
        (row,) = places.warm_runs(place)
        assert (row["for"], row["status"]) == ("AMD Instinct MI300X", 0)
        assert row["bytes"] >= 800
        assert places.filled_for(place)["compute_units"] == 304
        _, _, err = filled(python311, tmp_path, "both(); sys.exit(3)")
        golden(err, "again, and it fails", PLACE=place)

    def test_status_of_the_command(self, python311: Interpreter, tmp_path: Path) -> None:
        assert filled(python311, tmp_path, "both(); sys.exit(3)")[0] == 3
        assert filled(python311, tmp_path, "both(); os.kill(os.getpid(), 9)")[0] == 137

    def test_nothing_compiled(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        for code, expected in (("pass", 1), ("sys.exit(5)", 5)):
            status, _, err = filled(python311, tmp_path, code)
            assert status == expected
            golden(err, code, PLACE=place_in(tmp_path))

    def test_limits(self, python311: Interpreter, tmp_path: Path) -> None:
        """What was filled before is kept, and the program can end as by Ctrl-C."""
        code = """
        graph("fabc")
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            both()
            sys.exit(7)
        """
        for limit in ("--seconds=2", "--graphs=1"):
            began = time.monotonic()
            status, _, err = filled(python311, tmp_path / limit, code, limit)
            assert time.monotonic() - began < 200
            assert status == 0
            err = " ".join(err.split())
            assert f"ended by {limit.replace('=', ' ')}" in err
            assert "2 graphs and 3 kernels added" in err
        status, _, err = filled(python311, tmp_path / "none", "time.sleep(60)", "--seconds=1")
        assert (status, "before --seconds 1 ended it" in " ".join(err.split())) == (1, True)

    def test_limits_end_what_it_started(self, python311: Interpreter, tmp_path: Path) -> None:
        """A shell does not hand on Ctrl-C, and a job in its background does not hear it."""
        file = tmp_path / "pid"
        code = f"""
        import subprocess
        both()
        waits = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", waits], stderr=2, stdout=2)
        open({str(file)!r}, "w").write(str(child.pid))
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            os._exit(0)
        """
        began = time.monotonic()
        assert filled(python311, tmp_path, code, "--seconds=2")[0] == 0
        assert time.monotonic() - began < 200
        state = Path("/proc", file.read_text(), "stat")
        assert not state.exists() or ") Z " in state.read_text()

    def test_one_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(fill, "_GRACE_S", 0.0)
        limits = fill.FillLimits(tmp_path, fill.compiled_parts(tmp_path), 0.0, None)
        sent: list[int] = []

        class Child:
            pid = 2**30
            send_signal = staticmethod(sent.append)

        for _ in range(5):
            limits.end_when_reached(Child())  # type: ignore[arg-type]
        assert sent == [2, 15, 9]

    @pytest.mark.parametrize("option", ["--graphs=0", "--graphs=x", "--graphs=²", "--seconds=0"])
    def test_wrong_limits(self, python311: Interpreter, tmp_path: Path, option: str) -> None:
        status, _, err = filled(python311, tmp_path, "both()", option)
        assert status == 2
        assert option.partition("=")[0] in err

    def test_can_not(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        for env in (
            {"ROCM_AUTOPATCH": "off"},
            {"ROCM_AUTOPATCH_CACHE": "/proc/x"},
            {"ROCM_AUTOPATCH_ASSUME": "accelerator=cuda"},
        ):
            status, _, err = filled(python311, tmp_path, "both()", **env)
            assert status == 1
            golden(last_said(err), next(iter(env)))

    def test_a_program_that_fills_nothing(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        """It is refused before anything is built."""
        tool = tmp_path / "tool"
        tool.write_text(f"#!{sys.executable}\n")
        tool.chmod(0o755)
        for name, words, expected in (
            ("missing", ["no-such-program", "x"], 127),
            ("another Python", [sys.executable, "-c", "pass"], 1),
            ("a script of another Python", [str(tool)], 1),
        ):
            done = python311.run(
                *("-c", COMMAND.replace("return {", "raise SystemExit('built')\n    return {")),
                *("cache", "fill", "--for", "mi300x", "--", *words),
                env={**at_home(tmp_path), **QUIET},
                check=False,
            )
            assert done.returncode == expected
            golden(last_said(done.stderr), name, PYTHON=sys.executable, THEIRS=sys.prefix)

    def test_another_vendors_torch(self, python311: Interpreter, tmp_path: Path) -> None:
        """Nothing is noted in the place of starts without a GPU."""
        words = ("cache", "fill", "--for", "h100", "--", "true")
        command = COMMAND.replace(
            'return {"NAME": facts.name}',
            "from rocm_autopatch.support import user_error\n    raise user_error.UserError('no')",
        )
        given = {**at_home(tmp_path), **QUIET}
        done = python311.run("-c", command, *words, env=given, check=False)
        assert "cache fill: no" in done.stderr
        assert places.filled_for(place_in(tmp_path)) == {}

    def test_evidence(self, python311: Interpreter, tmp_path: Path) -> None:
        """It is for a machine, so a start there may go elsewhere."""
        site = tmp_path / "site"
        (site / "evidence").mkdir(parents=True)
        for text in ("", "There is evidence here"):
            err = filled(python311, tmp_path, "both()", ROCM_AUTOPATCH_SITE=str(site))[2]
            assert ("There is evidence here" in err) == bool(text)
            (site / "evidence" / "a.json").write_text("{}")

    @pytest.mark.parametrize(
        ("environ", "text"),
        [
            (
                {"TRITON_CACHE_DIR": "/x"},
                "to the place: unset TRITON_CACHE_DIR=/x, which",
            ),
            ({}, "none came to the place"),
        ],
    )
    def test_graphs_that_went_elsewhere(
        self, tmp_path: Path, environ: dict[str, str], text: str
    ) -> None:
        """An image may have set where Inductor keeps its graphs."""
        target = fill_targets.target_named("mi300x")
        parts = fill.CompiledParts(frozenset(), frozenset())

        def run(misses: int, added: fill.CompiledParts) -> fill_command._FillRun:
            row: dict[str, object] = {"fx_graph_cache": {"hit": 0, "miss": misses, "bypass": 0}}
            here = a_here(tmp_path / "root")
            told = fill.FillProcesses()
            return fill_command._FillRun(target, here, 0, "", 1.0, added, told, row)

        (line,) = fill_command._went_elsewhere(run(1, parts), environ)
        assert text in line
        assert fill_command._went_elsewhere(run(0, parts), environ) == []
        one = fill.CompiledParts(frozenset({"fabc"}), frozenset())
        assert fill_command._went_elsewhere(run(1, one), environ) == []

    @pytest.mark.parametrize("gpu", ["mi300x", "mi308x"])
    def test_where_a_gpu_is(
        self, python311: Interpreter, tmp_path: Path, golden: Golden, gpu: str
    ) -> None:
        words = ("cache", "fill", "--for", "mi300x", "--", "true")
        done = on_machine(gpu, tmp_path, python311, "-m", "rocm_autopatch", *words)
        assert done.returncode == 1
        golden(last_said(done.stderr))

    def test_a_root_that_wants_no_misses(self, python311: Interpreter, tmp_path: Path) -> None:
        code = "both(); print(os.environ['ROCM_AUTOPATCH_CACHE'])"
        done = filled(python311, tmp_path, code, ROCM_AUTOPATCH_CACHE="require")
        assert done[:2] == (0, "on\n")


class TestPack:
    def test_to_a_machine(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        """It is taken where the GPU is, and refused by name where another one is."""
        home = tmp_path / "builder"
        assert filled(python311, home, "both()")[0] == 0
        file = tmp_path / "caches.tar.gz"
        given = {**at_home(home), "ROCM_AUTOPATCH_LOG": "quiet"}
        pack = ("-m", "rocm_autopatch", "cache", "pack", file)
        assert python311.run(*pack, env=given, check=False).returncode == 1
        python311.run(*pack, "--for", "MI300X", env=given)
        with tarfile.open(file) as tar:
            assert read_member(tar, "manifest.json")["gpu"]["compute_units"] == 304
        seed = ("-m", "rocm_autopatch", "cache", "seed", file)
        done = on_machine("mi308x", tmp_path, python311, *seed, env=QUIET)
        assert done.returncode == 1
        golden(last_said(done.stderr), "refused", FILE=file)
        done = on_machine("mi300x", tmp_path, python311, *seed, env=QUIET)
        assert (done.returncode, done.stderr) == (0, "")
        assert "it was filled without a GPU, for AMD Instinct MI300X" in done.stdout
        place = place_in(tmp_path)
        assert (place / "triton/A/k.hsaco").exists()
        assert places.filled_for(place)["name"] == "AMD Instinct MI300X"
        # And a start there uses it, but none on the other machine.
        there = on_machine("mi300x", tmp_path, python311, "-c", SHOW, env=QUIET)
        assert json.loads(there.stdout)[0] == str(place)
        other = on_machine("mi308x", tmp_path, python311, "-c", SHOW, env=QUIET)
        assert json.loads(other.stdout)[0] != str(place)

    @pytest.mark.parametrize("how", ["seed", "image"])
    def test_as_a_layer(self, python311: Interpreter, tmp_path: Path, how: str) -> None:
        """What the Dockerfile of docs/caches.md does, and what a mounted image does."""
        home, layer = tmp_path / "builder", tmp_path / "layer"
        assert filled(python311, home, "both()")[0] == 0
        given = {**at_home(home), "ROCM_AUTOPATCH_LOG": "quiet"}
        cache, file = ("-m", "rocm_autopatch", "cache"), tmp_path / "packed"
        oci = ["--oci"] if how == "image" else []
        python311.run(*cache, "pack", file, "--for", "mi300x", *oci, env=given)
        if oci:
            layer.mkdir()
            layer.chmod(0o755)
            with tarfile.open(file) as tar:
                (said,) = read_member(tar, "index.json")["manifests"]
                manifest = read_member(tar, "blobs/" + said["digest"].replace(":", "/"))
                blob = tar.extractfile("blobs/" + manifest["layers"][0]["digest"].replace(":", "/"))
                with tarfile.open(fileobj=blob) as inner:
                    inner.extractall(layer)
        else:
            python311.run(*cache, "seed", file, "--into", layer, env=given)
        there = on_machine("mi300x", tmp_path, python311, "-c", SHOW, layer=layer)
        assert "do not fit" not in there.stderr
        place = Path(json.loads(there.stdout)[0])
        assert (place / caches.LINKED).exists()
        assert os.readlink(place / "triton/A/k.hsaco").startswith(caches.LAYER)
        other = on_machine("mi308x", tmp_path, python311, "-c", SHOW, layer=layer)
        assert re.search(r"do not fit: .*gfx942-304", other.stderr)
        place = Path(json.loads(other.stdout)[0])
        assert not (place / caches.LINKED).exists()
        assert not [*place.rglob("*.hsaco")]

    def test_what_nobody_has_filled(self, python311: Interpreter, tmp_path: Path) -> None:
        words = ("cache", "pack", str(tmp_path / "file"), "--for", "mi355x")
        env = {"HOME": str(tmp_path)}
        done = python311.run("-m", "rocm_autopatch", *words, env=env, check=False)
        assert done.returncode == 1
        assert "; cache fill --for mi355x -- COMMAND makes one\n" in done.stderr
        done = python311.run("-m", "rocm_autopatch", *words, "--place", "x", env=env, check=False)
        assert done.returncode == 2
        assert "--place and --for each name a place: give one" in done.stderr

    def test_as_an_image(self, tmp_path: Path) -> None:
        """The same bytes each time: one layer with one place, which everybody may read."""
        here = a_here(tmp_path / "root")
        place = a_place(here, FILES)
        files = [tmp_path / "1.tar", tmp_path / "2.tar"]
        done = [image_layout.pack_image(place, file, quiet) for file in files]
        assert files[0].read_bytes() == files[1].read_bytes()
        with tarfile.open(files[0]) as tar:
            (said,) = read_member(tar, "index.json")["manifests"]
            assert said["digest"] == f"sha256:{done[0].sha256}"
            manifest = read_member(tar, f"blobs/sha256/{done[0].sha256}")
            (layer,) = manifest["layers"]
            config = read_member(tar, "blobs/" + manifest["config"]["digest"].replace(":", "/"))
            blob = tar.extractfile("blobs/" + layer["digest"].replace(":", "/"))
            assert blob
            data = blob.read()
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == layer["digest"]
        plain = gzip.decompress(data)
        diff = f"sha256:{hashlib.sha256(plain).hexdigest()}"
        assert config["rootfs"]["diff_ids"] == [diff]
        assert config["config"]["Labels"]["rocm-autopatch.gpu"] == "gfx942-304"
        with tarfile.open(fileobj=io.BytesIO(plain)) as inner:
            members = {member.name: member for member in inner.getmembers()}
        name = here.place.name
        assert {f"{name}/{file}" for file in FILES} <= {*members}
        assert f"{name}/{caches.MARK}" in members
        assert {member.mode for member in members.values() if member.isdir()} == {0o755}
        assert {(m.mtime, m.uid, m.gid) for m in members.values()} == {(0, 0, 0)}
        assert {path.partition("/")[0] for path in members} == {name}


class TestStandIn:
    def test_no_umask_lets_others_write(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Programs load what is built."""
        torch = build._Torch(tmp_path / "torch", "2.13.0", "", "7.0")
        monkeypatch.setattr(build, "_find_torch", lambda python: torch)

        def compile_nothing(command: list[str]) -> str:
            Path(command[command.index("-o") + 1]).touch(0o777)
            return ""

        monkeypatch.setattr(build, "_run", compile_nothing)
        before = os.umask(0)
        try:
            build.build_stand_in(Path("python"), GPUS["mi300x"], tmp_path / "made")
        finally:
            after = os.umask(before)
        made = list((tmp_path / "made").rglob("*"))
        assert [path for path in made if path.name == "device.so"]
        assert [str(path) for path in made if path.stat().st_mode & 0o022] == []
        assert after == 0

    def test_facts_are_never_half_there(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A second fill prepares while programs of the first one start."""
        torch = build._Torch(tmp_path / "torch", "2.13.0", "", "7.0")
        monkeypatch.setattr(build, "_find_torch", lambda python: torch)
        monkeypatch.setattr(build, "_build", lambda python, torch, facts, site: site.mkdir())
        said = build.build_stand_in(Path("python"), GPUS["mi300x"], tmp_path)
        facts = Path(said["COMPILING_GPU"])
        write_text, seen = Path.write_text, []

        def write(path: Path, text: str, **how: str) -> int:
            path.open("w").close()
            seen.append(facts.read_text())
            return write_text(path, text, **how)

        monkeypatch.setattr(Path, "write_text", write)
        build.build_stand_in(Path("python"), GPUS["mi300x"], tmp_path)
        assert seen == [GPUS["mi300x"].as_json()]

    def test_a_compiler_that_is_no_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "g++ -DNAME='a")
        with pytest.raises(build.StandInError, match=r"CXX=g.*No closing quotation"):
            build._compiler()

    @pytest.mark.parametrize("runtime", [False, True])
    def test_another_torch(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        runtime: bool,
    ) -> None:
        """A helper of a program, with a Python of its own, goes on without the stand-in."""
        monkeypatch.setattr(connection, "__file__", str(tmp_path / "connection.py"))
        monkeypatch.setattr(connection, "LIBRARY", tmp_path / "device.so")
        assert not connection._is_another(tmp_path / "a/torch")
        (tmp_path / connection.TORCH).write_text(str(tmp_path / "a/torch"))
        assert not connection._is_another(tmp_path / "a/torch")
        text = f"{tmp_path}/b/torch has no GPU here: the stand-in is built for {tmp_path}/a/torch"
        if runtime:
            (tmp_path / "runtime.so").touch()
            with pytest.raises(RuntimeError, match=re.escape(text)):
                connection._is_another(tmp_path / "b/torch")
        else:
            assert connection._is_another(tmp_path / "b/torch")
            assert capsys.readouterr().err == f"compiling_gpu: {text}\n"
