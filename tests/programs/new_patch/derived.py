"""What derives from two patches. The argument is the directory of the package."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "tools"))
import json_schema

import rocm_autopatch
from rocm_autopatch.measure.ab import arms
from rocm_autopatch.policy import PolicyError, document, schema
from rocm_autopatch.record import sentences

rocm_autopatch.start()
import torch.first  # noqa: E402, after the start
import torch.second  # noqa: E402

status = rocm_autopatch.status()
try:
    schema.read_policy(document.parse(b"version: 1\npatches: {greeting: bye}", "f"), "f", "f")
except PolicyError as error:
    wrong = str(error)
print(
    json.dumps(
        [
            [torch.first.greeting, torch.second.greeting, torch.first.warmth],
            [
                (row["name"], row["after"], row["status"], row["layer"])
                for row in status["greeting"]
            ],
            [row["after"] for row in status["warmth"]],
            [line for line in sentences.report_lines(status) if not line.startswith(" ")],
            wrong,
            json_schema.policy_schema()["$defs"]["greeting"]["anyOf"][0],
            sorted({row[0] for row in arms._report_effects(status)} - {""}, key=str),
            status["errors"],
        ]
    )
)
