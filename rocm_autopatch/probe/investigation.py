"""What made a config value differ from the value that this torch ships, found by experiments.

A variable is the cause if the value is another one in an interpreter without the variable. Writes
by sitecustomize, .pth files and frameworks are seen when they happen, and are missing in an
interpreter that runs none of them. If the value is still there then, torch's own source is the
cause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, count
from math import comb

from rocm_autopatch.policy import lint
from rocm_autopatch.probe import reading, variables
from rocm_autopatch.probe.answers import FailedImport
from rocm_autopatch.probe.culprits import (
    IMPORT,
    SITE,
    TORCH,
    UNSEEN,
    VARIABLE,
    ConfigDifference,
    ImportCrash,
    PlaceFindings,
    ValueCulprit,
    blame_write,
    failure_identity,
    find_assignment,
    first_failure,
    is_different,
    is_same_value,
    lacks_torch,
    last_write,
    written_variables,
)
from rocm_autopatch.probe.reading import ChildReading, ChildTask


class PlaceInvestigation:
    """One place, read as often as necessary. *environment* is without the changes of our hook."""

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str]) -> None:
        self.environment = environment
        self.ask = ChildTask(imports=tuple(imports))
        self.children = 0

    def read_each(self, *asks: ChildTask) -> list[ChildReading]:
        self.children += len(asks)
        return reading.read_children(asks, self.environment)

    def find_causes(self) -> tuple[PlaceFindings, ChildReading]:
        """What is found without us, and what a process with our hook reads."""
        first, hooked = self.read_each(self.ask, ChildTask(hook=True, imports=self.ask.imports))
        return self.find_without_us(first), hooked

    def find_without_us(self, first: ChildReading) -> PlaceFindings:
        found = PlaceFindings(first, first)
        if not lacks_torch(first):
            found.reading, found.crashes = self.read_past_crashes(first)
            self.compare_values(found)
        found.children = self.children
        return found

    # Crashes

    def read_past_crashes(self, seen: ChildReading) -> tuple[ChildReading, list[ImportCrash]]:
        """A reading without the variables that crash it, and the crashes."""
        crashes = []
        while failed := first_failure(seen):
            name, after = self.find_crasher(seen, failed)
            write = written_variables(seen).get(name)
            value = write["value"] if write else self.environment.get(name)
            crashes.append(
                ImportCrash(
                    failed["import"],
                    failed["error"],
                    failed["file"],
                    failed["line"],
                    name if value is None else f"{name}={value}",
                    f"{write['file']}:{write['line']}" if write else "",
                )
            )
            if value is None:
                break
            seen = after
        return seen, crashes

    def find_crasher(self, seen: ChildReading, failed: FailedImport) -> tuple[str, ChildReading]:
        """The cause of a failed import, and the reading without it.

        It is a variable, if without it the import works or fails in another way. Otherwise it is
        SITE or TORCH.
        """
        suspects = [n for n in self.find_suspects(seen) if n not in seen.ask.without]
        last = failed["last_read"]
        asks = [reading.task_without(seen.ask, [last])] if last in suspects else []
        if not suspects:
            return self.find_other_cause(seen)
        for after in self.read_each(*asks):
            if failure_identity(first_failure(after)) != failure_identity(failed):
                return last, after
        (none,) = self.read_each(reading.task_without(seen.ask, suspects))
        if failure_identity(first_failure(none)) == failure_identity(failed):
            return self.find_other_cause(none)
        # It is one of several variables: each step leaves out half of those that are left.
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            (after,) = self.read_each(reading.task_without(seen.ask, half))
            gone = failure_identity(first_failure(after)) != failure_identity(failed)
            suspects = half if gone else suspects[len(half) :]
        (after,) = self.read_each(reading.task_without(seen.ask, suspects))
        return suspects[0], after

    def find_other_cause(self, seen: ChildReading) -> tuple[str, ChildReading]:
        (clean,) = self.read_each(self.ask_clean(seen))
        if lacks_torch(clean):
            return UNSEEN, clean
        alike = failure_identity(first_failure(clean)) == failure_identity(first_failure(seen))
        return (TORCH if alike else SITE), clean

    def find_suspects(self, seen: ChildReading) -> list[str]:
        """The variables that are set here and that torch may read at its import."""
        read = seen.found.get("reads", {})
        return [
            name
            for name in dict.fromkeys([*self.environment, *written_variables(seen)])
            if not name.startswith("ROCM_AUTOPATCH") and (name in read or variables.is_listed(name))
        ]

    def ask_clean(self, seen: ChildReading) -> ChildTask:
        """How to read without the variables, and without ``site`` and frameworks."""
        names = {*self.find_suspects(seen), *written_variables(seen)}
        path = tuple(seen.found.get("path") or sys.path[1:])  # a child that died gave no path
        return ChildTask(site=False, without=seen.ask.without | names, path=path)

    # Values

    def compare_values(self, found: PlaceFindings) -> None:
        seen = found.reading
        if first_failure(seen):
            return
        torch = str(seen.torch.get("version", ""))
        table = lint.keys(variables.minor_version(torch)) if seen.torch.get("hip") else {}
        shipped = {
            key: record.default
            for key, record in table.items()
            if not record.alias and record.has_default
        }
        found.compared = (
            f"the table of torch {variables.minor_version(torch)} for ROCm" if table else ""
        )
        used = self.config_variables(seen)
        touched = used or seen.found["writes"] or seen.found["changes"] or seen.threads
        differ = {key for key in shipped if is_different(seen.values, key, shipped[key])}
        if not (touched or differ or not table):
            return
        codes = choose_codes(used)
        noted = {key for key in seen.values if last_write(seen, key)}
        runs = max((max(code) + 1 for code in codes.values()), default=0)
        asks = [
            reading.task_without(seen.ask, [name for name, code in codes.items() if run in code])
            for run in range(runs)
        ]
        # If only variables make a difference, it is enough to leave them out. Otherwise torch's own
        # values are read, too.
        foreign = not table or seen.found["writes"] or seen.found["changes"] or seen.threads
        clean, others = None, self.read_each(*([self.ask_clean(seen)] if foreign else []), *asks)
        if foreign:
            clean, *others = others
        elif any(len(self.find_alone(seen, key, codes, others)) != 1 for key in differ):
            (clean,) = self.read_each(self.ask_clean(seen))
        if clean and first_failure(clean):
            # A start-up file is needed to find torch here, as for an editable install.
            found.compared = found.compared or "nothing: torch is not found without start-up files"
        elif clean:
            found.clean = clean
            found.compared = found.compared or "this same torch, read without variables and site"
            shipped = {**clean.values, **shipped}
        for other in others:
            # The table may lack a default. It is then known if a variable changed the value.
            for key, value in other.values.items():
                if is_different(seen.values, key, value):
                    shipped.setdefault(key, value)
        for key in sorted(seen.values):
            if key not in shipped:
                continue
            thread = seen.threads.get(key, seen.values[key])
            if is_same_value(seen.values[key], shipped[key]) and is_same_value(
                thread, shipped[key]
            ):
                continue
            culprit = self.find_culprit(found, key, codes, others, noted)
            found.differences.append(
                ConfigDifference(key, shipped[key], seen.values[key], thread, culprit)
            )

    def config_variables(self, seen: ChildReading) -> list[str]:
        """The variables that config modules read here, except for those that torch itself set."""
        foreign = written_variables(seen)
        return [
            name
            for name, read in seen.found["reads"].items()
            if read["config"] and (name in self.environment or name in foreign)
        ]

    def find_culprit(
        self,
        found: PlaceFindings,
        key: str,
        codes: Mapping[str, frozenset[int]],
        others: Sequence[ChildReading],
        noted: Iterable[str],
    ) -> ValueCulprit:
        seen = found.reading
        write = last_write(seen, key) if key in noted else None
        if write:
            return blame_write(seen, write)
        value = seen.values[key]
        alone = self.find_alone(seen, key, codes, others)
        if alone:
            return self.blame_variables(seen, alone)
        clean = found.clean
        if clean is not None and is_same_value(clean.values.get(key), value):
            file = clean.found["modules"][variables.split_key(key)[0]]["file"]
            return ValueCulprit(
                TORCH, file=file, line=find_assignment(file, variables.split_key(key)[1])
            )
        fed = variables.fed_keys(variables.minor_version(str(seen.torch.get("version", ""))))
        together = [name for name in codes if key in fed.get(name, ())]
        if together:
            return self.blame_variables(seen, together)
        stage = next((c["stage"] for c in seen.found["changes"] if c["name"] == key), "site")
        module = stage.partition(" ")[2]
        return ValueCulprit(UNSEEN if not module else IMPORT, module=module)

    def find_alone(
        self,
        seen: ChildReading,
        key: str,
        codes: Mapping[str, frozenset[int]],
        others: Sequence[ChildReading],
    ) -> list[str]:
        """The variable that changes a value by itself, whatever the other variables are."""
        value = seen.values[key]
        pattern = {
            run for run, other in enumerate(others) if is_different(other.values, key, value)
        }
        return [name for name, code in codes.items() if code == pattern]

    def blame_variables(self, seen: ChildReading, names: Iterable[str]) -> ValueCulprit:
        names = list(names)
        texts = tuple(f"{name}={seen.environ.get(name, '')}" for name in names)
        places = [write for name, write in written_variables(seen).items() if name in names]
        if not places:
            return ValueCulprit(VARIABLE, texts)
        write = places[0]
        return ValueCulprit(VARIABLE, texts, write["file"], write["line"], write["by"])


def choose_codes(names: Sequence[str]) -> dict[str, frozenset[int]]:
    """For each variable, the readings without it.

    There are only as many readings as are needed to distinguish all variables. Each variable is
    left out of the same number of readings. So the effect of two variables together can't be
    mistaken for the effect of one.
    """
    for runs in count(1):
        weight = max(runs // 2, 1)
        if comb(runs, weight) >= len(names):
            break
    return {name: frozenset(code) for name, code in zip(names, combinations(range(runs), weight))}
