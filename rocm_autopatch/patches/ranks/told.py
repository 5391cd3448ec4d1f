"""The line about ranks: who differs from the others, in what, and what both have."""

from rocm_autopatch.support import masking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Optional

    # The ranks that have this content.
    Group = tuple[Sequence[int], Mapping[str, str]]

_MOST_GROUPS, _MOST_KEYS, _MOST_RANGES, _MOST_HOSTS = 3, 5, 8, 3
_DOES = ". Such ranks may wait for each other for ever"


def differing(groups: "Sequence[Group]", hosts: "Mapping[int, str]") -> str:
    """What is told of ranks with different contents. The largest group is what others differ from.

    *hosts* has the host of each rank.
    """
    (most, usual), *others = sorted(groups, key=lambda group: (-len(group[0]), group[0]))
    parts = []
    for ranks, its in others[:_MOST_GROUPS]:
        names = [name for name in {**usual, **its} if usual.get(name) != its.get(name)]
        values = [
            "%s is %s (others: %s)"
            % (name, _value_text(name, its.get(name)), _value_text(name, usual.get(name)))
            for name in names[:_MOST_KEYS]
        ]
        if len(names) > _MOST_KEYS:
            values.append("and %d more" % (len(names) - _MOST_KEYS))
        parts.append("on %s %s" % (_who_differs(ranks, hosts), ", ".join(values)))
    if len(others) > _MOST_GROUPS:
        parts.append("and %d more kinds of ranks" % (len(others) - _MOST_GROUPS))
    return "the ranks of this job compile differently: %s; the others: %s%s" % (
        "; ".join(parts),
        _who_differs(most, hosts),
        _DOES,
    )


def missing(ranks: "Sequence[int]", size: int, when: str) -> str:
    """What is told of ranks that have not compared."""
    verb, who = ("has", "it compiles") if len(ranks) == 1 else ("have", "they compile")
    why = (
        "rocm_autopatch is missing there, off, or of another release, its policy has no ranks, or "
    )
    return "%s of %d %s not told %s under what settings %s: %sthe start takes longer" % (
        _rank_ranges(ranks),
        size,
        verb,
        when,
        who,
        why,
    )


def _value_text(name: str, value: "Optional[str]") -> str:
    return "unset" if value is None else masking.value(name, value)


def _who_differs(ranks: "Sequence[int]", hosts: "Mapping[int, str]") -> str:
    named = list(dict.fromkeys(hosts[rank] for rank in ranks))
    more = ["and %d more hosts" % (len(named) - _MOST_HOSTS)] if len(named) > _MOST_HOSTS else []
    return "%s (%s)" % (_rank_ranges(ranks), ", ".join(named[:_MOST_HOSTS] + more))


def _rank_ranges(ranks: "Iterable[int]") -> str:
    """Ranks as text: rank 3, ranks 0 to 2 and 7."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    texts = ["%d" % low if low == high else "%d to %d" % (low, high) for low, high in found]
    if len(texts) > _MOST_RANGES:
        texts[_MOST_RANGES:] = ["more"]
    one = len(found) == 1 and found[0][0] == found[0][1]
    return ("rank " if one else "ranks ") + ", ".join(texts)
