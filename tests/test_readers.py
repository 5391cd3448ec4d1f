"""rocm-autopatch probe --readers: who reads a variable, told from files that are made here."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch.cli import main
from rocm_autopatch.cli import readers as command
from rocm_autopatch.probe import index, installed, readers, scan
from rocm_autopatch.probe.readers import ReadersReport, VariableReaders
from rocm_autopatch.startup import baseline
from tests.conftest import ROOT

# Each form in which Python sources read MY_NAME.
READS = {
    "environ[]": "import os\nx = os.environ['MY_NAME']\n",
    "get": "import os\nx = os.environ.get('MY_NAME', '0')\n",
    "in": "import os\nif 'MY_NAME' not in os.environ:\n    pass\n",
    "pop": "import os\nx = os.environ.pop('MY_NAME', None)\n",
    "setdefault": "import os\nos.environ.setdefault('MY_NAME', '1')\n",
    "getenv": "import os\nx = os.getenv(key='MY_NAME')\n",
    "from os": "from os import environ as e, getenv as g\nx = e['MY_NAME']\n",
    "from os getenv": "from os import getenv as g\nx = g('MY_NAME')\n",
    "a copy": "import os\nenv = os.environ.copy()\nx = env.get('MY_NAME')\n",
    "a mapping": "import os\nenv = {**os.environ, 'A': '1'}\nx = env['MY_NAME']\n",
    "a constant": "import os\nNAME = 'MY_NAME'\nx = os.environ.get(NAME)\n",
    "a class's constant": "import os\nclass A:\n    N = 'MY_NAME'\n    x = os.getenv(N)\ny = A.N\n",
    "a loop": "import os\nfor n in ('A_B', 'MY_NAME'):\n    os.environ.get(n)\n",
    "a helper": "from x import env_var\ny = env_var('MY_NAME')\n",
    "a method": "y = utils.get_bool_env_var('MY_NAME', 'false')\n",
    "old and new": "_print_deprecated_env('NEW_NAME', 'MY_NAME')\n",
    "click": "@click.option('--x', envvar='MY_NAME')\ndef f(x): ...\n",
    "torch": "c: bool = Config(env_name_default='MY_NAME', default=False)\n",
    "torch, several": "c: bool = Config(env_name_force=['MY_NAME', 'A_B'], default=False)\n",
    "vllm": "import os\nenvironment_variables = {'MY_NAME': lambda: read()}\n",
    "vllm's types": (
        "import os\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    MY_NAME: str = ''\n"
        "def __getattr__(name): return os.environ[name]\n"
    ),
    "sglang": "import os\nclass Envs:\n    MY_NAME = EnvBool(False)\n",
    "a type, too": "import os\nclass Envs:\n    MY_NAME: EnvInt = environ.EnvInt(3)\n",
    "no Python 3": "import os\nprint os.environ['MY_NAME']\n",
}
# Each form in which they only name it.
NOT_READS = {
    "a comment": "import os\n# MY_NAME\n",
    "an error": "import os\nraise ValueError('set MY_NAME=1')\n",
    "a value": "import os\nos.environ['MY_NAME'] = '1'\n",
    "a deletion": "import os\ndel os.environ['MY_NAME']\n",
    "an update": "import os\nos.environ.update({'MY_NAME': '1'})\n",
    "for a child": "import os\nrun(env={**os.environ, 'MY_NAME': '1'})\n",
    "only for a child": "import os\nrun(env={'MY_NAME': '1'})\n",
    "a test": "import os\nmonkeypatch.setenv('MY_NAME', '1')\n",
    "a patch": "import os\nmock.patch.dict(os.environ, {'MY_NAME': '1'})\n",
    "longer": "import os\nx = os.environ['MY_NAME_TOO'] + os.environ['NOT_MY_NAME']\n",
}


def make_elf(*sections: tuple[str, bytes]) -> bytes:
    """An ELF file of 64 bits with these sections."""
    named = [("", b""), *sections]
    names = b"".join(name.encode() + b"\0" for name, _ in named) + b".shstrtab\0"
    named.append((".shstrtab", names))
    offset, at, rows, body = 64, 0, b"", b""
    for name, data in named:
        kind = 3 if name in (".shstrtab", ".dynstr") else int(bool(name))
        flags = 4 if name == ".text" else 0
        rows += struct.pack("<IIQQQQIIQQ", at, kind, flags, 0, offset, len(data), 0, 0, 1, 0)
        at += len(name) + 1
        offset += len(data)
        body += data
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, offset, 0, 64, 0, 0, 64, len(named), 0)
    head = head[:62] + struct.pack("<H", len(named) - 1)
    return head + body + rows


class Place:
    """A search path with one directory, where distributions are put, and nothing else."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory
        self.environment = {"XDG_CACHE_HOME": str(cache)}

    def install(self, name: str, **files: str | bytes) -> None:
        """A distribution; a double underline in a file's name is a slash, and __dot__ a dot."""
        record = []
        for called, text in files.items():
            file = called.replace("__dot__", ".").replace("__", "/")
            path = self.directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            record.append(f"{file},,\n")
        info = self.directory / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "RECORD").write_text("".join(record))

    def look(self, *names: str, **environment: str) -> ReadersReport:
        environment = {**self.environment, **environment}
        return readers.find_readers(names, environment, [str(self.directory)])

    def tell(self, name: str = "MY_NAME") -> VariableReaders:
        return self.look(name).told[0]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(installed, "_LIBRARIES", ())
    monkeypatch.setattr(installed, "_SCRIPTS", ())
    monkeypatch.setattr(installed, "_PROFILES", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "site").mkdir()
    (tmp_path / "cache").mkdir(mode=0o700)
    return Place(tmp_path / "site", tmp_path / "cache")


@pytest.mark.parametrize("form", READS)
def test_what_reads(place: Place, form: str) -> None:
    place.install("one", one__a__dot__py=READS[form])
    told = place.tell()
    assert told.state == readers.READ, told
    line = READS[form][: READS[form].index("MY_NAME")].count("\n") + 1
    assert told.read_by[0].distribution == "one 1.0"
    assert told.read_by[0].file == "one/a.py"
    # Of a constant and of a loop, the line is that of the read.
    assert told.read_by[0].line >= line


@pytest.mark.parametrize("form", NOT_READS)
def test_what_only_names(place: Place, form: str) -> None:
    place.install("one", one__a__dot__py=NOT_READS[form])
    told = place.tell()
    assert told.state == readers.NOT_READ, told
    assert bool(told.set_by or told.said_by) == (form != "longer")


def test_a_string_whose_use_is_not_seen(place: Place) -> None:
    place.install("one", one__a__dot__py="import os\nCOPIED = ['MY_NAME', 'OTHER_NAME']\n")
    told = place.tell()
    assert told.state == readers.PERHAPS
    assert str(told.named_by[0]) == "one/a.py:2 (a string)"


def test_libraries(place: Place) -> None:
    constants = b"\0MY_NAME\0set SAID_NAME=1 first\0PRE_ENDS_SO\0"
    library = make_elf((".dynstr", b"\0getenv\0"), (".rodata", constants))
    place.install("one", one__lib__liba__dot__so=library, one__b__dot__so__dot__1=b"no library")
    looked = place.look("MY_NAME", "SAID_NAME", "ENDS_SO", "NO_NAME")
    states = [one.state for one in looked.told]
    assert states == [readers.READ, readers.NOT_READ, readers.PERHAPS, readers.NOT_READ]
    assert str(looked.told[0].read_by[0]) == "one/lib/liba.so (a string)"
    assert looked.told[1].said_by[0].form == "a longer string"


def test_a_library_that_never_asks(place: Place) -> None:
    quiet = make_elf((".dynstr", b"\0malloc\0"), (".rodata", b"\0MY_NAME\0"))
    place.install("one", one__a__dot__so=quiet)
    assert place.tell().state == readers.NOT_READ
    # A static program has no symbols.
    place.install("one", one__a__dot__so=make_elf((".rodata", b"\0MY_NAME\0")))
    assert place.tell().state == readers.READ


@pytest.mark.parametrize(
    ("code", "state"),
    [
        # movabs $"HSA_CU_M", %rax; movl $"MASK", 7(%rdi)
        (b"\x48\xb8HSA_CU_M\x48\x89\x07\xc7\x47\x07MASK", "perhaps"),
        (b"\x48\xb8HSA_CU_M\x66\xc7\x47\x08AS\xc6\x47\x0aK", "perhaps"),
        (b"\x48\xb8HSA_CU_M" + bytes(200) + b"MASK", "not read"),
        (b"\x48\xb8HSA_CU_H", "not read"),
    ],
)
def test_names_in_instructions(place: Place, code: bytes, state: str) -> None:
    library = make_elf((".dynstr", b"\0getenv\0"), (".rodata", b"\0A_B\0"), (".text", code))
    place.install("one", one__a__dot__so=library)
    for _ in range(2):
        assert place.tell("HSA_CU_MASK").state == state


def test_strings_without_an_end(place: Place) -> None:
    rust = make_elf((".rodata", b"failed at /rustc/1/core.rs HF_TOKENMY_NAMEOTHER_NAME!\0"))
    place.install("one", one__a__dot__so=rust)
    told = place.tell()
    assert (told.state, told.named_by[0].form) == (readers.PERHAPS, "within a string")


def test_c_and_shell(place: Place) -> None:
    place.install(
        "one",
        one__a__dot__h='if (std::getenv("IN_HEADER")) {}\nsetenv("ONLY_SET", "1", 1);\n',
        one__b__dot__sh='export SET_HERE=1\n[ -n "${IN_SHELL:-}" ] && echo $ALSO_HERE\n',
        one__c__dot__cpp="MIOPEN_DECLARE_ENV_VAR_BOOL(MIOPEN_DEBUG_IT)\n",
    )
    names = ("IN_HEADER", "ONLY_SET", "SET_HERE", "IN_SHELL", "ALSO_HERE", "MIOPEN_DEBUG_IT")
    read = {one.name for one in place.look(*names).told if one.state == readers.READ}
    assert read == {"IN_HEADER", "IN_SHELL", "ALSO_HERE", "MIOPEN_DEBUG_IT"}


def test_names_that_are_put_together(place: Place) -> None:
    place.install("one", one__a__dot__py="import os\nx = os.environ.get(f'FAMILY_{kind}')\n")
    assert place.tell("FAMILY_ANY").state == readers.PERHAPS
    assert place.tell("FAMILIES_ANY").state == readers.NOT_READ


def test_did_you_mean(place: Place) -> None:
    text = (
        "import os\nx = os.getenv('TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS')\n"
        "y = os.getenv('SGLANG_USE_AITER')\nz = os.getenv('SGLANG_DISABLE_THAT_CHECK')\n"
        "os.environ['VLLM_ROCM_USE_AITEM'] = '1'\n"
    )
    place.install("one", one__a__dot__py=text)
    wrong = {
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKEND": ["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"],
        "SGALNG_USE_AITER": ["SGLANG_USE_AITER"],
        "SGL_DISABLE_THAT_CHECK": ["SGLANG_DISABLE_THAT_CHECK"],
        # What nothing reads is no suggestion.
        "VLLM_ROCM_USE_AITER": [],
    }
    looked = place.look(*wrong)
    assert {one.name: one.near for one in looked.told} == wrong
    assert looked.not_read == [*wrong]


def test_the_environment(place: Place) -> None:
    place.install("mine", mine__a__dot__py="import os\nx = os.getenv('MINE_USED')\n")
    given = {
        "MINE_USED": "1",
        "MINE_DEAD": "1",
        "VLLM_DEAD_SWITCH": "1",
        "FOREIGN_NAME": "1",
        "LC_ALL": "C",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "ROCM_AUTOPATCH_LOG": "quiet",
    }
    looked = place.look(**given)
    states = {one.name: one.state for one in looked.told}
    assert states == {
        "MINE_USED": readers.READ,
        "MINE_DEAD": readers.NOT_READ,
        "VLLM_DEAD_SWITCH": readers.NOT_READ,
        "FOREIGN_NAME": readers.ELSEWHERE,
    }
    assert looked.not_read == ["MINE_DEAD", "VLLM_DEAD_SWITCH"]
    text = "\n".join(command.reader_lines(looked))
    assert "2 variables that nothing reads: MINE_DEAD, VLLM_DEAD_SWITCH" in text
    assert "another program may read them\n  FOREIGN_NAME" in text
    # A name that is asked for is answered.
    assert place.tell("FOREIGN_NAME").state == readers.NOT_READ


def test_the_verdict_of_the_table(place: Place) -> None:
    place.install("one", one__a__dot__py="x = 1\n")
    looked = place.look(HIP_CACHE_ENABLED="1", ANY_API_KEY="no value is shown")
    row = command.readers_data(looked)["variables"][1]
    assert (row["name"], row["state"], row["verdict"]) == ("HIP_CACHE_ENABLED", *["not read"] * 2)
    text = "\n".join(command.reader_lines(looked))
    assert "Only tuning notes mention it" in text
    assert "no value" not in text


def test_an_image_s_own_dead_variable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "read", lambda: ({"SGLANG_DEAD_CHECK": "1"}, ""))
    place.install("one", one__a__dot__py="x = 1\n")
    looked = place.look(SGLANG_DEAD_CHECK="1", SGLANG_DEAD_TOO="1")
    whose = {one.name: one.whose for one in looked.told}
    assert whose == {"SGLANG_DEAD_CHECK": "the image's", "SGLANG_DEAD_TOO": "a user's"}
    assert "  SGLANG_DEAD_CHECK (the image's)" in [*command.reader_lines(looked)]


def test_two_names_for_one_key(place: Place) -> None:
    place.install("torch", torch__a__dot__py="x = 1\n")
    (place.directory / "torch-1.0.dist-info").rename(place.directory / "torch-2.13.0.dist-info")
    name, other = "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES"
    assert place.tell(name).same == [
        f"torch.compiler.config.force_disable_caches: {other} is asked, too"
    ]


class TestKept:
    def test_a_second_look_reads_no_file(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        first = place.look("MY_NAME")
        kept = Path(first.kept)
        assert kept == Path(place.environment["XDG_CACHE_HOME"]) / "rocm-autopatch" / "readers"
        assert all(file.stat().st_mode & 0o77 == 0 for file in kept.iterdir())
        monkeypatch.setattr(
            index.ScanWorkers, "_start_scanner", lambda _: pytest.fail("a file is read")
        )
        assert place.look("MY_NAME").told == first.told

    def test_a_changed_file_is_read_anew(self, place: Place) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        assert place.tell().state == readers.READ
        # As in an image that edits what is installed: RECORD stays.
        file = place.directory / "one" / "a.py"
        file.write_text(READS["get"].replace("MY_NAME", "MY_NEW"))
        os.utime(file, (1, 1))
        assert place.tell().state == readers.NOT_READ
        assert place.tell("MY_NEW").state == readers.READ

    def test_damage(self, place: Place) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        kept = Path(place.look("MY_NAME").kept)
        for text in ("", "[]", '{"key": 1}', "[" * 100_000):
            for file in kept.iterdir():
                file.write_text(text)
            assert place.tell().state == readers.READ

    def test_a_directory_that_others_can_write(self, place: Place) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        kept = Path(place.look("MY_NAME").kept)
        kept.chmod(0o777)
        looked = place.look("MY_NAME")
        assert (looked.kept, looked.told[0].state) == ("", readers.READ)
        assert "is not kept: " in looked.notes[0]

    def test_off(self, place: Place) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        looked = place.look("MY_NAME", ROCM_AUTOPATCH_CACHE="off")
        assert looked.notes == ["what was found is not kept: ROCM_AUTOPATCH_CACHE=off"]
        assert not [*Path(place.environment["XDG_CACHE_HOME"]).iterdir()]


class TestOddFiles:
    def test_nothing_is_imported(self, place: Place, tmp_path: Path) -> None:
        mark = tmp_path / "imported"
        text = f"import os\nopen({str(mark)!r}, 'w')\nx = os.environ['MY_NAME']\n"
        place.install("one", one____init____dot__py="", one__a__dot__py=text)
        assert place.tell().state == readers.READ
        assert not mark.exists()

    def test_what_ends_an_interpreter_hides_nothing_else(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        dying = tmp_path / "scan.py"
        dying.write_text(
            Path(scan.__file__)
            .read_text()
            .replace(
                "    for path in ask[",
                '    if any("b.py" in f for f in ask["files"]):\n'
                "        import os; os._exit(9)\n    for path in ask[",
                1,
            )
        )
        monkeypatch.setattr(index, "_SCAN", dying)
        monkeypatch.setattr(index, "_digest", [])
        monkeypatch.setattr(index.ScanWorkers, "_number", 1, raising=False)
        place.install("one", one__a__dot__py=READS["get"], one__b__dot__py="x = 1\n")
        looked = place.look("MY_NAME")
        assert looked.told[0].state == readers.READ
        assert any("ends the interpreter" in note for note in looked.notes)

    def test_time(self, place: Place) -> None:
        place.install("one", one__a__dot__py="x = 1\n")
        looked = readers.find_readers(
            ["MY_NAME"], place.environment, [str(place.directory)], limit_s=0
        )
        assert looked.told[0].state == readers.UNKNOWN
        assert looked.not_read == []
        assert any("the time of 0 s was over" in note for note in looked.notes)

    @pytest.mark.parametrize("job", ["words", "reads"])
    def test_what_was_not_looked_at_is_not_kept(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, job: str
    ) -> None:
        place.install("one", one__a__dot__py=READS["get"])
        ask = index.ScanWorkers.ask

        def late(self: index.ScanWorkers, asked: str, *rest: Any) -> dict[str, dict[str, Any]]:
            self.late = self.late or asked == job
            return {} if self.late else ask(self, asked, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(index.ScanWorkers, "ask", late)
            assert place.tell().state == readers.UNKNOWN
        assert place.tell().state == readers.READ

    def test_files_that_are_gone_or_strange(self, place: Place) -> None:
        place.install(
            "one",
            one__deep__dot__py="import os\nx = " + "(" * 5000 + ")" * 5000,
            one__zero__dot__py=b"import os\0MY_NAME",
            one__cut__dot__so=make_elf((".rodata", b"\0MY_NAME\0"))[:70],
            one__gone__dot__py="",
        )
        (place.directory / "one" / "gone.py").unlink()
        (place.directory / "one" / "gone.py").symlink_to("/nowhere")
        assert place.tell().state == readers.NOT_READ

    def test_editable(self, place: Place, tmp_path: Path) -> None:
        project = tmp_path / "my project"
        (project / "src").mkdir(parents=True)
        (project / "src" / "a.py").write_text(READS["get"])
        place.install("one")
        told = {"url": project.as_uri(), "dir_info": {"editable": True}}
        (place.directory / "one-1.0.dist-info" / "direct_url.json").write_text(json.dumps(told))
        assert place.tell().read_by[0].file == str(project / "src" / "a.py")

    def test_ours_are_left_out(self) -> None:
        found = installed.find_installed([str(ROOT)], {})
        files = [group.path(file) for group in found.groups for file in group.files]
        assert any(file.startswith(str(ROOT / "tools")) for file in files)
        assert not any(file.startswith(str(ROOT / "rocm_autopatch") + "/") for file in files)


class TestCommand:
    def run(self, place: Place, *words: str, **environment: str) -> tuple[int, str, str]:
        ours = place.directory / "rocm_autopatch"
        if not ours.exists():
            ours.symlink_to(ROOT / "rocm_autopatch")
        done = subprocess.run(
            [sys.executable, "-m", "rocm_autopatch", *words],
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                **place.environment,
                "PYTHONPATH": str(place.directory),
                "ROCM_AUTOPATCH_LOG": "quiet",
                **environment,
            },
            capture_output=True,
            text=True,
            cwd="/",
        )
        return done.returncode, done.stdout, done.stderr

    def data(self, place: Place, *words: str, **environment: str) -> tuple[int, Any]:
        status, out, err = self.run(place, *words, "--json", **environment)
        assert out, err
        return status, json.loads(out)

    @pytest.mark.slow
    def test_probe_and_explain(self, place: Place) -> None:
        place.install("vllm", vllm__envs__dot__py=READS["get"].replace("MY_NAME", "VLLM_IS_READ"))
        status, found = self.data(place, "probe", "--readers", "VLLM_IS_READ", "VLLM_IS_REED")
        assert (status, found["not_read"]) == (1, ["VLLM_IS_REED"])
        read, unread = found["variables"]
        assert read["read_by"] == [
            {"distribution": "vllm 1.0", "file": "vllm/envs.py", "line": 2, "form": "environ.get"}
        ]
        assert unread["near"] == ["VLLM_IS_READ"]
        status, out, _ = self.run(place, "probe", "--readers", "VLLM_IS_READ")
        assert status == 0
        assert "read by vllm 1.0: vllm/envs.py:2 (environ.get)" in out
        status, out, _ = self.run(place, "explain", "VLLM_IS_READ", "--readers", "--no-torch")
        assert status == 0
        assert "read by vllm 1.0: vllm/envs.py:2 (environ.get)" in out
        status, rows = self.data(place, "explain", "VLLM_IS_REED", "--readers", "--no-torch")
        assert status == 1
        assert rows[0]["readers"]["state"] == "not read"

    @pytest.mark.slow
    def test_record(self, place: Place, tmp_path: Path) -> None:
        place.install("sglang", sglang__a__dot__py="import os\nos.environ['SGLANG_USE_AITER']\n")
        file = tmp_path / "images.yaml"
        words = ("probe", "--readers", "--image", "one/two:3", "--record", str(file))
        given = {"SGLANG_USE_AITER": "1", "SGLANG_DISABLE_CUDNN_CHECK": "1", "SGLANG_OWN": "1"}
        status, found = self.data(place, *words, **given)
        assert (status, found["not_read"]) == (1, ["SGLANG_DISABLE_CUDNN_CHECK", "SGLANG_OWN"])
        row = yaml.safe_load(file.read_text())["images"][0]
        assert set(row["sets"]) == {"SGLANG_USE_AITER", "SGLANG_DISABLE_CUDNN_CHECK"}
        # What the package does not know may be private, and is not written.
        said = "; nothing that is installed reads SGLANG_DISABLE_CUDNN_CHECK."
        assert row["description"].endswith(said)
        # Where all are read, nothing is said of it.
        text = "import os\nos.environ['SGLANG_DISABLE_CUDNN_CHECK']\n"
        place.install("sglang", sglang__a__dot__py=text)
        del given["SGLANG_USE_AITER"], given["SGLANG_OWN"]
        status, found = self.data(place, *words, **given)
        assert (status, found["not_read"]) == (0, [])
        assert "reads" not in file.read_text()

    @pytest.mark.slow
    def test_record_that_can_not_be_written(self, place: Place, tmp_path: Path) -> None:
        words = ("probe", "--readers", "--record", str(tmp_path / "no" / "images.yaml"))
        status, out, err = self.run(place, *words)
        assert (status, out) == (1, "")
        assert "there is no directory" in err

    @pytest.mark.parametrize(
        "words",
        [
            ("--readers", "1NAME"),
            ("--readers", "A=B"),
        ],
    )
    def test_wrong_usage(self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["probe", *words])
        assert ended.value.code == 2
        assert "error: " in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words",
        [("--readers", "--import", "torch"), ("--readers", "A_B", "--record", "x.yaml")],
    )
    def test_what_does_not_go_together(
        self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["probe", *words]) == 2
        assert capsys.readouterr().err.startswith("rocm-autopatch probe: ")


def test_a_family_says_who_reads_it(place: Place) -> None:
    """And no line against it: the reader builds such names, so no file has one of them whole."""
    looked = place.look("PIP_CERT")
    text = "\n".join(command.reader_lines(looked))
    assert "pip reads such names" in text
    assert "no file that was looked at" not in text
    assert "no file that was looked at" in "\n".join(command.reader_lines(place.look("MY_NAME")))
