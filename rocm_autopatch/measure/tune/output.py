"""What ``rocm-autopatch tune`` prints: the result as lines, as data, and as a picture."""

from __future__ import annotations

import math
import shlex
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from rocm_autopatch.measure.ab import plot, results, runner
from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.search import BASE, SAME_CODE, RaceStep
from rocm_autopatch.measure.tune.session import WRONG
from rocm_autopatch.measure.tune.tuning import TuningResult
from rocm_autopatch.support import masking
from rocm_autopatch.support.text import counted, duration, printable, wrapped

_WIDTH = 44
_TRIED, _RESULT, _BEST = "#64748b", "#c2410c", "#334155"
_STATUS = {runner.FAILED: "failed", runner.HUNG: "took too long", WRONG: "wrong"}


def candidate_lines(done: TuningResult) -> Iterator[str]:
    """What would be tried, and what is left out."""
    yield from _wrap_report(f"on {done.on}", "", "  ")
    for note in done.notes:
        yield from _wrap_report(f"note: {note}", "", "  ")
    yield ""
    yield f"would be tried: {len(done.found.candidates)}"
    for one in done.found.candidates:
        yield from _wrap_report(f"{one.label}  {one.about}", "  ", "    ")
    yield ""
    yield from _left_out(done)


def candidate_plan(done: TuningResult) -> dict[str, object]:
    """The same as data."""
    return {
        "on": done.on,
        "notes": done.notes,
        "tried": [{"switch": one.label, "about": one.about} for one in done.found.candidates],
        "left_out": dict(done.found.left_out),
    }


def report_lines(done: TuningResult) -> Iterator[str]:
    """The report."""
    yield from _wrap_report(f"rocm-autopatch tune: {_command_line(done)}", "", "  ")
    yield from _wrap_report(f"on {done.on}", "  ", "    ")
    yield from _wrap_report(_how_tuned(done), "  ", "    ")
    for note in done.notes:
        yield from _wrap_report(f"note: {note}", "  ", "    ")
    yield ""
    yield from _result_lines(done)
    races = _lost_races(done)
    if races:
        yield ""
        yield from _table_lines("Not worth it", [(name, *_race_row(step)) for name, step in races])
    for status, title in (
        (WRONG, "Wrong: it computes something else, or can't be compared"),
        (runner.FAILED, "Failed"),
        (runner.HUNG, "Took too long"),
    ):
        rows = _trouble_rows(done, status)
        if rows:
            yield ""
            yield title
            for name, reason, last in rows:
                yield from _wrap_report(f"{name}: {reason}", "  ", "    ")
                if last:
                    yield from _wrap_report(f"| {last}", "    ", "    | ")
    for cause, labels in (
        ("torch generates the same code with it", _same_code(done)),
        ("the command compiles nothing in that mode", _unused_switches(done)),
    ):
        if labels:
            yield ""
            yield from _wrap_report(f"Not measured, because {cause}: {', '.join(labels)}", "", "  ")
    if done.search and done.search.skipped:
        yield ""
        names = _trial_name(done, frozenset(done.search.skipped))
        yield from _wrap_report(f"Not reached in the budget: {names}", "", "  ")
    count = len(done.found.left_out)
    if count:
        were = "value was" if count == 1 else "values were"
        yield ""
        yield from _wrap_report(
            f"{count} {were} left out before the first run; --list says why", "", "  "
        )


def _result_lines(done: TuningResult) -> Iterator[str]:
    confirmed = len(done.confirmed.base)
    if done.trouble:
        yield from _wrap_report(
            "NO POLICY: what the search found does not run as a policy file: "
            f"{done.trouble.reason}",
            "",
            "  ",
        )
        return
    if done.partial or not done.helps:
        yield from _wrap_report(_nothing_found(done, confirmed), "", "  ")
        return
    better = _better_text(done)
    yield from _wrap_report(
        f"{better}, sure after {done.sure_after} runs of each; the policy is in {done.request.out}",
        "",
        "  ",
    )
    if done.compiled:
        yield from _wrap_report(
            f"{confirmed} runs of each{done.compiled}, as there was no time for more; what torch "
            "chooses by timing kernels is partly luck",
            "  ",
            "    ",
        )
    rows = [
        (
            entry.candidate.label,
            _ratio_text(entry.ratio),
            f"{_ratio_text(entry.interval[0])} to {_ratio_text(entry.interval[1])}",
            counted(entry.rounds, "round"),
        )
        for entry in done.entries
    ]
    yield from _table_lines("With it and without it", rows)
    for entry in done.entries:
        if entry.candidate.about:
            about = f"{entry.candidate.label}  {entry.candidate.about}"
            yield from _wrap_report(about, "  ", "    ")


def _nothing_found(done: TuningResult, confirmed: int) -> str:
    if done.partial:
        best = done.search.best if done.search else BASE
        said = "nothing helps so far"
        if best:
            said = f"the best so far, not confirmed: {_trial_name(done, best)}"
        return f"INTERRUPTED: {said}; the same command goes on from what is kept in {done.kept}"
    if not confirmed and done.search and (done.search.left or done.search.skipped):
        step = f", which ended in the step: {done.search.left}" if done.search.left else ""
        return (
            f"Nothing was found in the budget{step}; no policy is written. With a longer --budget, "
            "the same command goes on"
        )
    if not confirmed:
        worth = f"{100 * done.request.worth:g} %"
        return f"Nothing helps: no switch was worth {worth} or more; no policy is written"
    low, high = done.interval
    return (
        f"Nothing helps that is sure: the best set is {_ratio_text(done.ratio)} of the base "
        f"({_ratio_text(low)} to {_ratio_text(high)}) after {confirmed} runs of each"
        f"{done.compiled}, so it may be noise; no policy is written"
    )


def _better_text(done: TuningResult) -> str:
    low, high = done.interval
    if done.request.metric or done.request.higher:
        said = f"{_ratio_text(done.ratio)} ({_ratio_text(low)} to {_ratio_text(high)})"
        return f"{_metric_line(done)}: {said}"
    times = [results.ratio_text(1 / number) for number in (done.ratio, high, low)]
    return f"{times[0]}x faster ({times[1]} to {times[2]})"


def _how_tuned(done: TuningResult) -> str:
    assert done.session
    request = done.request
    direction = "higher" if request.higher else "lower"
    caches = "warm caches"
    if request.cold == 1:
        caches = "cold caches"
    elif request.cold:
        caches = f"{100 * request.cold:g} % of starts with cold caches"
    same = ", ".join(request.same)
    right = f"; the same: {same}, within {request.tolerance:g}" if same else ""
    runs = done.session.runs
    kept = runs - done.session.new_runs
    before = f" ({kept} of an earlier session)" if kept else ""
    left = done.search.left if done.search else ""
    spent = f", the budget ended in the step: {left}" if left else ""
    count = len(done.found.candidates)
    return (
        f"{_metric_line(done)}, {direction} is better, {caches}{right}; "
        f"{counted(count, 'value')} to try, {runs} runs{before} in "
        f"{duration(done.session.spent_s)} of "
        f"{duration(request.budget)}{spent}; seed {done.session.seed}"
    )


def _metric_line(done: TuningResult) -> str:
    unit = done.session.unit if done.session else ""
    name = done.request.metric or "wall time"
    return f"{name}, {unit}" if unit else name


def _command_line(done: TuningResult) -> str:
    request = done.request
    program = shlex.join(masking.command(request.program))
    if not request.server:
        return program
    return f"{shlex.join(masking.command(request.server))} (server), {program} (client)"


def _trial_name(done: TuningResult, trial: Trial) -> str:
    return ", ".join(_trial_labels(done, trial)) or "the command as it is here"


def _lost_races(done: TuningResult) -> list[tuple[str, RaceStep]]:
    """The switches that were raced alone and are not in the result, the best first."""
    if not done.search:
        return []
    best = _in_result(done)
    last: dict[str, RaceStep] = {}
    for step in done.search.steps:
        new = step.trial - step.against
        if new and step.trial >= step.against and step.outcome != SAME_CODE:
            name = _trial_name(done, new)
            if not {*_trial_labels(done, new)} <= best and step.rounds >= (
                last[name].rounds if name in last else 0
            ):
                last[name] = step
    return sorted(last.items(), key=lambda item: item[1].ratio)


def _same_code(done: TuningResult) -> list[str]:
    """The switches that changed nothing of the code that torch generates.

    One that is in the result has changed it beside others, or this could not be found out. One that
    was measured beside others has changed it there.
    """
    listed = _in_result(done) | {name for name, _ in _lost_races(done)}
    found = _trial_labels(done, frozenset(done.search.same_code)) if done.search else []
    return [label for label in found if label not in listed]


def _in_result(done: TuningResult) -> set[str]:
    return {entry.candidate.label for entry in done.entries} if done.helps else set()


def _unused_switches(done: TuningResult) -> list[str]:
    """The switches that are for modes in which the command compiles nothing."""
    return _trial_labels(done, frozenset(done.session.unused)) if done.session else []


def _race_row(step: RaceStep) -> tuple[str, str, str]:
    on_top = f" on top of {len(step.against)} others" if step.against else ""
    return f"{step.ratio:.3f}x", "of the cost", f"{counted(step.rounds, 'round')}{on_top}"


def _trouble_rows(done: TuningResult, status: str) -> list[tuple[str, str, str]]:
    """The trials that are out for a reason; not those that have another one of them in them."""
    if not done.session:
        return []
    troubles = done.session.troubles
    return [
        (_trial_name(done, trial), trouble.reason, (trouble.last_lines or ("",))[-1])
        for trial, trouble in troubles.items()
        if trouble.status == status and not any(other < trial for other in troubles)
    ]


def _left_out(done: TuningResult) -> Iterator[str]:
    yield f"left out: {len(done.found.left_out)}"
    by_reason: dict[str, list[str]] = {}
    for label, why in done.found.left_out.items():
        by_reason.setdefault(why, []).append(label)
    for why, labels in by_reason.items():
        yield from _wrap_report(f"{why}: {', '.join(labels)}", "  ", "    ")


def _table_lines(title: str, rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    yield title
    width = min(_WIDTH, max(len(row[0]) for row in rows))
    for name, ratio, interval, rounds in rows:
        *above, last = textwrap.wrap(printable(name), width, break_on_hyphens=False)
        yield from (f"  {part}" for part in above)
        yield f"  {last:{width}}  {ratio:>8}  {interval:>18}  {rounds}".rstrip()


def _ratio_text(number: float) -> str:
    return "unknown" if math.isnan(number) else f"{number:.3f}x"


def _wrap_report(text: str, first: str, rest: str) -> list[str]:
    return wrapped(masking.text(text), first, rest) or [""]


def tuning_document(done: TuningResult) -> dict[str, object]:
    """The result as data."""
    request = done.request
    assert done.session
    assert done.search
    return {
        "command": masking.command(request.program),
        "server": masking.command(request.server),
        "on": done.on,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "metric": request.metric or results.WALL_METRIC.name,
        "unit": done.session.unit,
        "higher": bool(request.higher),
        "cold": request.cold,
        "same": list(request.same),
        "tolerance": request.tolerance,
        "seed": done.session.seed,
        "budget_s": request.budget,
        "spent_s": round(done.session.spent_s, 3),
        "runs": done.session.runs,
        "new_runs": done.session.new_runs,
        "ended_in": done.search.left,
        "partial": done.partial,
        "notes": done.notes,
        "helps": done.helps,
        "policy": str(request.out) if done.helps else "",
        "ratio": done.ratio if done.confirmed.base else None,
        "interval": list(done.interval) if done.confirmed.base else None,
        "sure_after": done.sure_after,
        "confirmed": {
            name: [round(1 / cost if request.higher else cost, 6) for cost in costs]
            for name, costs in (("base", done.confirmed.base), ("policy", done.confirmed.policy))
        },
        "fillings": done.confirmed.fillings,
        "entries": [
            {
                "switch": entry.candidate.label,
                "ratio": _known_number(entry.ratio),
                "interval": [_known_number(end) for end in entry.interval],
                "rounds": entry.rounds,
            }
            for entry in done.entries
        ],
        "tried": [one.label for one in done.found.candidates],
        "left_out": dict(done.found.left_out),
        "same_code": _same_code(done),
        "unused_modes": _unused_switches(done),
        "not_reached": _trial_labels(done, frozenset(done.search.skipped)),
        "out": [
            {"switches": _trial_labels(done, trial), "status": _STATUS[trouble.status]}
            | {"reason": trouble.reason, "last_lines": list(trouble.last_lines)}
            for trial, trouble in done.session.troubles.items()
        ],
        "steps": [_step_row(done, step) for step in done.search.steps],
    }


def _known_number(number: float) -> float | None:
    return None if math.isnan(number) else number


def _trial_labels(done: TuningResult, trial: Trial) -> list[str]:
    return [done.found.candidates[number].label for number in sorted(trial)]


def _step_row(done: TuningResult, step: RaceStep) -> Mapping[str, object]:
    return {
        "phase": step.phase,
        "switches": _trial_labels(done, step.trial),
        "against": _trial_labels(done, step.against),
        "cost_ratio": round(step.ratio, 5),
        "rounds": step.rounds,
        "outcome": step.outcome,
    }


def draw_search(path: Path, done: TuningResult) -> None:
    """Write the picture of the search to *path*: each set at its rounds, and the best so far.

    Raises OSError.
    """
    from matplotlib.figure import Figure

    assert done.search
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    points = done.search.history()
    for chosen, colour, label in ((False, _TRIED, "tried"), (True, _RESULT, "in the result")):
        its = [
            (number, ratio)
            for number, (trial, ratio) in enumerate(points)
            if (trial == done.search.best and trial != BASE) == chosen
        ]
        numbers, ratios = zip(*its) if its else ((), ())
        axis.plot(numbers, ratios, "o", color=colour, markersize=4, alpha=0.6, mew=0, label=label)
    best: list[float] = []
    costs: dict[Trial, list[float]] = {}
    for trial, ratio in points:
        costs.setdefault(trial, []).append(ratio)
        # One lucky run is no median.
        known = [median(its) for its in costs.values() if len(its) > 1]
        best.append(min([1.0, *known]))
    axis.step(range(len(best)), best, where="post", color=_BEST, label="lowest median so far")
    axis.axhline(1.0, color="#e2e8f0", zorder=0)
    axis.set_xlabel("runs of sets of switches, in their order")
    axis.set_ylabel("cost in a round, divided by the base's median")
    axis.legend(fontsize=8)
    title = printable(_command_line(done)).replace("$", r"\$")
    axis.set_title(textwrap.fill(title, 100), fontsize=10, loc="left")
    plot.write_figure(path, figure, "tune")
