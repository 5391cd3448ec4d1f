"""What derives from a section. The argument is the directory of the package."""

import json
import sys

sys.path.insert(0, sys.argv[1])
from rocm_autopatch.policy import document, lower, schema
from rocm_autopatch.policy.problem import Problems
from tools import completions, json_schema, policy_keys_page

GOOD = b"version: 1\nfans: {left: slow, right: [{use: fast, why: It is hot.}, slow]}\n"
WRONG = b"version: 1\nfans: {lift: slow, right: {use: fasst}}\nfan: {}\n"


def read(text):
    problems = Problems()
    policy = schema.read_policy(document.parse(text, "f"), "f", "f", problems)
    return policy, [str(problem) for problem in problems.shown()]


policy, none = read(GOOD)
_, wrong = read(WRONG)
try:
    lower.lower([policy])
    refused = ""
except NotImplementedError as error:
    refused = str(error)
print(
    json.dumps(
        {
            "read": [(one.names, one.use, one.why) for one in policy.entries["fans"]],
            "none": none,
            "wrong": wrong,
            "refused": refused,
            "policy schema": json_schema.policy_schema(),
            "images schema": json_schema.images_schema(),
            "page": list(policy_keys_page.page()),
            "completed": completions.offered_words()[completions.ENTRY],
        }
    )
)
