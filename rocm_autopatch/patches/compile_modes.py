"""The mode table: what ``torch.compile(mode=...)`` means here.

The change is made in ``torch._TorchCompileInductorWrapper.apply_mode``. There, every torch from 2.4
on turns a mode's name into Inductor options. ``torch.compile`` itself is not replaced, so its
signature, docstring and errors stay, ``from torch import compile`` and ``Module.compile`` are
covered, other backends and ``options=`` are not affected, and Dynamo traces a ``torch.compile``
inside a compiled region as before.

Programs ask ``torch._inductor.list_mode_options`` what a mode means, and act on the answer:
transformers captures graphs itself if the mode captures none. So it answers by the same table. A
pinned option has its pinned value, there and in the ``config`` of the class. ``apply_mode`` asks
the function, too.

A mode that stands for ``graphs`` or ``training-graphs`` compiles without Inductor's capture, and
the compiled code runs through ``rocm_autopatch.graphs``: ``reduce-overhead`` compiles as
``default``, ``max-autotune`` as
``max-autotune-no-cudagraphs``, any other mode as itself. That is done where the same class is
called with the model to compile. The answer is that of the mode without a capture: Inductor
captures nothing, and our graphs give way in a capture.
"""

import functools

from rocm_autopatch import failure, startup
from rocm_autopatch.patches import config, row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from rocm_autopatch.patches.torch_types import CompilerWrapper, InductorModule
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import CountedRow


TITLE = "Compile modes"
TARGETS = ("torch",)
SETTINGS: "dict[str, tuple[str, ...] | str]" = {}
NOUN = "compile mode"
CHANGES_CODE = True
FIELDS = ("name", "wanted", "layer", "why")
# What torch._inductor.list_mode_options has in 2.4 to 2.15. lite is there from 2.10 on.
MODES = (
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
    "lite",
)
# Itself, with each compiled graph captured by us instead of Inductor: inference only, or training,
# too.
GRAPHS, TRAINING_GRAPHS = "graphs", "training-graphs"
OURS = (GRAPHS, TRAINING_GRAPHS)
# What a mode can stand for.
USES = (*MODES, *OURS)
_WITHOUT_CAPTURE = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
# A _TorchCompileInductorWrapper whose compiles run as graphs has this attribute: the mode that the
# program asked for, and which one of ours it stands for.
_MODE = "_rocm_autopatch_mode"


def apply(
    module: "ModuleType",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[CountedRow]":
    """Put the table of *entries* into ``torch``.

    A row's ``uses`` counts how often the program asked for the mode in this process.
    """
    rows = []
    for entry in entries:
        done: CountedRow = row(FIELDS, entry, keep, observe, uses=0)
        done["before"] = done["name"]
        done["after"] = done["wanted"] if done["status"] == "applied" else done["name"]
        rows.append(done)
    _install(module, {done["name"]: done for done in rows})
    return rows


def _install(torch: "ModuleType", table: "dict[str, CountedRow]") -> None:
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        # getattr, because the AttributeError of a torch that is being imported blames a circular
        # import.
        raise AttributeError("this torch has no _TorchCompileInductorWrapper")
    original = wrapper.apply_mode

    @functools.wraps(original)
    def apply_mode(self: "CompilerWrapper", mode: object) -> None:
        asked = table.get(mode) if isinstance(mode, str) else None
        if asked is not None:
            asked["uses"] += 1
            mode = asked["after"]
            if mode in OURS:
                setattr(self, _MODE, (asked["name"], mode))
                mode = _compiled(asked)
        try:
            original(self, _Torchs(mode) if isinstance(mode, str) else mode)
        except RuntimeError:
            if asked is None or mode == asked["name"]:
                raise
            own = asked["after"] = asked["name"]
            asked["status"], asked["reason"] = "skipped", "this torch has no mode %s" % mode
            startup.fail("compile_modes", "%s stays as it is: %s" % (own, asked["reason"]))
            original(self, _Torchs(own))
        if self.config:
            _obey_pins(self.config)

    wrapper.apply_mode = apply_mode
    # Most processes never import it.
    startup.arm({"torch._inductor": functools.partial(_install_answers, table)})
    if any(done["after"] in OURS for done in table.values()):
        _install_graphs(wrapper)


def _compiled(row: "CountedRow") -> str:
    """The mode of torch's own that a row of the table compiles as."""
    name = row["after"]
    return _WITHOUT_CAPTURE.get(row["name"], row["name"]) if name in OURS else name


class _Torchs(str):
    """The name of a mode, by which torch's own table is meant and not ours."""


def _obey_pins(options: "dict[str, object]") -> None:
    """Give pinned options their pinned value; what else the mode wants is a refused write."""
    from torch._inductor import config as inductor

    pinned = config.as_pinned(inductor, options)
    refused = {name: value for name, value in options.items() if value != pinned[name]}
    if refused:
        with inductor.patch(refused):
            options.update(pinned)


def _install_answers(table: "dict[str, CountedRow]", inductor: "InductorModule") -> None:
    original = getattr(inductor, "list_mode_options", None)
    if original is None:
        return

    def meant(mode: object) -> object:
        asked = table.get(mode) if isinstance(mode, str) else None
        return mode if asked is None else _compiled(asked)

    @functools.wraps(original)
    def list_mode_options(mode: object = None, dynamic: object = None) -> "dict[str, object]":
        if isinstance(mode, _Torchs):
            return original(mode, dynamic)  # type: ignore[no-any-return]
        # Imported by now or by the first compile, and pins are written when it is.
        from torch._inductor import config as inductor_config

        modes = original(None, dynamic)
        if mode:
            # As in apply_mode, a mode that this torch does not have stands for nothing.
            wanted = meant(mode)
            answer = original(wanted if wanted in modes else mode, dynamic)
            return config.as_pinned(inductor_config, answer)
        return {
            name: config.as_pinned(inductor_config, modes.get(meant(name), options))
            for name, options in modes.items()
        }

    inductor.list_mode_options = list_mode_options


def _install_graphs(wrapper: "Any") -> None:
    call, equal = wrapper.__call__, wrapper.__eq__

    @functools.wraps(call)
    def __call__(
        self: object, model_: "Any", inputs_: "Any", *args: object, **kwargs: object
    ) -> object:
        if not hasattr(self, _MODE):
            return call(self, model_, inputs_, *args, **kwargs)

        def compile_one(model: "Any", inputs: "Any") -> "Any":
            return call(self, model, inputs, *args, **kwargs)

        try:
            from rocm_autopatch.graphs import mode
        except Exception as error:
            if failure.programs_own(error):
                raise
            startup.fail(
                "graphs", "a compiled function runs without graphs: " + failure.describe(error)
            )
            return compile_one(model_, inputs_)
        origin, use = getattr(self, _MODE)
        return mode.compile_regions(model_, inputs_, compile_one, origin, use == TRAINING_GRAPHS)

    @functools.wraps(equal)
    def __eq__(self: object, other: object) -> bool:
        # Dynamo reuses what an equal backend has compiled.
        ours = getattr(self, _MODE, None) == getattr(other, _MODE, None)
        return bool(equal(self, other)) and ours

    wrapper.__call__, wrapper.__eq__ = __call__, __eq__
