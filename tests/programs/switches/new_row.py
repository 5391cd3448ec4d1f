"""What a checkout with one more row makes of the key that its argument names."""

import json
import sys
from pathlib import Path

from rocm_autopatch import evidence, switches
from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.measure.prove import battery, subjects
from rocm_autopatch.measure.tune import candidates
from rocm_autopatch.policy import load

values = {"torch": "2.13.0+rocm7.0", "accelerator": "rocm", "python": "3.11"}
facts = {name: {"value": value} for name, value in values.items()}
report = {"facts": facts, "baked": "", "errors": [], "active": True, "config": []}
here = ProgramPlace({}, ["python"], True, {**report, "compile_modes": []})
candidates._inert_labels = lambda *_: {}
found = candidates.find_candidates(here, (), (), (), False, Path()).candidates
print(
    json.dumps(
        {
            "file": switches.__file__,
            "tune": [[one.label, one.about, one.code] for one in found],
            "prove": subjects.SUBJECTS["dense_indexing"].policy,
            "battery": battery.FULL.subjects[-1],
            "evidence": evidence.SUBJECTS["dense_indexing"],
            "policies": {
                name: [
                    [e.value, e.switch, e.why]
                    for e in load.top(name).config
                    if e.key == sys.argv[1]
                ]
                for name in ("safe", "performance")
            },
            "watchdog": switches.switches_that_stop("codegen"),
        }
    )
)
