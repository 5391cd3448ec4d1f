"""What was found, side by side: without us, with us, the verdict, and the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocm_autopatch import _ASSUME
from rocm_autopatch.policy import lint
from rocm_autopatch.probe import culprits, variables
from rocm_autopatch.probe.answers import ChildAnswer, PlainValue, TorchFound, VariableWrite
from rocm_autopatch.probe.culprits import PlaceFindings
from rocm_autopatch.probe.investigation import PlaceInvestigation
from rocm_autopatch.probe.reading import ChildReading
from rocm_autopatch.probe.variables import VariableVerdict
from rocm_autopatch.startup import baseline, cpus, kfd
from rocm_autopatch.support import masking

# The verdict on a value that our policy chose, which the place did not change.
POLICY = "policy"


@dataclass(frozen=True)
class TableRow:
    """A variable or config value, as a program reads it without us and with us.

    None is a variable that is not set. ``read`` is whether the config could be read with us.
    ``left`` is whether it is still dangerous with us.
    """

    name: str
    without: PlainValue
    with_us: PlainValue
    verdict: VariableVerdict
    who: str
    left: bool
    shipped: object = None
    thread: PlainValue = None
    culprit: culprits.ValueCulprit | None = None
    keys: tuple[str, ...] = ()
    read: bool = True


@dataclass(frozen=True)
class PlaceProbe:
    """Everything that a probe found."""

    findings: PlaceFindings
    hooked: ChildReading
    variables: list[TableRow]
    config: list[TableRow]
    notes: list[str]

    @property
    def torch(self) -> TorchFound:
        """File, version, hip and cuda of torch; {} if there is no torch."""
        return self.findings.reading.torch or self.hooked.torch

    @property
    def report(self) -> Mapping[str, Any]:
        """The report of our hook in a process with it."""
        return self.hooked.found.get("report") or {}

    @property
    def left(self) -> list[str]:
        """What is still dangerous for a program that is started here."""
        names = [row.name for row in (*self.variables, *self.config) if row.left]
        failed = [one["import"] for one in self.hooked.failed if one["import"] != "site"]
        return names + [f"import {module}" for module in failed if module not in self._missing]

    @property
    def _missing(self) -> set[str]:
        # Without torch, a failed import of torch is not a danger.
        return {"torch"} if culprits.lacks_torch(self.hooked) else set()

    @property
    def image(self) -> str:
        """The image's reference; "" if it is unknown."""
        facts = self.report.get("facts") or {}
        return str(facts["image"]["value"]) if "image" in facts else ""


def probe_place(environment: Mapping[str, str], imports: Sequence[str]) -> PlaceProbe:
    """Read this place. *environment* is without the changes of our hook."""
    findings, hooked = PlaceInvestigation(environment, imports).find_causes()
    config = list(_config_rows(findings, hooked))
    rows = list(_variable_rows(environment, findings, hooked, config))
    found = PlaceProbe(
        findings, hooked, rows, config, list(_probe_notes(findings, hooked, imports))
    )
    written = {
        n: write["value"] for n, write in culprits.written_variables(findings.reading).items()
    }
    return _masked_probe(found, masking.Secrets({**environment, **hooked.environ, **written}))


def _masked_probe(found: PlaceProbe, secrets: masking.Secrets) -> PlaceProbe:
    """The same without the values of secrets. The interpreters had the real values."""
    findings = found.findings
    for crash in findings.crashes:
        name, value = crash.variable
        # The error quotes the value, so even a short value is masked.
        if masking.is_secret(name, value) and len(value) > 1:
            secrets = secrets.and_also(value)
    crashes = [
        replace(one, error=secrets.text(one.error), culprit=secrets.text(one.culprit))
        for one in findings.crashes
    ]
    answer: ChildAnswer = {**found.hooked.found, "report": secrets.data(found.report)}
    return PlaceProbe(
        replace(findings, crashes=crashes),
        replace(found.hooked, found=answer),
        [_masked_row(row, secrets) for row in found.variables],
        [_masked_row(row, secrets) for row in found.config],
        [secrets.text(note) for note in found.notes],
    )


def _masked_row(row: TableRow, secrets: masking.Secrets) -> TableRow:
    culprit = row.culprit
    if culprit:
        named = tuple(secrets.text(variable) for variable in culprit.variables)
        culprit = replace(culprit, variables=named)
    without = secrets.value(row.name, row.without)
    # The verdict quotes the value.
    quoted = without != row.without and isinstance(row.without, str) and row.without
    why = row.verdict.why.replace(repr(row.without), repr(without)) if quoted else row.verdict.why
    return replace(
        row,
        without=without,
        with_us=secrets.value(row.name, row.with_us),
        shipped=secrets.value(row.name, row.shipped),
        thread=secrets.value(row.name, row.thread),
        verdict=replace(row.verdict, why=secrets.text(why)),
        who=secrets.text(row.who),
        culprit=culprit,
    )


def _config_rows(findings: PlaceFindings, hooked: ChildReading) -> Iterator[TableRow]:
    seen = findings.reading
    torch = str(seen.torch.get("version", ""))
    policy = {
        row["name"]: row["layer"]
        for row in (hooked.found.get("report") or {}).get("config", ())
        if row["status"] == "applied"
    }
    differ = {one.key: one for one in findings.differences}
    ours = {
        name
        for name in policy
        if name in seen.values
        and not culprits.is_same_value(hooked.values.get(name), seen.values[name])
    }
    for key in sorted({*differ, *ours}):
        value = seen.values[key]
        now = hooked.values.get(key)
        chosen = key in policy and key in ours
        if key not in differ:
            why = f"Policy {policy[key]} chose it."
            yield TableRow(
                key, value, now, VariableVerdict(POLICY, why), f"policy {policy[key]}", False, value
            )
            continue
        one = differ[key]
        verdict = variables.of_value(key, value, torch)
        if not verdict.row and culprits.is_same_value(value, one.shipped):
            verdict = variables.of_value(key, one.thread, torch)
        if not verdict.row and one.culprit.kind == culprits.VARIABLE:
            verdict = _of_culprit(one.culprit, torch) or verdict
        still = culprits.is_same_value(now, value) or variables.of_value(key, now, torch).dangerous
        left = verdict.dangerous and still and not chosen and key in hooked.values
        thread = None if culprits.is_same_value(one.thread, value) else one.thread
        who = str(one.culprit)
        read = key in hooked.values
        yield TableRow(
            key, value, now, verdict, who, left, one.shipped, thread, one.culprit, read=read
        )


def _of_culprit(culprit: culprits.ValueCulprit, torch: str) -> VariableVerdict | None:
    for text in culprit.variables:
        name, _, value = text.partition("=")
        verdict = variables.of_variable(name, value, torch, imports=True)
        if verdict.row:
            return verdict
    return None


def _gpu_names(hooked: ChildReading) -> tuple[str, ...]:
    fact = (hooked.found.get("report") or {}).get("facts", {}).get("gfx")
    return kfd.gpu_kinds(fact["value"] if fact and fact["source"] == _ASSUME else "")


def _variable_rows(
    environment: Mapping[str, str],
    findings: PlaceFindings,
    hooked: ChildReading,
    config: Sequence[TableRow],
) -> Iterator[TableRow]:
    seen = findings.reading
    torch = str(seen.torch.get("version", "")) or str(hooked.torch.get("version", ""))
    feeds = variables.fed_keys(variables.minor_version(torch)) if torch else {}
    read = seen.found.get("reads", {})
    written = culprits.written_variables(seen)
    bare = {**environment, **{name: write["value"] for name, write in written.items()}}
    rules = {row["name"]: row for row in (hooked.found.get("report") or {}).get("env", ())}
    gfx = _gpu_names(hooked)
    crashing = {crash.variable[0]: crash for crash in findings.crashes if crash.variable[0]}
    names = {
        name
        for name in {*environment, *written}
        if variables.is_listed(name)
        or name in feeds
        # torch's config reads HOME for the caches, which each process has.
        or (name in read and read[name]["config"] and not variables.is_surrounding(name))
    }
    names |= {*crashing}
    changed = {name for name, row in rules.items() if row["before"] != row["after"]}
    for name in sorted(name for name in names | changed if not name.startswith("ROCM_AUTOPATCH")):
        crash = crashing.get(name)
        before = written[name]["value"] if name in written else environment.get(name)
        before = crash.variable[1] if crash else before
        after = hooked.environ.get(name) if hooked.found else before
        if before is None:
            rule = rules[name]
            verdict = VariableVerdict(POLICY, rule["why"])
            yield TableRow(name, None, after, verdict, f"policy {rule['layer']}", False)
            continue
        who = crash.set_by if crash and crash.set_by else _who_set(name, before, written)
        keys = tuple(feeds.get(name, ()))
        if crash:
            why = f"import {crash.module} fails: {crash.error} ({crash.file}:{crash.line})"
            left = after == before and bool(culprits.first_failure(hooked))
            known = variables.of_variable(name, before, torch, gfx=gfx)
            source = known.source if known.verdict == "crashes" else ""
            yield TableRow(
                name, before, after, VariableVerdict("crashes", why, source), who, left, keys=keys
            )
            continue
        imports = bool(torch) and not culprits.first_failure(seen) and name not in seen.ask.without
        verdict = variables.of_variable(name, before, torch, imports, bare, gfx)
        left = after is not None and _still_dangerous(
            name, after, torch, imports, keys, config, hooked
        )
        yield TableRow(name, before, after, verdict, who, left, keys=keys)


def _still_dangerous(
    name: str,
    value: str,
    torch: str,
    imports: bool,
    keys: Sequence[str],
    config: Sequence[TableRow],
    hooked: ChildReading,
) -> bool:
    """Whether a variable that is still set is still dangerous. It is not if a policy sets the
    config keys whose defaults it sets."""
    verdict = variables.of_variable(name, value, torch, imports, hooked.environ, _gpu_names(hooked))
    if not verdict.dangerous or verdict.elsewhere or not hooked.values:
        return verdict.dangerous
    fed = [row for row in config if row.name in keys and row.verdict.verdict != POLICY]
    held = fed and not any(culprits.is_same_value(row.without, row.with_us) for row in fed)
    return not held


def _who_set(name: str, value: str, written: Mapping[str, VariableWrite]) -> str:
    if name in written:
        write = written[name]
        by = f", by {write['by']}" if write["by"] else ""
        return f"{write['file']}:{write['line']}{by}"
    image, _ = baseline.read()
    return {"image": "the image's", "user": "a user's"}.get(baseline.origin(name, value, image), "")


def _worker_notes(seen: ChildReading, hooked: ChildReading) -> Iterator[str]:
    """Whether torch itself starts more compile workers than there are CPUs for them."""
    key = "torch._inductor.config.compile_threads"
    own, ours = seen.values.get(key), hooked.values.get(key)
    said = cpus.describe_crowding(own) if isinstance(own, int) else ""
    if said:
        changed = f"; with rocm_autopatch {ours}" if ours not in (None, own) else ""
        where = "rocm-autopatch help watchdog#compile-workers-and-cpus"
        yield f"torch compiles with {said}{changed} ({where})"


def _probe_notes(
    findings: PlaceFindings, hooked: ChildReading, imports: Sequence[str]
) -> Iterator[str]:
    seen = findings.reading
    torch = str(seen.torch.get("version", ""))
    if culprits.lacks_torch(seen):
        yield "no torch was found here, so only variables are listed and no config"
    elif torch and not lint.keys(variables.minor_version(torch)):
        known = lint.known_versions()
        yield (
            f"torch {torch} is not in the table of torch {known[0]} to {known[-1]}: its values are "
            "compared with what the same torch reads without variables and start-up files, so "
            "changes in its own source are not seen"
        )
    elif torch and not seen.torch.get("hip"):
        yield (
            f"torch {torch} is not a ROCm build, so there is no table for it: its values are "
            "compared with what the same torch reads without variables and start-up files"
        )
    elif torch and not torch.partition("+")[0].replace(".", "").isdigit():
        released = variables.minor_version(torch)
        yield f"torch {torch} is a preview; it is compared with the released {released}"
    for crash in findings.crashes:
        if crash.culprit in (culprits.TORCH, culprits.SITE, culprits.UNSEEN):
            what = {
                culprits.TORCH: "it also fails without variables and start-up files",
                culprits.SITE: "it works without the start-up files of this Python",
                culprits.UNSEEN: "no variable is the cause",
            }[crash.culprit]
            place = f" ({crash.file}:{crash.line})" if crash.file else ""
            mended = crash.module not in {one["import"] for one in hooked.failed}
            ours = "; with rocm_autopatch it works" if mended and not hooked.died else ""
            yield f"import {crash.module} fails: {crash.error}{place}; {what}{ours}"
    for one in seen.failed:
        if one["import"].split(".")[0] != "torch":
            yield f"import {one['import']} fails: {one['error']}"
    for name, file in seen.found.get("installed", {}).items():
        if name not in (module.partition(".")[0] for module in imports):
            yield f"{name} is installed ({file}) but was not imported; --import {name} imports it"
    yield from _worker_notes(seen, hooked)
    first = findings.first
    if hooked.died:
        without = "so it is, too" if first.died == hooked.died else first.died or "it goes on"
        yield (
            f"import torch: {hooked.died}; without rocm_autopatch (ROCM_AUTOPATCH=off), {without}. "
            "No config could be read with it"
        )
    report = hooked.found.get("report") or {}
    if not report.get("active"):
        yield f"rocm_autopatch is not active here: {report.get('reason') or hooked.died or ''}"
    elif report.get("observe"):
        yield "rocm_autopatch only observes (ROCM_AUTOPATCH=observe), so it changes nothing"
    for text in report.get("errors", ()):
        yield f"rocm_autopatch: {text}"
