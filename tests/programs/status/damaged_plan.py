"""Damages each part of this process's plan in several ways; prints what a report then says."""

import copy
import json
import marshal

import rocm_autopatch

plan = rocm_autopatch._RECORD["plan"]
assert plan is not None
found = []
for part in plan:
    for damage in (None, (), 1, b"x", "x", [1], {"a": 1}, ((1,),), marshal.dumps(((1,),)), "gone"):
        damaged = copy.copy(plan)
        if damage == "gone":
            del damaged[part]
        else:
            damaged[part] = damage
        rocm_autopatch._RECORD["plan"] = damaged
        raised, errors = "", []
        try:
            errors = rocm_autopatch.status()["errors"]
        except Exception as error:
            raised = repr(error)
        found.append({"part": part, "damage": repr(damage), "raised": raised, "errors": errors})
print(json.dumps(found))
