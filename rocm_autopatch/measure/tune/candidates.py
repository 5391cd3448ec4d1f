"""What there is to try in a place: each value of a switch that this torch has and that may help.

They come from the registry of switches and from built-in policies that are for speed. Left out,
each with its reason: what this place has already, what is not for its accelerator, what a policy
here pins because it is known to do harm, what gave wrong results with this torch, and what evidence
of this machine says is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocm_autopatch import fresh_interpreter, startup
from rocm_autopatch.evidence import match
from rocm_autopatch.measure.ab import RequestRefused, WrongRequest, arms, runner, toggles
from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.measure.ab.toggles import CONFIG, HERE, MODE, POLICY, VARIABLE, Toggle
from rocm_autopatch.measure.prove.subjects import SUBJECTS
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.policy import lint, load, lower
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.switches import SWITCHES, Scalar, Switch, WrongResults, text_of

# Built-in policies whose values are there for speed, or against a slow library.
_FOR_SPEED = ("performance", "no-hipblaslt", "no-library-search")
_LONGEST_PROGRAM = 1 << 20
SO_HERE = "it is so here"


@dataclass(frozen=True)
class SwitchCandidate:
    """A value of a switch: ``toggle`` has what is here and this value.

    A ``likely`` one is known to have large effects on some programs. A ``slow`` one is known for a
    long first run. One with ``code`` acts only through the code that torch generates.
    """

    toggle: Toggle
    about: str
    likely: bool
    slow: bool = False
    code: bool = False

    @property
    def value(self) -> Scalar:
        value = self.toggle.values[1]
        assert not isinstance(value, toggles.AsHere)  # It is what the base differs from.
        return value

    @property
    def label(self) -> str:
        return self.toggle.says(self.value)

    @property
    def switch(self) -> str:
        """The switch, of which a policy can have one value only."""
        return f"{self.toggle.kind} {self.toggle.name}"


@dataclass(frozen=True)
class FoundCandidates:
    """The candidates, by label why others were left out, and the modes that the command names.

    There are candidates for all modes: only a run tells in which ones a library compiles.
    """

    candidates: tuple[SwitchCandidate, ...]
    left_out: Mapping[str, str]
    modes: frozenset[str] = frozenset()


def find_candidates(
    here: ProgramPlace,
    program: Sequence[str],
    wanted: Sequence[str],
    without: Sequence[str],
    only: Sequence[str],
    directory: Path,
) -> FoundCandidates:
    """What to try for *program*.

    *wanted* are toggles that the user names: they are tried whatever a policy pins. *without* are
    names or labels that are not tried; with *only*, no others are. Raises WrongRequest and
    RequestRefused for a wanted one that is wrong or has no effect.
    """
    left_out: dict[str, str] = {}
    found = {one.label: one for text in wanted for one in _wanted_candidates(here, text)}
    named = {*found}
    modes = _modes_of(program) | {o.toggle.name for o in found.values() if o.toggle.kind == MODE}
    # What --toggle names has its values from there.
    if not only or not all(any(_is_called(one, word) for one in found.values()) for word in only):
        unsound = _unsound_labels(here)
        for row in _rows_to_try():
            one = _candidate_of(here, row)
            if isinstance(one, str):
                left_out.setdefault(row.toggle, one)
            elif one.label not in found and one.label not in left_out:
                why = _was_wrong(here, row.wrong) or _why_not_tried(here, one, row.where, unsound)
                if why:
                    left_out.setdefault(one.label, why)
                else:
                    found[one.label] = one
    if only:
        found, left_out = _chosen_by_name(found, left_out, only)
    for word in without:
        dropped = [one for one in found.values() if word in (one.label, one.toggle.label)]
        dropped += [o for o in found.values() if word == o.toggle.name and o not in dropped]
        if not dropped and word not in left_out:
            raise WrongRequest(f"--without {word}: nothing that would be tried is called so")
        for one in dropped:
            del found[one.label]
            left_out[one.label] = "--without"
    left_out = {label: why for label, why in left_out.items() if label not in found}
    inert = _inert_labels(here, list(found.values()), directory)
    for label, why in inert.items():
        if label in named:
            raise RequestRefused(why)
        left_out[label] = why
        del found[label]
    return FoundCandidates(tuple(found.values()), left_out, frozenset(modes))


def _is_called(one: SwitchCandidate, word: str) -> bool:
    return word in (one.label, one.toggle.label, one.toggle.name)


def _chosen_by_name(
    found: Mapping[str, SwitchCandidate], left_out: Mapping[str, str], only: Sequence[str]
) -> tuple[dict[str, SwitchCandidate], dict[str, str]]:
    """What *only* names of the candidates, and of those that were left out. Raises WrongRequest."""
    chosen = {
        label: one for label, one in found.items() if any(_is_called(one, word) for word in only)
    }
    others = {
        label: why
        for label, why in left_out.items()
        if any(word in (label, label.partition("=")[0]) for word in only)
    }
    for word in only:
        known = any(_is_called(one, word) for one in chosen.values())
        if not known and not any(word in (one, one.partition("=")[0]) for one in others):
            raise WrongRequest(f"--only {word}: no switch is called so; see --list")
    return chosen, others


def _wanted_candidates(here: ProgramPlace, text: str) -> list[SwitchCandidate]:
    """Each value of a toggle that is not what is here."""
    toggle = toggles.parse_toggle(text, here.fact("torch"), here.environ)
    if toggle.kind == POLICY:
        raise WrongRequest(f"--toggle {text}: a policy is made of switches; name these")
    base = here.environ.get(toggle.name) if toggle.kind == VARIABLE else HERE
    known = {row.key for row in SWITCHES if row.code}
    found = []
    for value in toggle.values:
        if isinstance(value, toggles.AsHere) or value == base:
            continue
        if toggle.kind == CONFIG and _pinned_or_same(here, toggle, value) == SO_HERE:
            continue
        one = replace(toggle, values=(base, value))
        found.append(SwitchCandidate(one, "", True, code=_short_name(toggle) in known))
    if not found:
        raise RequestRefused(f"--toggle {text}: {SO_HERE}")
    return found


def _rows_to_try() -> Iterator[Switch]:
    """The rows of the registry, and what policies for speed have as such rows."""
    yield from SWITCHES
    for name in _FOR_SPEED:
        yield from _of_policy(load.top(name))


def _of_policy(policy: Policy) -> Iterator[Switch]:
    for entry in policy.config:
        if not entry.no_trial:
            key = f"{entry.module}.{entry.key}"
            yield Switch(key, entry.value, entry.why)
            if isinstance(entry.value, bool):
                yield Switch(key, not entry.value, entry.why)
    for rule in policy.env:
        if rule.value is not None and not rule.no_trial:
            yield Switch(f"env.{rule.name}", rule.value, rule.why)


def _candidate_of(here: ProgramPlace, row: Switch) -> SwitchCandidate | str:
    """The candidate, or why there is none here."""
    try:
        toggle = toggles.parse_toggle(row.toggle, here.fact("torch"), here.environ)
    except (RequestRefused, WrongRequest) as error:
        return str(error)
    if toggle.kind == CONFIG:
        if toggle.name.startswith("torch._inductor."):
            toggle = replace(toggle, label=_short_name(toggle))
    elif toggle.kind == VARIABLE:
        toggle = replace(toggle, label=toggle.name)
    return SwitchCandidate(toggle, row.about, row.likely, row.slow, row.code)


def _short_name(toggle: Toggle) -> str:
    """The shortest name by which toggles find a config key, however a policy writes it."""
    inductors = toggle.kind == CONFIG and toggle.name.startswith("torch._inductor.")
    return toggle.name.partition(".config.")[2] if inductors else toggle.name


def _why_not_tried(
    here: ProgramPlace, one: SwitchCandidate, where: str, unsound: Mapping[str, str]
) -> str | None:
    """Why a candidate is not tried, None if it is."""
    accelerator = here.fact("accelerator")
    kinds = ("rocm", "cuda") if where == "gpu" else (where,)
    if where and accelerator not in kinds:
        return f"it is for {' and '.join(kinds)}, here is {accelerator or 'no torch'}"
    toggle = one.toggle
    if one.label in unsound:
        return unsound[one.label]
    for label, why in unsound.items():
        if label.endswith(f"={one.value}") and toggle.kind == MODE and label.startswith("mode.*"):
            return why
    if toggle.kind == CONFIG:
        if ".config.triton." in toggle.name and accelerator == "cpu":
            return "it is for Triton, here is cpu"
        return _pinned_or_same(here, toggle, one.value)
    if toggle.kind == MODE and toggle.name == one.value and not _is_mapped(here, toggle.name):
        return SO_HERE
    return None


def _was_wrong(here: ProgramPlace, wrong: WrongResults | None) -> str | None:
    """That a value gave wrong results with this torch, None if no such thing is known."""
    if not wrong or here.fact("accelerator") != wrong.accelerator:
        return None
    if startup.release(here.fact("torch")) >= startup.release(wrong.until):
        return None
    return f"wrong results on {wrong.accelerator} before torch {wrong.until} ({wrong.source})"


def _is_mapped(here: ProgramPlace, mode: str) -> bool:
    """Whether a policy here lets a mode stand for something else."""
    rows = here.report["compile_modes"] if here.report else ()
    return any(row["name"] == mode and row["wanted"] != mode for row in rows)


def _pinned_or_same(here: ProgramPlace, toggle: Toggle, value: Scalar) -> str | None:
    module, _, key = toggle.name.partition(".config.")
    name = f"{module}.config.{lower.current(key)}"
    for row in here.report["config"] if here.report else ():
        if row["name"] == name:
            if row["strength"] == "pin" and row["wanted"] != value:
                return f"policy {row['layer']} pins it to {row['wanted']}: {row['why']}"
            return SO_HERE if row["wanted"] == value else None
    record = lint.keys_of(here.fact("torch")).get(toggle.name, (toggle.name, lint.Record()))[1]
    same = record.has_default and type(record.default) is type(value) and record.default == value
    return SO_HERE if same else None


def _modes_of(program: Sequence[str]) -> set[str]:
    """The modes that the program may ask for: the default, and those that its files name."""
    texts = []
    for word in program:
        try:
            path = Path(word)
            if path.is_file() and path.stat().st_size < _LONGEST_PROGRAM:
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError):
            pass
    words = " ".join([*program, *texts])
    named = (
        mode
        for mode in compile_modes.MODES
        if any(f"{around}{mode}{around}" in f"{words} " for around in ('"', "'", " "))
    )
    return {"default", *named}


def _unsound_labels(here: ProgramPlace) -> dict[str, str]:
    """By label, what evidence of this machine says is wrong. ``mode.*=USE`` is for each mode."""
    known = match.look_for_evidence(None, here.fact("torch")).careful_verdicts("sound")
    return dict(_labels_of(name for name, (sound, _) in known.items() if not sound))


def _labels_of(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The labels of what subjects of evidence are about."""
    for name in names:
        why = f"evidence of this machine: {name} is not sound (rocm-autopatch prove)"
        subject = SUBJECTS.get(name)
        if subject is None:
            continue
        for module, keys in subject.policy.get("config", {}).items():
            for key, entry in keys.items():
                short = key if module == "torch._inductor.config" else f"{module}.{key}"
                yield f"{short}={text_of(entry['pin'])}", why
                yield f"{short}={entry['pin']}", why
        for variable, rule in subject.policy.get("env", {}).items():
            yield f"{variable}={rule['set']}", why
        for mode, use in subject.policy.get("compile_modes", {}).items():
            # If graphs go wrong in this mode, they do so in the modes that compile alike.
            yield (f"mode.{mode}={use}" if mode == "max-autotune" else f"mode.*={use}"), why
        if subject.mode and not {"compile_modes", "config"} & subject.policy.keys():
            yield f"mode.*={subject.mode}", why
        if name == "cudagraphs":
            yield "triton.cudagraphs=true", why
        if name == "autotune":
            yield "max_autotune=true", why


def arm_of(here: ProgramPlace, chosen: Sequence[SwitchCandidate], file: Path) -> arms.ToggleArm:
    """The arm with all of *chosen*; *file* is for its policy, if it needs one."""
    its = [one.toggle for one in chosen]
    values = tuple(one.value for one in chosen)
    return arms.make_arm(here, its, values, [toggle.values[0] for toggle in its], file)


def _inert_labels(
    here: ProgramPlace, found: Sequence[SwitchCandidate], directory: Path
) -> dict[str, str]:
    """By label, why a candidate does not take effect, as a fresh interpreter says.

    It gets one value of each switch, all at once. What holds of one value holds of the others.
    """
    if not found or here.report is None:
        return {}
    first = list({one.switch: one for one in reversed(found)}.values())
    hooked = [one.toggle for one in first if one.toggle.kind != VARIABLE]
    try:
        arms.check_toggles(here, [one.toggle for one in first])
    except RequestRefused as error:
        return {one.label: str(error) for one in found if one.toggle.kind != VARIABLE}
    arm = arm_of(here, first, directory / "all.yaml")
    environ = {**arm.environ, **runner.own_caches(directory)}
    report = fresh_interpreter.report(torch=bool(hooked), environ=environ, python=here.python)
    why = {}
    for one in first:
        alone = arms.ToggleArm(one.label, (one.value,), arm.environ)
        try:
            arms.verify_arm([one.toggle], alone, report)
        except RequestRefused as error:
            why[one.switch] = str(error)
    return {one.label: why[one.switch] for one in found if one.switch in why}
