"""Sets of options that optuna's TPE sampler proposes, from all that was measured before.

A sampler learns of each option from each set that it is in. So it finds more than one race after
the other, as soon as there are some measurements.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.search import SwitchOption

_OFF = -1


class SetSampler:
    """Proposes sets of *options*. Raises ImportError if there is no optuna."""

    def __init__(self, options: Sequence[SwitchOption], seed: int) -> None:
        self._optuna: Any = importlib.import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        with warnings.catch_warnings():
            # That it samples all switches together is called an experiment.
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            sampler = self._optuna.samplers.TPESampler(seed=seed, multivariate=True)
        self._study = self._optuna.create_study(sampler=sampler)
        self._values: dict[str, list[int]] = {}
        for number, option in enumerate(options):
            self._values.setdefault(option.switch, [_OFF]).append(number)
        self._asked: Any = None

    def start(self, known: dict[Trial, float], out: set[int]) -> None:
        """Learn of what was measured, and propose none of the options in *out*.

        The costs are logarithms, relative to that of the base.
        """
        for switch, values in list(self._values.items()):
            self._values[switch] = [value for value in values if value not in out]
        choices = {
            switch: self._optuna.distributions.CategoricalDistribution(values)
            for switch, values in self._values.items()
        }
        for trial, cost in known.items():
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=self._chosen_values(trial), distributions=choices, value=cost
                )
            )

    def _chosen_values(self, trial: Trial) -> dict[str, int]:
        """The value of each switch in a set."""
        return {
            switch: next((value for value in values if value in trial), _OFF)
            for switch, values in self._values.items()
        }

    def ask(self, wanted: Trial | None) -> Trial:
        """A set to measure next: what is *wanted*, or what is best to try."""
        if wanted is not None:
            self._study.enqueue_trial(self._chosen_values(wanted))
        self._asked = self._study.ask()
        chosen = [
            self._asked.suggest_categorical(switch, values)
            for switch, values in self._values.items()
        ]
        return frozenset(value for value in chosen if value != _OFF)

    def tell(self, cost: float | None) -> None:
        """The cost of the set that was asked for; None if it is of no use."""
        if cost is None:
            self._study.tell(self._asked, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(self._asked, cost)
