"""A baked plan that does not fit this process: what is said, and the one fact that may differ."""


def told(why: str) -> "tuple[str, str]":
    """A note for the record, and a line for stderr, on a baked plan that is not used.

    *why* names what differs. If it is a variable or ``gfx``, somebody wants something else than was
    baked here: that is no reason to bake again, and the line is "".
    """
    note = "the baked plan is not used: %s" % why
    if why == "gfx" or why.startswith("ROCM_AUTOPATCH_"):
        return note + " is not what it was baked for", ""
    return note, note + "; run rocm-autopatch bake again"


def gfx(known: "dict[str, tuple[str, str]]") -> str:
    """The GPU's architecture, "" if unknown. It costs milliseconds: asked where a layer does."""
    from rocm_autopatch.image import facts

    return facts.gather(known).values().get("gfx", "")
