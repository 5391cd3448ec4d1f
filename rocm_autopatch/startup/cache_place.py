"""A place for the caches: made by the first start that needs it, and judged where it is unusual.

A start loads it only where ``caches`` is not enough: the place is not there, the short rule does
not do, or something has to be said. The commands use it, too.
"""

import os

from rocm_autopatch import _RECORD, startup
from rocm_autopatch.startup import caches
from rocm_autopatch.startup.caches import LAYER, LINKED, MARK, PARTS, PRIVATE, UnsafePlace, Unusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocm_autopatch.plan import EnvRow, Plan
    from rocm_autopatch.record.shapes import CachesRecord

_ON_NODE = (
    "the caches' root %s is on a network file system: what programs compile stays on this node, in "
    "%s, with links to what the root has; rocm-autopatch cache warm -- COMMAND adds to the root"
)
# pytorch#173679, torchtitan#2146
_GIVEN = (
    "%s: on a network file system, where programs may find files missing or stale; name "
    "a directory of this node instead, such as /tmp/NAME"
)


def add(plan: "Plan") -> None:
    """What caches.add() does, where it has to be made, looked at or told."""
    done = _RECORD["caches"]
    assert done is not None  # caches.add() has put it there.
    why = caches.wanted(plan)[2]
    rows: tuple[EnvRow, ...] = ()
    users: list[str] = []
    try:
        caches.locate_place(plan, done)
        looks = caches.makes_nothing()
        if not _RECORD["observe"]:
            home = done["use"] == "on"
            make_place(done["root"], done["place"], done["of"], home, done["node"], looks)
        own = _Own(looks)
        rows = tuple(caches.variable_rules(done, why, users, own.own_part))
        if done["node"]:
            startup.say("caches-network", _ON_NODE % (done["root"], done["node"]))
        text = on_network(users)
        if text:
            startup.say("caches-network-given", text)
    except (OSError, Unusable) as error:
        done["reason"] = _reason(error, done["place"])
        startup.say("caches", "no cache is kept: " + done["reason"])
        rows = tuple(_taken_back(done)) if isinstance(error, UnsafePlace) else ()
    caches.add_rows(plan, done, rows)


def make_place(
    root: str, directory: str, fields: "dict[str, str]", home: bool, node: str, looks: bool
) -> None:
    """Make a place, or look whether the one that is there may be used. Raises Unusable and OSError.

    *home*: the root is in a home directory, and nobody has named it. *node*: this container's own
    directory if the root is on a network file system, else "". If it only *looks*, nothing is made,
    and the reasons are the same.
    """
    make_root(root, home, looks)
    if os.access(root, os.F_OK):
        _make_place(directory, fields, looks)
    if node:
        _make_own(directory, looks)
        _own(directory, caches.KEYS, looks)
    written = node or directory
    while not os.access(written, os.F_OK):
        written = written.rpartition("/")[0] or "/"
    lack = caches.lack_of_room(written)
    if lack:
        text = "%s has less than %s of room left; rocm-autopatch cache gc --max SIZE makes room"
        raise Unusable(text % (written, lack))


def _make_place(directory: str, fields: "dict[str, str]", looks: bool) -> None:
    if not os.access(directory, os.F_OK):
        if looks:
            return
        _at_once(directory, lambda new: _fill(new, directory, fields))
    check_directory(directory)
    if os.stat(directory).st_mode & 0o011:
        # Others may come in, so what is in it counts, too.
        for _, part, _, _ in PARTS:
            inner = "%s/%s" % (directory, part.partition("/")[0])
            if os.access(inner, os.F_OK):
                check_directory(inner)
    below = _below(directory)
    if os.access(directory + "/" + LINKED, os.F_OK):
        try:
            check_directory(below)
        except FileNotFoundError:
            pass  # The layer is not mounted here.
    elif not looks and os.access(below + "/" + MARK, os.R_OK):
        # The place was there before the layer.
        _link(below, directory, directory)
    if not looks and not os.access(directory + "/" + MARK, os.R_OK):
        # It was removed beside a running program, which has made its directories again.
        os.chmod(directory, 0o700)
        make_parts(directory)
        _write_mark(directory, fields)
    if looks:
        writable = os.access(directory, os.W_OK)
    else:
        writable = True
        try:
            # The last use, by which gc goes.
            os.utime(directory)
        except OSError:
            writable = False
    if not writable:
        raise Unusable("%s can't be written" % directory)


def make_root(path: str, home: bool, looks: bool = False, sticky: bool = False) -> None:
    """Make a directory and those above it, but nothing where somebody else could have led it.

    As root with another user's HOME, it would be left there as root's, and a link of that user
    would lead anywhere. *home* is that of make_place(), *sticky* that of check_directory(); if it
    *looks*, it makes nothing. Raises Unusable and OSError.
    """
    if not os.access(path, os.F_OK):
        above = path.rpartition("/")[0] or "/"
        make_root(above, home, looks, sticky=True)
        # Not if something is there: another process may have been faster.
        if os.path.islink(path):
            raise Unusable("%s: a link that leads nowhere" % path)
        if looks:
            if os.access(above, os.F_OK) and not os.access(above, os.W_OK):
                raise Unusable("%s can't be written" % above)
            return
        try:
            # The umask may let everybody write; this does not.
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass  # Another process was faster.
    check_directory(path, home, sticky)


def check_directory(directory: str, home: bool = False, sticky: bool = False) -> None:
    """Raise UnsafePlace if others could have changed what is in a directory, or can replace it.

    The rule is trust.directory's, also for *sticky*. With *home*, what belongs to another user is
    no home of this one, whoever has mounted it. Raises OSError.
    """
    if caches.is_plain(directory):
        return
    from rocm_autopatch import trust

    why = trust.directory(directory, sticky)
    owner = os.stat(directory).st_uid
    if home and not why and owner not in (0, os.geteuid()):
        why = "it belongs to user %d, not to root or to this user" % owner
    if why:
        raise UnsafePlace("%s: %s" % (directory, why))


def _at_once(directory: str, fill: "Callable[[str], None]") -> None:
    """Make a directory that nobody sees before it is filled. Another process may be faster."""
    above = directory.rpartition("/")[0]
    new = "%s/.new-%d-%s" % (above, os.getpid(), os.urandom(4).hex())
    # Nobody else may come in: what is in it is code, and a program may have a umask that lets
    # everybody write.
    os.mkdir(new, 0o700)
    try:
        fill(new)
        os.rename(new, directory)
    except OSError:
        from rocm_autopatch.startup import layer

        layer.remove(new)
        if not os.access(directory, os.F_OK):
            raise


def _fill(new: str, directory: str, fields: "dict[str, str]") -> None:
    below = _below(directory)
    if os.access(below + "/" + MARK, os.R_OK):
        _link(below, new, directory)
    else:
        _write_mark(new, fields)
        if os.access(LAYER, os.R_OK | os.X_OK):
            from rocm_autopatch.startup import layer

            apart = layer.apart(LAYER, MARK, fields)
            if apart:
                startup.say("caches-layer", "the caches in %s do not fit: %s" % (LAYER, apart))
    make_parts(new)


def _write_mark(directory: str, fields: "dict[str, str]") -> None:
    new = "%s/%s.%d.tmp" % (directory, MARK, os.getpid())
    with open(new, "w", encoding="utf-8") as stream:
        stream.write("".join("%s %s\n" % field for field in fields.items()))
    os.rename(new, directory + "/" + MARK)


def _below(directory: str) -> str:
    return "%s/%s" % (LAYER, directory.rpartition("/")[2])


def _link(below: str, new: str, directory: str) -> None:
    """Let *new*, which will be *directory*, have what the layer's place *below* has."""
    from rocm_autopatch.startup import layer

    check_directory(below)
    layer.link_layer(below, new, directory)
    with open(new + "/" + LINKED, "w", encoding="ascii") as stream:
        stream.write("%s\n" % below)


def make_parts(place: str) -> None:
    """Make the directories of a place's parts. Not all that keeps something there makes them."""
    for _, part, use, _ in PARTS:
        inner = place + "/" + part.partition("/")[0]
        if use != PRIVATE and not os.access(inner, os.F_OK):
            os.mkdir(inner)


class _Own:
    """This container's own directories, with links to what the root has."""

    def __init__(self, looks: bool) -> None:
        self.looks = looks
        self.why: Exception | None = None

    def own_part(self, directory: str, part: str) -> str:
        """Where the part of a place is; "" if this container can't have one, and a line says why.

        The parts that are for all are used without it.
        """
        try:
            if self.why is None:
                _make_own(directory, self.looks)
                _own(directory, part, self.looks)
                return "%s/%s" % (caches.own(directory), part)
        except (OSError, Unusable) as error:
            self.why = error
            names = ", ".join(variable for variable, _, use, _ in PARTS if use == PRIVATE)
            startup.say("caches-own", "%s are not set: %s" % (names, _reason(error)))
        return ""


def _make_own(directory: str, looks: bool) -> None:
    path = caches.own(directory)
    for step in (path.rpartition("/")[0], path):
        if os.access(step, os.F_OK):
            check_directory(step)
        elif looks:
            return
        else:
            _at_once(step, lambda new: None)
            check_directory(step)


def _own(directory: str, part: str, looks: bool) -> None:
    inner = part.partition("/")[0]
    above = caches.own(directory)
    path = "%s/%s" % (above, inner)
    if looks or os.access(path, os.F_OK):
        return

    def fill(new: str) -> None:
        if os.access("%s/%s" % (directory, inner), os.F_OK):
            from rocm_autopatch.startup import layer

            layer.link_layer(directory, new, above, "/" + inner)

    _at_once(path, fill)


def on_network(variables: "Iterable[str]") -> str:
    """Advice on those variables that name directories on a network file system, "" if none does."""
    values = [(name, os.environ.get(name, "")) for name in variables]
    found = [
        "%s=%s" % (name, path)
        for name, path in values
        if path[:1] == "/" and caches._is_network(path)
    ]
    return _GIVEN % ", ".join(found) if found else ""


def _taken_back(done: "CachesRecord") -> "Iterator[EnvRow]":
    for variable, part, _, _ in PARTS:
        value = os.environ.get(variable, "")
        for directory in (done["place"], caches.own(done["place"])):
            if caches.is_ours(value, directory, part):
                yield variable, "delete", None, done["layer"], done["reason"], (), ()
                break


def _reason(error: Exception, place: str = "") -> str:
    if isinstance(error, OSError) and (error.filename or place):
        return "%s: %s" % (error.filename or place, error.strerror)
    return str(error)
