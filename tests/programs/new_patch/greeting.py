"""A patch of one file."""

from rocm_autopatch.patches import row

TITLE = "Greetings"
TARGETS = ("torch.first", "torch.second")
SETTINGS = {"greeting": ("off", "hello")}
NOUN = "greeting"
CHANGES_CODE = True
FIELDS = ("name", "wanted", "layer", "why")


def apply(module, entries, keep, observe):
    rows = []
    for entry in entries:
        done = row(FIELDS, entry, keep, observe)
        if done["status"] == "applied":
            module.greeting = done["after"] = done["wanted"]
        rows.append(done)
    return rows
