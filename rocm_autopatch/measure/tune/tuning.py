"""A search from the request to its result: what is tried, what is best, whether that is sure."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rocm_autopatch.evidence import machine
from rocm_autopatch.measure.ab import (
    RequestRefused,
    WrongRequest,
    bootstrap,
    measurement,
    numbers,
    place,
    plot,
    sequential,
)
from rocm_autopatch.measure.ab.runner import ArmRunner
from rocm_autopatch.measure.tune import candidates, policy_file
from rocm_autopatch.measure.tune.candidates import SwitchCandidate
from rocm_autopatch.measure.tune.journal import RunJournal
from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.same import OutputCheck
from rocm_autopatch.measure.tune.sampler import SetSampler
from rocm_autopatch.measure.tune.search import BASE, CALIBRATION, SetSearch, SwitchOption
from rocm_autopatch.measure.tune.served import ServedRunner
from rocm_autopatch.measure.tune.session import (
    ConfirmedCosts,
    TrialTrouble,
    TuningObjective,
    TuningSession,
)
from rocm_autopatch.support import files, masking
from rocm_autopatch.support.text import counted

# A word in the name of a number of which more is better.
_RATES = ("/s", "throughput", "per s", "per_s", "tps", "speed")
_LONGEST_COMMAND = 200
# An interval of 95 % has so many standard errors on each side.
_ERRORS = 1.96


@dataclass(frozen=True)
class TuningRequest:
    """What to tune, and how: the options of ``rocm-autopatch tune``.

    Times are in seconds; ``cold``, ``worth`` and ``tolerance`` are parts of 1. ``server`` is the
    command of a server, () without one; then ``program`` is its client. ``higher`` is None if the
    user did not say what is better. ``fill`` is how many first runs are made at the same time.
    """

    program: Sequence[str]
    server: Sequence[str]
    ready: str
    budget: float
    metric: str
    higher: bool | None
    numbers: Sequence[str]
    cold: float
    same: Sequence[str]
    tolerance: float
    toggles: Sequence[str]
    only: Sequence[str]
    without: Sequence[str]
    worth: float
    out: Path
    again: bool
    timeout: float
    seed: int | None
    fill: int
    plot: Path | None

    @property
    def started(self) -> Sequence[str]:
        """The command that the switches are for."""
        return self.server or self.program


@dataclass(frozen=True)
class ResultEntry:
    """A switch of the result: the ratio with it to without it, the 95 % interval, the rounds."""

    candidate: SwitchCandidate
    ratio: float
    interval: tuple[float, float]
    rounds: int


@dataclass
class TuningResult:
    """The request, what was found here, and what came of it.

    ``ratio`` is the policy's number divided by the base's, with ``interval``, from the rounds of
    the confirmation; ``sure_after`` how many of these it needed. ``helps`` says whether it is sure
    that the policy is better. ``text`` is the policy, "" if nothing helps.
    """

    request: TuningRequest
    here: place.ProgramPlace
    on: str
    found: candidates.FoundCandidates
    notes: list[str]
    search: SetSearch | None = None
    session: TuningSession | None = None
    entries: list[ResultEntry] = field(default_factory=list)
    helps: bool = False
    ratio: float = 1.0
    interval: tuple[float, float] = (1.0, 1.0)
    sure_after: int = 0
    confirmed: ConfirmedCosts = field(default_factory=ConfirmedCosts)
    trouble: TrialTrouble | None = None
    text: str = ""
    partial: bool = False

    @property
    def compiled(self) -> str:
        """How often each was compiled for the confirmation, to be said after the number of its
        runs; "" if for each run."""
        fillings = self.confirmed.fillings
        if fillings >= len(self.confirmed.base):
            return ""
        return f", compiled {'once' if fillings == 1 else f'{fillings} times'}"

    @property
    def kept(self) -> Path:
        """The directory of the runs."""
        return self.request.out.with_name(f"{self.request.out.name}.runs")


def prepare_tuning(request: TuningRequest, directory: Path) -> TuningResult:
    """Find what there is to try; nothing is run yet. Raises Wrong and Refused.

    *directory* is for policies that are tried.
    """
    if not request.program:
        raise WrongRequest("the command is missing: rocm-autopatch tune -- COMMAND")
    if request.plot:
        plot.check_plot_path(request.plot)
    for text in request.numbers:
        numbers.parse_pattern(text)
    if request.higher is None and any(word in request.metric.lower() for word in _RATES):
        raise WrongRequest(f"--metric {request.metric}: say what is better, --higher or --lower")
    folder = request.out.absolute().parent
    if not folder.is_dir():
        raise RequestRefused(f"--out {request.out}: {folder} is not a directory")
    if request.out.suffix not in (".yaml", ".yml"):
        raise WrongRequest(f"--out {request.out}: a policy's name ends in .yaml")
    here = place.find_program_place(request.started)
    if here.report is None:
        raise RequestRefused(
            f"a policy has no effect in {here.python[0]}, which has no rocm_autopatch: "
            f"{here.without}"
        )
    if not here.fact("torch"):
        raise RequestRefused(f"a policy has no effect in {here.python[0]}, which has no torch")
    found = candidates.find_candidates(
        here, request.started, request.toggles, request.without, request.only, directory
    )
    notes = []
    if not here.seen:
        notes.append(
            f"the command's interpreter is unknown, so switches were checked in {here.python[0]}"
        )
    if not here.is_rocm:
        notes.append(
            f"torch here is not a ROCm build ({here.fact('accelerator') or 'unknown'}): the hook "
            "sets only what is tried, by ROCM_AUTOPATCH_ASSUME=accelerator=rocm; the policy needs "
            "that, too"
        )
    notes += filter(None, [here.slow_imports])
    if not request.same:
        notes.append("only exit statuses say whether a run was right; --same compares results")
    if find_spec("optuna") is None:
        notes.append("with optuna, more is found in the same time: pip install optuna")
    return TuningResult(request, here, measurement.describe_place(here), found, notes)


def run_tuning(done: TuningResult, directory: Path, tell: Callable[[str], None]) -> None:
    """Search, confirm and write the policy. Raises Refused and OSError.

    After a KeyboardInterrupt, ``partial`` is true and the runs so far are kept.
    """
    request = done.request
    if not done.found.candidates:
        raise RequestRefused("there is nothing to try here; --list says why")
    seed = random.randrange(1_000_000) if request.seed is None else request.seed
    journal = RunJournal(done.kept, {**_search_identity(done), "seed": seed}, request.again)
    objective = TuningObjective(request.metric, bool(request.higher), request.cold)
    same = OutputCheck(request.same, request.tolerance, done.kept, done.here)
    for rows in journal.kept.values():
        same.restore(rows[-1].numbers, rows[-1].files)
    patterns = [numbers.parse_pattern(text) for text in request.numbers]
    made: ArmRunner
    if request.server:
        made = ServedRunner(
            request.server, request.ready, request.program, request.timeout, patterns
        )
    else:
        made = ArmRunner(request.program, [], request.timeout, patterns)
    if journal.count:
        tell(f"{journal.count} runs are kept in {done.kept}: going on from there")
    with made as runner:
        done.session = TuningSession(
            done.here,
            done.found.candidates,
            objective,
            same,
            journal,
            runner,
            directory,
            request.budget,
            request.timeout,
            journal.seed,
            tell,
            request.fill,
            done.found.modes,
        )
        options = [
            SwitchOption(one.label, one.switch, one.likely, one.slow, one.code)
            for one in done.found.candidates
        ]
        sampler = SetSampler(options, done.session.seed) if find_spec("optuna") else None
        done.search = SetSearch(
            options, done.session, request.worth, done.session.seed, sampler=sampler
        )
        few = False
        try:
            best = done.search.run()
            few = len(done.search.costs(BASE)) < CALIBRATION
            if best and not few:
                _confirm_best(done, best, directory)
        except KeyboardInterrupt:
            done.partial = True
        except RequestRefused:
            # The command as it is here failed at once: with another one its runs are of no use.
            if not journal.count and len(done.search.costs(BASE)) < CALIBRATION:
                journal.drop()
            raise
        finally:
            journal.close()
    if few:
        raise RequestRefused(
            f"the budget is too small: it was spent before the base had run {CALIBRATION} times; "
            "give a longer --budget"
        )


def _search_identity(done: TuningResult) -> dict[str, object]:
    request = done.request
    return {
        "command": masking.command(request.program),
        "server": masking.command(request.server),
        "ready": request.ready,
        "metric": request.metric,
        "higher": bool(request.higher),
        "numbers": list(request.numbers),
        "cold": request.cold,
        "same": list(request.same),
        "tolerance": request.tolerance,
        "worth": request.worth,
        "torch": done.here.fact("torch"),
        **machine.machine_here(),
        "tried": [one.label for one in done.found.candidates],
    }


def _confirm_best(done: TuningResult, best: Trial, directory: Path) -> None:
    """Run the policy of *best* as a file beside the base, and write it if it is better."""
    assert done.search
    assert done.session
    done.entries = [_entry_of(done, number, best) for number in sorted(best)]
    done.entries.sort(key=lambda entry: entry.ratio)
    trial = directory / "tuned.yaml"
    draft = _policy_of(done, "Not confirmed yet.")
    trial.write_text(draft, encoding="utf-8")
    trial.chmod(0o644)
    policy_file.check_policy_file(trial, done.here.fact("torch"))
    labels = "\n".join(sorted(entry.candidate.label for entry in done.entries))
    digest = hashlib.sha256(labels.encode()).hexdigest()[:8]
    confirmed = done.session.confirm(best, trial, digest)
    if isinstance(confirmed, TrialTrouble):
        done.trouble = confirmed
        return
    done.confirmed = confirmed
    costs = confirmed.base, confirmed.policy
    compared = bootstrap.compare_medians(*costs, done.session.seed)
    assert compared.ratio is not None
    assert compared.interval is not None
    done.sure_after = sequential.sure_after(*costs)
    done.helps = bool(done.sure_after) and compared.ratio < 1
    done.ratio, done.interval = _shown_ratio(done, compared.ratio, compared.interval)
    if not done.helps:
        return
    low, high = done.interval
    words = (
        f"{done.ratio:.3f}x of {_metric_of(done)} without it ({low:.3f} to {high:.3f}), in "
        f"{len(costs[1])} runs beside as many of the base{done.compiled}; "
        f"{_circumstances_line(done)}."
    )
    done.text = _policy_of(done, words[:1].upper() + words[1:])
    trial.write_text(done.text, encoding="utf-8")
    policy_file.check_policy_file(trial, done.here.fact("torch"))
    files.write(done.request.out, done.text.encode())


def _shown_ratio(
    done: TuningResult, ratio: float, interval: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """A ratio of costs as one of the program's number."""
    if not done.request.higher:
        return ratio, interval
    return 1 / ratio, (1 / interval[1], 1 / interval[0])


def _entry_of(done: TuningResult, number: int, best: Trial) -> ResultEntry:
    """What a switch of the best set does, as the search has seen it."""
    assert done.search
    assert done.session
    pairs = [(best - {number}, best), (BASE, frozenset((number,)))]
    pairs += [
        (step.against, step.trial)
        for step in done.search.steps
        if number in step.trial and number not in step.against
    ]
    for without, with_ in pairs:
        ratio = done.search.ratio(without, with_)
        if ratio.count:
            low, high = (math.exp(ratio.log + side * ratio.error) for side in (-_ERRORS, _ERRORS))
            shown = _shown_ratio(done, math.exp(ratio.log), (low, high))
            return ResultEntry(done.found.candidates[number], *shown, ratio.count)
    return ResultEntry(done.found.candidates[number], math.nan, (math.nan, math.nan), 0)


def _metric_of(done: TuningResult) -> str:
    return done.request.metric or "the wall time"


def _circumstances_line(done: TuningResult) -> str:
    """When, on what, and with which command."""
    here = done.here
    device = (
        here.fact("gpu") or here.fact("gfx") or machine.machine_here()["device"] or "GPU unknown"
    )
    command = " ".join(masking.command(done.request.started))
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]}..."
    torch = here.fact("torch") or "unknown"
    return f"{time.strftime('%Y-%m-%d')}, {device}, torch {torch}, by tune -- {command}"


def _policy_of(done: TuningResult, description: str) -> str:
    rows = []
    for entry in done.entries:
        low, high = entry.interval
        compiled = "" if done.request.cold else ", compiled once"
        words = (
            f"{entry.ratio:.3f}x of {_metric_of(done)} ({low:.3f} to {high:.3f}), in "
            f"{counted(entry.rounds, 'round')} with it{compiled}; {_circumstances_line(done)}."
        )
        rows.append((entry.candidate, " ".join(words.split())))
    name = done.request.out.stem
    return policy_file.policy_text(done.here, name, " ".join(description.split()), rows)
