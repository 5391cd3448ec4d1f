"""Audit hooks.

hooks: alone target target.inner
"""

import sys

events = []


def audit(event, arguments):
    if event in ("import", "exec", "compile"):
        what = arguments[0] if event == "import" else getattr(arguments[0], "co_filename", "text")
        if "rocm_autopatch" not in str(what):
            events.append((event, what))


sys.addaudithook(audit)
exec("import alone\nfrom target import inner", {})
print(*events, sep="\n")
