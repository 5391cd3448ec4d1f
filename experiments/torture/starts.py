"""Starts with fuzzed variables and files. Each file is valid, but its structure is damaged.

A case's name is ``starts/PYTHON/KIND/SEED/NUMBER``.
"""

from __future__ import annotations

import marshal
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from experiments.torture import documents
from experiments.torture.bench import SITE, Bench
from experiments.torture.documents import WORDS
from rocm_autopatch.startup import MAGIC, UNSEALED

FLAGS = (
    *(
        ("-X", "dev"),
        ("-W", "error"),
        ("-bb",),
        ("-O",),
        ("-OO",),
        ("-I",),
        ("-E",),
        ("-s",),
        ("-S",),
    ),
    *(("-X", "utf8"), ("-B",), ("-q",), ("-X", "dev", "-W", "error", "-bb"), ("-P",)),
)
VARIABLES = ("TORCHINDUCTOR_MAX_AUTOTUNE", "GIVEN", "AMD_LOG_LEVEL")
IMAGES = (
    *("rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129", "rocm/vllm:latest", "lmsysorg/sglang:v0.5.17"),
    *(
        "docker.io/rocm/pytorch:rocm7.0_ubuntu24.04_py3.12_pytorch_release_2.8.0",
        "localhost:5000/a:b",
    ),
)
SETTINGS = {
    "ROCM_AUTOPATCH": ("on", "observe", "ON ", "maybe", "2", "\x1b[31m", "on\n", "", "tru"),
    "ROCM_AUTOPATCH_POLICY": (
        "safe",
        "performance",
        "debug",
        "no-such",
        "/",
        ".",
        "../x",
        "./\n.yaml",
    ),
    "ROCM_AUTOPATCH_SITE": (
        *("/", "/proc", "/nowhere", "/dev/null", "/etc:/proc/1/fd", ":", "::/tmp:", "x"),
        *("/usr/lib:/usr/lib", "/tmp/../tmp", "/etc/rocm-autopatch"),
    ),
    "ROCM_AUTOPATCH_GIVEN": ("FIRST,GIVEN", "GIVEN", ",,,", "A," * 5000, "TORCH_LOGS"),
    "ROCM_AUTOPATCH_IMAGE": IMAGES,
    "ROCM_AUTOPATCH_KEEP": ("FIRST", "max_autotune,GIVEN", ",,,", "watchdog", "*", "compile_modes"),
    "ROCM_AUTOPATCH_ASSUME": (
        *(
            "accelerator=rocm",
            "torch=2.13",
            "torch=",
            "torch=x.y",
            "accelerator=cuda",
            "gfx=gfx942",
        ),
        *(
            "accelerator=rocm,torch=99999999999999.1",
            "python=2",
            "date=20269999",
            "image=a b",
            "=,=,",
        ),
        *(
            "accelerator=rocm,torch=2.\u0662",
            "torch=2.\u00b2",
            "framework=sglang,framework_version=x",
        ),
        *("proven=graphs cudagraphs,gains=graphs", "proven=,gains=", "proven=a b", "gains=\x1b"),
    ),
    "ROCM_AUTOPATCH_CACHE": ("on", "off", "require", "ON", "x/y", "/proc/x", "/dev/null/x", ""),
    "ROCM_AUTOPATCH_LOG": ("quiet", "debug", "loud", "", "debug "),
    "ROCM_AUTOPATCH_SAID": ("active", "policy", ",,", "active," * 100, "x"),
    "ROCM_AUTOPATCH_REPORT": ("", "report", "/nowhere/x", "/dev/null", ".", "/proc/1/x"),
    "ROCM_AUTOPATCH_PROFILE": ("", "profile.json", "/nowhere/%p", "/dev/null", "%p%p", "/proc/x"),
}
# Each of these may make us write one more line.
SAYS = (
    "ROCM_AUTOPATCH",
    "ROCM_AUTOPATCH_ASSUME",
    "ROCM_AUTOPATCH_CACHE",
    "ROCM_AUTOPATCH_POLICY",
    "ROCM_AUTOPATCH_SITE",
    "ROCM_AUTOPATCH_GIVEN",
    "ROCM_AUTOPATCH_REPORT",
    "ROCM_AUTOPATCH_PROFILE",
)


class Draft:
    """A start while it is put together."""

    def __init__(self, bench: Bench, random: Random) -> None:
        self.bench = bench
        self.random = random
        self.env: dict[str, str] = {}
        # How many things may make us write a line, besides the one for what was done.
        self.oddities = 0
        self.arguments: list[str] = []

    def odd_text(self) -> str:
        """A text that a variable can hold, but that no terminal should get."""
        while True:
            text = str(self.random.choice(WORDS))
            if self.random.random() < 0.3:
                text += chr(
                    self.random.choice((0x1B, 0x7F, 0x85, 0xDC80, 0x200F, 0x0A, 0x2C, 0x3D))
                )
            try:
                if b"\0" not in os.fsencode(text):
                    return text
            except UnicodeEncodeError:
                continue

    def settings(self, chance: float) -> None:
        """Some of our variables, by chance."""
        for name, values in SETTINGS.items():
            if name in self.env or self.random.random() > chance:
                continue
            value = self.random.choice(values) if self.random.random() < 0.6 else self.odd_text()
            if name == "ROCM_AUTOPATCH_CACHE" and value not in values and value.startswith("/"):
                continue  # A root is made wherever it is asked for.
            # What starts without us is known.
            if value.strip().lower() in ("off", "0", "false", "no") and name == "ROCM_AUTOPATCH":
                continue
            self.env[name] = value
            self.oddities += name in SAYS


def policies(draft: Draft) -> None:
    """A named policy."""
    random, directory = draft.random, draft.bench.directory
    path = directory / random.choice(
        ("policy.yaml", "policy.yml", "\x1b[31mp.yaml", "p q.yaml", "p")
    )
    _write_policy(draft, path)
    draft.env["ROCM_AUTOPATCH_POLICY"] = str(path)
    if random.random() < 0.5:
        draft.env["GIVEN"] = "here"


def _write_policy(draft: Draft, path: Path) -> None:
    """A policy. If the root of its caches can't be, a line of its own says so."""
    written = documents.policy(draft.random, path.parent)
    path.write_bytes(written)
    draft.oddities += documents.NO_ROOT.encode() in written


def sites(draft: Draft) -> None:
    """/etc/rocm-autopatch, with anything in it."""
    random = draft.random
    site = SITE if draft.bench.site else draft.bench.directory
    if random.random() < 0.5:
        image = random.choice((*IMAGES, draft.odd_text())).encode("utf-8", "surrogateescape")
        image += random.choice(
            (b"", b"\n", b"\n\n\nmore", b"\0", b"\xff\xfe", b"\r\n", b"x" * 70000)
        )
        (site / "image").write_bytes(image)
    if random.random() < 0.5:
        lines = [f"{name}={random.choice(('1', 'x', ''))}".encode() for name in VARIABLES]
        lines += [b"\xff\xfe=\x80", b"=", b"none", b"A=\x1b[1m", b"PATH=" + b"x" * 100000]
        random.shuffle(lines)
        data = random.choice((b"\0", b"\n")).join(lines[: random.randrange(len(lines))])
        (site / "baseline").write_bytes(data[random.choice((0, 0, 3)) :])
        draft.oddities += 1
    if random.random() < 0.3:
        _evidence(draft)
    for number in range(random.choice((0, 1, 1, 2))):
        _write_policy(draft, site / f"{number}.yaml")
    if random.random() < 0.3:
        (site / "images.yaml").write_bytes(documents.images(random))
    if random.random() < 0.1:
        directory = site / random.choice(("dir.yaml", "image", "baseline", "images.yaml"))
        if not directory.exists():
            directory.mkdir()
            draft.oddities += 1
    if random.random() < 0.1:
        (site / "broken.yaml").symlink_to(random.choice(("absent", "broken.yaml", "/", "0.yaml")))
    draft.env["GIVEN"] = "here"


def _evidence(draft: Draft) -> None:
    """Evidence files, each of which may make us write a line."""
    random = draft.random
    directory = (SITE if draft.bench.site else draft.bench.directory) / "evidence"
    if random.random() < 0.05:
        directory.write_bytes(b"")
        return
    directory.mkdir()
    for number in range(random.choice((1, 1, 2, 3))):
        path = directory / random.choice((f"{number}.json", f"{number}.yaml", "\x1b[31m.json"))
        path.write_bytes(documents.evidence(random))
        if random.random() < 0.1:
            path.chmod(random.choice((0, 0o666)))
        draft.oddities += 1


def proofs(draft: Draft) -> None:
    """Evidence that is wrong, changed or gone, also after it was baked."""
    random = draft.random
    _evidence(draft)
    if random.random() < 0.4:
        _BAKED.pop(draft.bench.version, None)
        _bake(draft.bench)
        _BAKED.pop(draft.bench.version, None)
        draft.oddities += 1
        path = draft.bench.package / "baked.plan"
        if random.random() < 0.5:
            path.write_bytes(_damage(random, path.read_bytes()))
        elif random.random() < 0.5:
            shutil.rmtree(SITE / "evidence", ignore_errors=True)
    draft.env["ROCM_AUTOPATCH_POLICY"] = random.choice(("safe", "safe", "performance", "debug"))
    if random.random() < 0.5:
        del draft.env["ROCM_AUTOPATCH_POLICY"]
    if random.random() < 0.7:
        draft.arguments.append("torch")
        draft.oddities += 3


def plans(draft: Draft) -> None:
    """Plans that are damaged, foreign, truncated or of another Python."""
    random, package = draft.random, draft.bench.package
    names = ["baked.plan", *(f"plans/{p.name}" for p in sorted(package.glob("plans/*.plan")))]
    # The ones that most starts read.
    names += ["baked.plan", "plans/safe.plan", "plans/safe.plan", "plans/images.index"]
    name = random.choice(names)
    path = package / name
    if name == "baked.plan":
        if not path.exists():
            _bake(draft.bench)
        draft.oddities += 1
    if path.exists():
        path.write_bytes(_damage(random, path.read_bytes()))
    if name == "plans/images.index" or random.random() < 0.2:
        draft.env["ROCM_AUTOPATCH_IMAGE"] = random.choice(IMAGES)
    elif name.startswith("plans/"):
        draft.env["ROCM_AUTOPATCH_POLICY"] = name[len("plans/") : -len(".plan")]
    draft.oddities += 1


_BAKED: dict[str, bytes] = {}


def _bake(bench: Bench) -> None:
    path = bench.package / "baked.plan"
    if bench.version not in _BAKED:
        bench.run(bench.start("bake", flags=("-I", "-m"), program="rocm_autopatch"))
        _BAKED[bench.version] = path.read_bytes() if path.exists() else b""
    path.write_bytes(_BAKED[bench.version])


def _damage(random: Random, data: bytes) -> bytes:
    what = random.randrange(8)
    at = random.randrange(len(data) + 1)
    if UNSEALED in data[:40]:
        # Nothing tells that a bit of a wheel's plan has changed, as in a .pyc file. marshal then
        # makes a tuple of a thousand million parts, if the file says that it has so many.
        at = min(at, data.index(UNSEALED))
        what = 0 if what == 3 else what
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + random.randbytes(random.randrange(1, 20)) + data[at + 4 :]
    if what == 2:
        return random.choice((b"", b"\0", MAGIC, b"x" * 100, random.randbytes(300)))
    if what == 3 and data:
        changed = bytearray(data)
        for _ in range(random.choice((1, 3, 50))):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if what == 4:
        return data + random.randbytes(10)
    if what == 5:
        return data.replace(MAGIC, b"rocm_autopatch plan 2\n")
    head, _, rest = data.partition(b"\n")
    # Well-formed, but of another shape: plans of a wheel have no digest.
    try:
        value: Any = marshal.loads(rest[8:])
    except (ValueError, EOFError, TypeError):
        return data
    if isinstance(value, dict) and value:
        key = random.choice(sorted(value))
        value[key] = random.choice((None, (), "", 1, [1], {"a": 1}, (1, 2), "\x1b[1m", b"x", 1e9))
        if what == 7:
            del value[key]
    return head + b"\n" + rest[:8] + marshal.dumps(value, 4)


def versions(draft: Draft) -> None:
    """A torch/version.py that is not as torch writes it."""
    random = draft.random
    path = draft.bench.library / "torch" / "version.py"
    text = path.read_text()
    lines = text.split("\n")
    odd = draft.odd_text()
    values = (
        *(
            "'2.13.0+rocm7.0'",
            "2.13",
            "None",
            "'x'",
            "''",
            "'2.13.0' # x",
            '"2.13.0"',
            "'99999999999.9'",
        ),
        *(
            "'2.4'",
            "'2.3.9'",
            "'1.13'",
            "'2.\u0663.0'",
            "'2.\u00b2'",
            "'2." + "9" * 5000 + "'",
            "'a\\nb'",
        ),
        repr(odd),
        odd,
    )
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        name, equals, _ = lines[at].partition(" = ")
        lines[at] = random.choice(
            (f"{name}{equals}{random.choice(values)}", "", name, f"{name}=", odd, lines[at] * 2)
        )
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    roll = random.random()
    if roll < 0.1:
        data = data[: random.randrange(len(data) + 1)]
    elif roll < 0.15:
        data += b"\n#" + b"x" * 200000
    elif roll < 0.2:
        data = b"#" + b"x" * 70000 + b"\n" + data
    elif roll < 0.25:
        data = random.choice(
            (data.decode("utf-8", "replace").encode("utf-16"), random.randbytes(200))
        )
    path.write_bytes(data)
    draft.oddities += 1


def variables(draft: Draft) -> None:
    """Every variable of ours, with anything in it."""
    draft.settings(0.4)


def images(draft: Draft) -> None:
    """Image references that are nearly right."""
    random = draft.random
    reference = random.choice(IMAGES)
    for _ in range(random.choice((0, 1, 2, 4))):
        at = random.randrange(len(reference) + 1)
        piece = random.choice(
            ("/", ":", "@", "sha256:", " ", "..", "-", "\u0130", "\x1b[2J", "A" * 300)
        )
        reference = reference[:at] + piece + reference[at + random.choice((0, 1, 5)) :]
    if random.random() < 0.2:
        reference = draft.odd_text()
    draft.env["ROCM_AUTOPATCH_IMAGE"] = reference
    if random.random() < 0.1:
        draft.env["ROCM_AUTOPATCH_POLICY"] = "debug"


# What is damaged, and how often in a hundred cases.
KINDS: dict[str, tuple[Callable[[Draft], None], int]] = {
    "policy": (policies, 34),
    "site": (sites, 15),
    "evidence": (proofs, 12),
    "plan": (plans, 14),
    "version": (versions, 7),
    "variables": (variables, 12),
    "image": (images, 6),
}
# The files of site-packages that a case of a kind damages.
DAMAGES = {
    "plan": ("rocm_autopatch/plans", "rocm_autopatch/baked.plan"),
    "evidence": ("rocm_autopatch/baked.plan",),
    "version": ("torch/version.py",),
}


def names(bench: Bench, seed: int, count: int) -> Iterator[str]:
    """*count* cases of one Python."""
    random = Random(seed)
    kinds, weights = list(KINDS), [weight for _, weight in KINDS.values()]
    for number in range(count):
        (kind,) = random.choices(kinds, weights)
        yield f"starts/{bench.version}/{kind}/{seed}/{number}"


def run(bench: Bench, name: str) -> list[str]:
    """What is wrong with one start."""
    _, version, kind, _, _ = name.split("/")
    random = Random(name.replace(version, "", 1))
    draft = Draft(bench, random)
    with bench.broken(*DAMAGES.get(kind, ())):
        KINDS[kind][0](draft)
        if random.random() < 0.2:
            draft.settings(0.2)
        flags: tuple[str, ...] = random.choice(FLAGS) if random.random() < 0.2 else ()
        if flags == ("-P",) and tuple(map(int, version.split("."))) < (3, 11):
            flags = ()
        if random.random() < 0.05:
            draft.arguments.append("report")
        # If version.py is not valid Python, a program that imports torch fails by itself.
        if kind not in ("version", "evidence") and random.random() < 0.15:
            draft.arguments.append("torch")
            draft.oddities += 3
        given = {
            variable: "1"
            for variable in VARIABLES
            if variable not in draft.env and random.random() < 0.3
        }
        draft.env.update(given)
        start = bench.start(
            *draft.arguments,
            flags=flags,
            env=draft.env,
            lines=1 + draft.oddities,
            directory=str(bench.directory),
        )
        # Without us, the result does not depend on what was damaged here.
        return bench.judge(start, (bench.version, flags, tuple(draft.arguments)))
