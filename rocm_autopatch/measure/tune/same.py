"""Whether a run computed the same as the base: the numbers and files that ``--same`` names.

Numbers are equal within a tolerance, a part of the base's number. In a text file, all numbers are
compared so, and all other words have to be equal. Arrays (.npy, .npz, .pt, .pth, .safetensors) are
read by the command's interpreter; there the tolerance is a part of the largest number of the base's
array. Of any other file all bytes have to be equal.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.measure.ab import RequestRefused, results
from rocm_autopatch.measure.ab.numbers import NumberLabel
from rocm_autopatch.measure.ab.place import ProgramPlace

ARRAYS = (".npy", ".npz", ".pt", ".pth", ".safetensors")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b", re.IGNORECASE)
# Prints how far two files of arrays are apart, or in what they differ.
_READ = """
import json, sys

def load(path, kind):
    if kind in (".npy", ".npz"):
        import numpy
        found = numpy.load(path)
        return dict(found) if kind == ".npz" else found
    if kind == ".safetensors":
        from safetensors.numpy import load_file
        return load_file(path)
    import torch
    return torch.load(path, map_location="cpu", weights_only=True)

def leaves(path, node):
    if isinstance(node, dict):
        for key in sorted(node, key=str):
            yield from leaves("%s.%s" % (path, key) if path else str(key), node[key])
    elif isinstance(node, (list, tuple)):
        for place, one in enumerate(node):
            yield from leaves("%s[%d]" % (path, place), one)
    else:
        yield path, node

def numbers(node):
    import numpy
    if hasattr(node, "detach"):
        node = node.detach()
        if node.is_complex():
            import torch
            node = torch.view_as_real(node)
        node = node.double().numpy()
    return numpy.asarray(node, dtype="float64")

def compare(one, other):
    import numpy
    one, other = (dict(leaves("", node)) for node in (one, other))
    if one.keys() != other.keys():
        return {"differs": "it has other parts"}
    worst, where = 0.0, ""
    for name, its in one.items():
        if isinstance(its, (str, bytes, type(None))):
            if its != other[name]:
                return {"differs": "%s differs" % (name or "it")}
            continue
        a, b = numbers(its), numbers(other[name])
        if a.shape != b.shape:
            return {"differs": "%s has the shape %s, not %s" % (name or "it", b.shape, a.shape)}
        if not a.size:
            continue
        if (numpy.isfinite(a) != numpy.isfinite(b)).any():
            return {"differs": "%s is not finite in other places" % (name or "it")}
        a, b = a[numpy.isfinite(a)], b[numpy.isfinite(b)]
        size = float(abs(a).max()) if a.size else 0.0
        apart = float(abs(a - b).max()) if a.size else 0.0
        apart = apart / size if size else (1.0 if apart else 0.0)
        if apart > worst:
            worst, where = apart, name
    return {"apart": worst, "where": where}

kind = sys.argv[1]
print("\\n" + json.dumps(compare(*(load(path, kind) for path in sys.argv[2:4]))))
"""


@dataclass
class OutputCheck:
    """What has to be the same, and the base's. ``names`` are numbers' labels and files' paths.

    *directory* is for copies of the base's files. *tolerance* is a part of 1.
    """

    names: Sequence[str]
    tolerance: float
    directory: Path
    here: ProgramPlace
    numbers: dict[str, float] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    _before: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def names_of_copies(self) -> dict[str, str]:
        """By the name of a file, the name of the copy of the base's."""
        return {name: copy.name for name, copy in self.files.items()}

    def restore(self, numbers: Mapping[str, float], copies: Mapping[str, str]) -> None:
        """Take what an earlier session has kept of the base's: from names_of_copies()."""
        self.numbers = dict(numbers)
        self.files = {name: self.directory / copy for name, copy in copies.items()}

    def begin(self) -> None:
        """Note what files are before a run, to see that the run writes them."""
        self._before = {name: _file_mark(name) for name in self.names}

    def end(self, found: Mapping[NumberLabel, float]) -> str | None:
        """What is not the same after a run that printed these numbers, None if all is.

        The first run is the base's: its numbers and files are kept. Raises Refused if it has them
        not.
        """
        for name in self.names:
            if not (self.numbers.keys() | self.files.keys()) >= {name}:
                self._keep_base(name, found)
            elif name in self.files:
                if not self._is_written(name):
                    return f"it did not write {name}"
                why = self._difference_of_files(self.files[name], Path(name))
                if why:
                    return f"{name}: {why}"
            else:
                value = number_named(name, found)
                if value is None:
                    return f"it did not print {name}"
                if not numbers_close(self.numbers[name], value, self.tolerance):
                    return f"{name} is {value:g}, not {self.numbers[name]:g}"
        return None

    def _keep_base(self, name: str, found: Mapping[NumberLabel, float]) -> None:
        value = number_named(name, found)
        if value is not None:
            self.numbers[name] = value
        elif self._is_written(name):
            copy = self.directory / f"same{len(self.files)}{Path(name).suffix}"
            shutil.copyfile(name, copy)
            self.files[name] = copy
        else:
            raise RequestRefused(
                f"--same {name}: the command prints no such number, and writes no such file"
            )

    def _is_written(self, name: str) -> bool:
        return _file_mark(name) not in ((0, 0, 0), self._before.get(name, (0, 0, 0)))

    def _difference_of_files(self, base: Path, file: Path) -> str | None:
        one, other = base.read_bytes(), file.read_bytes()
        if one == other:
            return None
        if file.suffix in ARRAYS:
            return self._difference_of_arrays(base, file)
        try:
            return difference_of_texts(one.decode(), other.decode(), self.tolerance)
        except UnicodeDecodeError:
            return "other bytes"

    def _difference_of_arrays(self, base: Path, file: Path) -> str | None:
        environ = {**self.here.environ, "ROCM_AUTOPATCH": "off"}
        try:
            answer = fresh_interpreter.answer(
                _READ,
                file.suffix,
                str(base.absolute()),
                str(file.absolute()),
                environ=environ,
                python=self.here.python,
            )
        except (fresh_interpreter.NoReport, json.JSONDecodeError) as error:
            return f"can't be compared: {error}"
        if "differs" in answer:
            return str(answer["differs"])
        if answer["apart"] <= self.tolerance:
            return None
        part = f" in {answer['where']}" if answer["where"] else ""
        return f"apart by {answer['apart']:.3g} of the largest number{part}"


def _file_mark(name: str) -> tuple[int, int, int]:
    try:
        found = Path(name).stat()
    except (OSError, ValueError):
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def number_named(name: str, found: Mapping[NumberLabel, float]) -> float | None:
    """The number whose label *name* means; None if there is none."""
    try:
        (metric,) = results.chosen_metrics(list(found), [name])
    except RequestRefused:
        return None
    return found[metric]


def numbers_close(one: float, other: float, tolerance: float) -> bool:
    """Whether two numbers are equal, or apart by at most *tolerance* of the larger one."""
    return one == other or math.isclose(one, other, rel_tol=tolerance)


def difference_of_texts(one: str, other: str, tolerance: float) -> str | None:
    """In what two texts differ, None if only in numbers that are close."""
    if _NUMBER.sub("#", one).split() != _NUMBER.sub("#", other).split():
        return "other words"
    for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other)):
        if a != b and not numbers_close(float(a), float(b), tolerance):
            return f"{b} stands where the base has {a}"
    return None
