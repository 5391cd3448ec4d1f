"""Mask secrets in what is printed and written: variables, command lines, JSON, compile reports.

A value is a secret because of its name (``VLLM_API_KEY``, ``--password``), or because of its form:
a token of a known form, a URL's password, a long text of random characters. Versions, paths,
digests and lists of GPUs are not secrets. Masking can miss a secret, so users have to read what
they share.

This file imports only ``re``, because a process with torch uses it, too.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MASK = "(masked)"

# The words of a name: API and KEY in VLLM_API_KEY, access and Key in accessKey.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Anywhere in a name.
_SURELY = re.compile(
    r"secret|passw(?:or)?d|passphrase|passcode|credential|(?:api|access|private)[_-]?key|bearer",
    re.IGNORECASE,
)
_LIKELY = re.compile(r"token(?!iz)|oauth|cookie|webhook", re.IGNORECASE)
# The first are secrets as any word of a name, the second only as its last word.
_WORDS_OF_SECRETS = frozenset(("auth", "authorization", "creds", "jwt", "dsn"))
_LAST_WORDS = frozenset(("key", "keys", "pass", "pw", "pwd", "pat", "cred"))
# The key of a compiler's cache is no secret. What else is called like a secret is one there, too.
_CACHE_KEYS = re.compile(
    r"(?:TORCH_COMPILE|TORCHINDUCTOR|TORCHDYNAMO|INDUCTOR|AOT_?INDUCTOR|TRITON)_(?:\w+_)?"
    r"(?:CACHE|PGO)_KEYS?"
)
# PWD is a directory. If a secret is in a file, the file's name is not a secret.
_NO_SECRETS = re.compile(r"(?:OLD)?PWD|.*[_-](?:FILE|PATH|DIR|SOCK|HOME)", re.IGNORECASE)
# Values that are a switch or a number.
_SWITCH = re.compile(r"(?:true|false|yes|no|on|off|none|null|auto|[01])?", re.IGNORECASE)
_COUNT = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")

# Tokens whose form says what they are.
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, Stripe
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}"  # GitHub, GitLab
    r"|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}"  # Amazon
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}"  # Google
    r"|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}"  # Slack
    r"|nvapi-[\w-]{16,}|r8_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{16,}"
    r"|dop_v1_[0-9a-f]{16,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}|whsec_[\w+/=-]{16,}"
    r"|eyJ[\w-]{6,}\.eyJ[\w-]{6,}(?:\.[\w-]*)?"  # a JSON web token
    r")"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL
)
# https://user:password@host, and https://token@host
_IN_URL = re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]*(?=@)|(?<=://)[^\s/@:'\"]{16,}(?=@)")
_BEARER = re.compile(r"(?<=\bBearer )[^\s'\",]{8,}|(?<=\bBasic )[A-Za-z0-9+/=]{8,}", re.IGNORECASE)
# NAME=VALUE, "name": "value", name: value, ["name"] = value, --name value; but not name == value
_BESIDE = re.compile(
    r"""(?<![\w-])(?:(?P<name>-{0,2}[A-Za-z][\w.-]{1,63})["']?\]?\s*[=:](?!=)\s*"""
    r"""|(?P<option>--?[A-Za-z][\w-]{1,63})\s+(?!-))"""
)
_VALUE = re.compile(r""""[^"]*"|'[^']*'|[^\s"',;&)}\]]+""")
# Characters of base64. With slashes it may be a path, so it has to be longer.
_RANDOM = re.compile(r"[A-Za-z0-9_+=-]{24,}|(?<![\w/.-])[A-Za-z0-9+/]{40,}={0,2}(?![\w/.-])")
_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.-]*")
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w-]*")
# A shorter value may be in a text by chance.
_SHORTEST = 6


def is_secret(name: str, given: str) -> bool:
    """Whether a variable or option with this value is a secret, by name or by value."""
    return value(name, given) != given


def value(name: str, given: str) -> str:
    """The value of a variable or option, masked if it is a secret."""
    return MASK if _is_named(name, given) else text(given)


def _is_named(name: str, given: str) -> bool:
    """Whether it is a secret by its name."""
    if _SWITCH.fullmatch(given) or _NO_SECRETS.fullmatch(name):
        return False
    if _SURELY.search(name):
        return True
    if _COUNT.fullmatch(given) or _CACHE_KEYS.fullmatch(name):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    # A single word such as key has many meanings, except as an option.
    last = words[-1:] if len(words) > 1 or name.startswith("-") else []
    return bool(_LIKELY.search(name)) or not (
        _WORDS_OF_SECRETS.isdisjoint(words) and _LAST_WORDS.isdisjoint(last)
    )


def text(given: str) -> str:
    """A text with its secrets masked: by their form, and values next to a secret's name."""
    given = looks(given)
    masked = []
    done = 0
    for beside in _BESIDE.finditer(given):
        found = _VALUE.match(given, beside.end())
        if beside.start() < done or not found:
            continue
        inside = found[0].strip("\"'")
        name = beside["name"] or beside["option"]
        if inside and not MASK.startswith(inside) and _is_named(name, inside):
            masked += [given[done : found.start()], found[0].replace(inside, MASK)]
            done = found.end()
    return "".join([*masked, given[done:]])


def looks(given: str) -> str:
    """A text with secrets masked only by their form. Source text may have the name ``token``."""
    if len(given) < _SHORTEST:
        return given
    for pattern in (_PRIVATE_KEY, _IN_URL, _BEARER, _TOKENS):
        given = pattern.sub(MASK, given)
    return _RANDOM.sub(lambda found: MASK if _is_random(found[0]) else found[0], given)


def _is_random(run: str) -> bool:
    """Whether letters and digits are mixed as they never are in a name."""
    core = re.sub("[_+=/-]", "", run)
    if len(run) - len(core) > 2 + len(run) // 12:
        return False
    kinds = [0 if c.isdigit() else 1 if c.isupper() else 2 for c in core]
    if len(core) < 22 or any(kinds.count(kind) < 2 for kind in range(3)):
        return False
    changes = sum(one != other for one, other in zip(kinds, kinds[1:]))
    return changes >= 0.4 * len(core) and len(set(core)) >= 12


def command(words: Sequence[str]) -> list[str]:
    """A command line with its secrets masked: ``--api-key X``, ``--api-key=X``, ``API_KEY=X``."""
    masked = []
    before = ""
    for word in words:
        name, equals, given = word.partition("=")
        if before and _is_named(before, word):
            masked.append(MASK)
        elif equals and _NAME.fullmatch(name):
            masked.append(f"{name}={value(name, given)}")
        else:
            masked.append(text(word))
        before = word if _OPTION_NAME.fullmatch(word) else ""
    return masked


class Secrets:
    """The secrets of an environment. Their values are masked anywhere in a text."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {
            given
            for name, given in environ.items()
            if len(given) >= _SHORTEST and _is_named(name, given)
        }
        self._read(values)

    def _read(self, values: set[str]) -> None:
        self._known = values
        longest_first = sorted(values, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def and_also(self, value: str) -> Secrets:
        """These secrets and one more, which may be short."""
        more = Secrets({})
        more._read({*self._known, value})
        return more

    def text(self, given: str) -> str:
        """*given* with its secrets masked."""
        return text(self._values.sub(MASK, given) if self._values else given)

    def looks(self, given: str) -> str:
        """*given* with its secrets masked, for source text: names are not used."""
        return looks(self._values.sub(MASK, given) if self._values else given)

    def value(self, name: str, given: Any) -> Any:
        """The value of a variable or config key, masked if it is a secret. None means not set."""
        if isinstance(given, str):
            return MASK if value(name, given) == MASK else self.text(given)
        return self.data(given)

    def data(self, found: Any) -> Any:
        """Plain data with its secrets masked. The ``name`` in a row is the name of its values."""
        if isinstance(found, str):
            return self.text(found)
        if isinstance(found, dict):
            name = found.get("name")
            name = name if isinstance(name, str) else ""
            return {
                key: self.value(name, one) if key in _OF_A_NAME else self.data(one)
                for key, one in found.items()
            }
        if isinstance(found, (list, tuple)):
            return [self.data(one) for one in found]
        return found


# The keys of a row that hold a value of what the row names.
_OF_A_NAME = frozenset(("before", "after", "wanted", "without", "with", "value", "shipped"))
