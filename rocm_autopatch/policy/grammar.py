"""The grammar of a policy and of images.yaml, in one table.

Each ``MappingKey`` has its name, its type and the sentence that says what it means. Whatever speaks
of keys derives from here: the reader (``schema``), the JSON Schemas and the page of keys in docs/,
and the names that a shell completes. A new section of a policy is a ``PolicySection`` in
``SECTIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rocm_autopatch import patches, startup
from rocm_autopatch.evidence import SUBJECTS
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.patches import config as config_values
from rocm_autopatch.policy import when
from rocm_autopatch.policy.document import LARGEST, SMALLEST, Node
from rocm_autopatch.policy.model import (
    DELETE_EMPTY,
    Common,
    ConfigEntry,
    EnvRule,
    Issue,
    Policy,
    Range,
    Setting,
    UseRule,
)
from rocm_autopatch.policy.problem import quoted
from rocm_autopatch.policy.value_types import (
    AlternativeEntries,
    ChoiceText,
    DurationValue,
    EntryType,
    FieldMapping,
    FixedValue,
    GivenFields,
    KeyedEntries,
    KindEntry,
    ListOf,
    MappingKey,
    NamedEntries,
    PlainText,
    PolicySection,
    ScalarValue,
    SettingsEntry,
    ShortEntries,
    ShortEntry,
    SwitchWord,
    TextTuple,
    TrueOrFalse,
    ValueType,
)
from rocm_autopatch.policy.when import Conditions

# The version of the form.
VERSION = 1
# What ``caches`` may be besides the path of a root.
CACHE_WORDS = ("on", "off")
# Linux starts no program where one variable takes more than 128 KiB (MAX_ARG_STRLEN in execve(2)),
# or where arguments and environment together do: of that, a policy gets a part.
LONGEST_VALUE = 32 << 10
# Inductor and Triton put some 150 bytes below it, and a path has up to 4,096 (PATH_MAX).
LONGEST_ROOT = 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,4}")
_OUR_VARIABLES = "ROCM_AUTOPATCH"
_NO_VARIABLE = "not a valid name of an environment variable"


# Texts, and what is wrong with one


def _variable_problem(name: str) -> str | None:
    return None if not name or _VARIABLE.fullmatch(name) else _NO_VARIABLE


def _name_problems(name: str) -> Iterator[str]:
    if not _VARIABLE.fullmatch(name):
        yield _NO_VARIABLE


def _env_name_problems(name: str) -> Iterator[str]:
    yield from _name_problems(name)
    if name.startswith(_OUR_VARIABLES):
        yield "a policy can't change rocm_autopatch's own variables"


def _env_value_problem(text: str) -> str | None:
    if not text:
        return "an empty value crashes some torch versions: write delete: true"
    if len(text.encode()) > LONGEST_VALUE:
        return (
            f"a value of more than {LONGEST_VALUE} bytes: Linux starts no program with "
            "a much longer one"
        )
    return None


def _release_problem(text: str) -> str | None:
    if not text or _RELEASE.fullmatch(text):
        return None
    return f"{quoted(text)} is not a torch release such as '2.6'"


def _root_problem(text: str) -> str | None:
    if text.startswith("/") and "\0" not in text and len(text.encode()) <= LONGEST_ROOT:
        return None
    return f"expected an absolute path of at most {LONGEST_ROOT} bytes, found {quoted(text)}"


TEXT = PlainText()
VARIABLE_NAME = PlainText(
    "a variable's name",
    _variable_problem,
    {"pattern": f"^{_VARIABLE.pattern}$"},
    shared_as="variable",
)
ENV_VALUE = PlainText(
    objection=_env_value_problem,
    limits={"minLength": 1, "maxLength": LONGEST_VALUE},
    shared_as="variable_value",
)
RELEASE = PlainText(
    'a version such as `"2.6"`', _release_problem, {"pattern": f"^{_RELEASE.pattern}$"}
)
CACHE_ROOT = PlainText(
    "an absolute path", _root_problem, {"pattern": "^/", "maxLength": LONGEST_ROOT}
)
SUBJECT = ChoiceText(tuple(SUBJECTS), "a [subject](evidence.md#the-format)", shared_as="subject")
SUBJECT_LIST = TextTuple(SUBJECT, shared_as="subjects")
CONFIG_VALUE = ScalarValue(SMALLEST, LARGEST, shared_as="config_value")


# What every entry may carry

WHY = MappingKey(
    "why",
    TEXT,
    "One line on what is known, and from where. `explain` and `status` show it.",
    shared=True,
)
SINCE = MappingKey(
    "since",
    RELEASE,
    "A torch release. The entry is for this version and later ones; for others, the entry of a "
    "more general layer applies.",
    shared=True,
)
UNTIL = MappingKey(
    "until", RELEASE, "A torch release. The entry is for versions before this one.", shared=True
)
PROVEN = MappingKey(
    "proven",
    SUBJECT_LIST,
    "Subjects of evidence. The entry holds only where all of them are proven to be sound on this "
    "machine.",
    shared=True,
)
GAINS = MappingKey(
    "gains",
    SUBJECT_LIST,
    "Subjects of evidence. The entry holds only where all of them are shown to gain on this "
    "machine.",
    shared=True,
)
NO_TRIAL = MappingKey(
    "no_trial",
    TEXT,
    "Why no trial of `prove` can be about this entry. `explain` shows it.",
    shared=True,
)
COMMON_KEYS: tuple[MappingKey[object], ...] = (WHY, SINCE, UNTIL, PROVEN, GAINS, NO_TRIAL)


def _common_fields(given: GivenFields, place: Node) -> tuple[Range, str, Conditions, str, Node]:
    """The fields of model.Common, in its order."""
    since, until = (
        startup.release(text) if _RELEASE.fullmatch(text) else ()
        for text in map(given.text_of, (SINCE, UNTIL))
    )
    if since and until and until <= since:
        message = "until must be later than since: this entry is for no torch"
        given.add_problem(UNTIL.name, message)
    asked = {key.name: given.value_of(key) for key in (PROVEN, GAINS)}
    needs = {name: subjects for name, subjects in asked.items() if subjects is not None}
    return (since, until), given.prose_of(WHY), needs, given.prose_of(NO_TRIAL), place


# An entry that uses a word


USE = MappingKey("use", TEXT, "The word itself, where the entry carries something else, too.")


def _use_rule(given: GivenFields) -> UseRule:
    common = _common_fields(given, given.place)
    return UseRule(*common, given.names[0], given.names[-1], given.text_of(USE))


def use_entries(words: ValueType[str], name: str) -> EntryType[UseRule]:
    """``WORD`` or ``{use: WORD}``, or alternatives of these. *name* tells it from others in the
    ``$defs`` of a JSON Schema."""
    key = MappingKey(USE.name, words, USE.sentence)
    return AlternativeEntries(ShortEntry(key, COMMON_KEYS, _use_rule, name), f"{name}_list")


# Environment variables

_NO_EFFECT = {
    "default": "no effect here: a default never replaces a value that is set",
    DELETE_EMPTY: "no effect here: the empty text is deleted, whoever set it",
}
ENV_DEFAULT = MappingKey(
    "default", ENV_VALUE, "The variable gets this value only if it is not set."
)
ENV_SET = MappingKey(
    "set", ENV_VALUE, "The variable gets this value, whatever its value is, unless a user set it."
)
ENV_INSIST = MappingKey(
    "insist",
    TrueOrFalse(),
    "With delete or set. If true, the rule overrides a value that a user gave, too.",
    _NO_EFFECT,
)
IMAGE_ONLY = MappingKey(
    "image_only",
    TrueOrFalse(),
    "With delete or set. If true, and there is no baseline, a variable that is set is not "
    "changed. It is for variables that no known image sets.",
    _NO_EFFECT,
)


def _env_rule(given: GivenFields) -> EnvRule:
    value = {ENV_DEFAULT.name: ENV_DEFAULT, ENV_SET.name: ENV_SET}.get(given.kind)
    return EnvRule(
        *_common_fields(given, given.place),
        name=given.names[-1],
        action=given.kind,
        value=given.text_of(value) if value else None,
        insist=given.value_of(ENV_INSIST) is True,
        image_only=given.value_of(IMAGE_ONLY) is True,
    )


ENV_RULE = KindEntry(
    (
        MappingKey(
            "delete", FixedValue(True, "true"), "The variable is removed, unless a user set it."
        ),
        ENV_DEFAULT,
        ENV_SET,
        MappingKey(
            DELETE_EMPTY,
            FixedValue(True, "true"),
            "The variable is removed if it is set to nothing (`NAME=`), whoever set it. Other "
            "rules for it stand beside this one, and see it as unset.",
        ),
    ),
    (ENV_INSIST, IMAGE_ONLY, *COMMON_KEYS),
    _env_rule,
    contradictory=(ENV_INSIST, IMAGE_ONLY),
    shared_as="variable_rule",
)


# Config values

STRENGTHS = (
    MappingKey(
        "default",
        CONFIG_VALUE,
        "What a program reads if nothing else sets the key. Its own writes, mode=, options= and "
        "the variable of yields_to win. `cpus` is a number, the compile workers that the process "
        "has CPUs for.",
    ),
    MappingKey(
        "set",
        CONFIG_VALUE,
        "The value is written once, as by the first line of the program. Later writes win.",
    ),
    MappingKey("pin", CONFIG_VALUE, "The value that every thread reads. No write changes it."),
)
YIELDS_TO = MappingKey(
    "yields_to",
    VARIABLE_NAME,
    "With default. An environment variable; if it is set, the user has decided about this key, "
    "and the entry is skipped.",
    {kind: f"only a default can have yields_to, this is a {kind}" for kind in ("set", "pin")},
)
SWITCH = MappingKey(
    "switch",
    VARIABLE_NAME,
    "An environment variable that gives another value, read as the type of the value. If it can't "
    "be read so, that is an error in the report, and the key is left alone.",
)
PIN_INSIST = MappingKey(
    "insist",
    TrueOrFalse(),
    "With pin. If true, the pin replaces a pin of a more general layer, which otherwise is an "
    "error.",
    {kind: f"only a pin can have insist, this is a {kind}" for kind in ("default", "set")},
)


def _config_entry(given: GivenFields) -> ConfigEntry:
    _, module, key = given.names
    strength = next((one for one in STRENGTHS if one.name == given.kind), None)
    value = given.value_of(strength) if strength else None
    if given.text_of(SWITCH) and not isinstance(value, (bool, int, float, str)):
        message = "a switch needs a value that is a boolean, a number or a text"
        given.add_problem(SWITCH.name, message)
    return ConfigEntry(
        *_common_fields(given, given.place),
        module=module,
        key=key,
        strength=given.kind,
        value=value,
        yields_to=given.text_of(YIELDS_TO),
        switch=given.text_of(SWITCH),
        insist=given.value_of(PIN_INSIST) is True,
        sound=given.is_sound,
    )


CONFIG_ENTRY = KindEntry(
    STRENGTHS,
    (YIELDS_TO, SWITCH, PIN_INSIST, *COMMON_KEYS),
    _config_entry,
    shared_as="config_entry",
)


# Patches

# The types of settings of a patch that has several: patches name them in SETTINGS.
SETTING_TYPES: dict[str, ValueType[float | bool | None]] = {
    "seconds or off": DurationValue(False),
    "seconds or null": DurationValue(None),
    "switch": TrueOrFalse(),
}
SETTING_SENTENCES = {
    "watchdog.warn_after": "How long a compile may last before the watchdog writes a line.",
    "watchdog.dump_stacks": "If true, the line comes with the stacks of all threads.",
    "watchdog.abort_after": "How long a compile may last before it is ended.",
}


def _setting_rule(
    given: GivenFields, name: str, value: float | bool | None, place: Node
) -> UseRule:
    common = _common_fields(given, place)
    return UseRule(*common, given.names[0], f"{given.names[-1]}.{name}", value)


def _patch_sections() -> Iterator[PolicySection[UseRule]]:
    """A key for each patch that a policy can set: the patch's file says what it may have."""
    for name in patches.NAMES:
        patch = patches.load(name)
        # Its first sentence is what the list of patches says, too.
        said = (patch.__doc__ or patch.TITLE).partition("\n\n")[0].replace("\n", " ")
        entry: EntryType[UseRule]
        if name in patch.SETTINGS:
            entry = use_entries(SwitchWord(patch.SETTINGS[name]), name)
        elif patch.SETTINGS:
            settings = tuple(
                MappingKey(
                    setting.partition(".")[2],
                    SETTING_TYPES[kind],
                    SETTING_SENTENCES.get(setting, said),
                )
                for setting, kind in patch.SETTINGS.items()
            )
            entry = AlternativeEntries(SettingsEntry(settings, COMMON_KEYS, _setting_rule, name))
        else:
            continue
        yield PolicySection(name, entry, said)


PATCHES = tuple(_patch_sections())
_PATCH_NAMES = tuple(section.name for section in PATCHES)


# What a policy changes. Each section is a part of Policy.entries.

SECTIONS: tuple[PolicySection[Common], ...] = (
    PolicySection(
        "env",
        NamedEntries(
            "VARIABLE",
            AlternativeEntries(ENV_RULE),
            _env_name_problems,
            {**VARIABLE_NAME.limits, "not": {"pattern": f"^{_OUR_VARIABLES}"}},
        ),
        "Environment variables, by name.",
    ),
    PolicySection(
        "config",
        NamedEntries(
            "MODULE",
            NamedEntries("KEY", AlternativeEntries(CONFIG_ENTRY), shared_as="config_keys"),
            known=config_values.TARGETS,
            unknown=f"not one of the config modules {', '.join(config_values.TARGETS)}",
            sentence="The keys of this module.",
        ),
        "Values of torch's config modules, by module and key. A key is written as it is in the "
        "module, such as triton.cudagraphs.",
    ),
    PolicySection(
        "compile_modes",
        NamedEntries(
            "MODE",
            use_entries(SwitchWord(compile_modes.USES), "mode_use"),
            known=compile_modes.MODES,
            unknown=f"not a mode of torch.compile, which has {', '.join(compile_modes.MODES)}",
        ),
        "What a mode of torch.compile stands for, by mode.",
    ),
    PolicySection(
        "patches",
        KeyedEntries(
            PATCHES,
            f"not a patch that a policy can set; those are {', '.join(_PATCH_NAMES)}",
            use_entries(TEXT, ""),
        ),
        "Changes to torch's code, by patch.",
    ),
    PolicySection(
        "caches",
        use_entries(
            SwitchWord(CACHE_WORDS, CACHE_ROOT, "the absolute path of a root"), "cache_use"
        ),
        "Whether the caches of compiled code are kept beneath one root, and where.",
    ),
)


def entry_names() -> Iterator[str]:
    """The names of entries that are known: those of variables and config keys are not."""
    for section in SECTIONS:
        yield from section.type.known_names(section.name)


# Where a policy applies


def _condition_problem(name: str, text: str) -> str | None:
    return when.problem(name, text) if text else None


def _condition_type(name: str) -> ValueType[tuple[str, ...]]:
    if name in when.SETS:
        return SUBJECT_LIST
    problem = partial(_condition_problem, name)
    longest = {"maxLength": when.LONGEST}
    if name in when.RANGES:
        return TextTuple(PlainText(TEXT.said, problem, longest), several=False, shared_as="range")
    if name in when.GLOBS:
        pattern = r"^[^\[]*$"
        return TextTuple(PlainText(TEXT.said, problem, {**longest, "pattern": pattern}))
    if name == "accelerator":
        said = ", ".join(f"`{word}`" for word in when.ACCELERATORS)
        return TextTuple(PlainText(said, problem, {"enum": [*when.ACCELERATORS]}))
    return TextTuple(PlainText(TEXT.said, problem, longest), shared_as="words")


CONDITIONS = tuple(
    MappingKey(name, _condition_type(name), sentence)
    for name, sentence in {
        "accelerator": "What torch is built for, from torch/version.py.",
        "framework": "What is installed, or what the image's tag says, such as sglang.",
        "gfx": "The architecture of this machine's GPU, or the tag's, such as gfx942.",
        "repository": "The image's repository, such as rocm/sgl-dev. The registry does not count.",
        "proven": "Subjects that evidence for this machine proves to be sound, all of them.",
        "gains": "Subjects that evidence for this machine shows to gain, all of them.",
        "tag": "The image's tag, by a pattern in which * is any text and ? one character.",
        "date": "The date in the image's tag, as a range such as >=2026-02-01.",
        "framework_version": "The framework's version, as a range such as >=0.5.9.",
        "python": "The version of Python, as a range.",
        "rocm": "The version of ROCm, not HIP's, as a range.",
        "torch": "The version of torch, as a range such as >=2.6,<2.10.",
    }.items()
)


def _conditions(given: GivenFields) -> Conditions:
    read = {key.name: given.value_of(key) for key in CONDITIONS}
    return {name: wanted for name, wanted in read.items() if wanted is not None}


# Known issues, and what an image sets

ISSUE = MappingKey("issue", TEXT, "What is broken.")
SOURCE = MappingKey("source", TEXT, "Where that is known from.")
MITIGATION = MappingKey("mitigation", TEXT, "A built-in policy that helps.")
VALUE = MappingKey("value", TEXT, "The value that the image gives the variable.")
VALUE_WHY = MappingKey("why", TEXT, "How that is known.")


def _issue(given: GivenFields) -> Issue:
    return Issue(given.text_of(ISSUE), given.text_of(SOURCE), given.text_of(MITIGATION))


def _setting(given: GivenFields) -> Setting:
    return Setting(given.names[-1], given.text_of(VALUE), given.prose_of(VALUE_WHY))


# Files

FORM = MappingKey(
    "version",
    FixedValue(VERSION, f"{VERSION}, the schema that this release reads"),
    "The version of the form. This release reads 1.",
)
NAME = MappingKey(
    "name", TEXT, "What the policy is called in lines and reports. Without it, the file's name."
)
EXTENDS = MappingKey(
    "extends",
    TextTuple(TEXT),
    "The policies below this one, by built-in names or paths from this file. Without it, the "
    "policy is added on top of what applies here; with an empty list, it stands alone.",
)
DESCRIPTION = MappingKey("description", TEXT, "One sentence for people.")
WHEN = MappingKey(
    "when",
    FieldMapping(CONDITIONS, _conditions),
    "Where the policy applies. All conditions must hold; a condition on a fact that is not known "
    "does not hold.",
)
KNOWN_ISSUES = PolicySection(
    "known_issues",
    ShortEntries(ShortEntry(ISSUE, (SOURCE, MITIGATION), _issue)),
    "What is known to be broken where the policy or the record applies. `status` prints it.",
)
RECORD_NAME = MappingKey(
    "name", TEXT, "What the record is called. Without it, the image's reference."
)
IMAGE = MappingKey("image", TEXT, "The reference of the one image that the record is for.")
BASE = MappingKey(
    "policy", TEXT, "The built-in policy to start from. The most specific record decides."
)
SETS = PolicySection(
    "sets",
    NamedEntries(
        "VARIABLE", ShortEntry(VALUE, (VALUE_WHY,), _setting), _name_problems, VARIABLE_NAME.limits
    ),
    "Variables that the image itself sets, by name. It changes nothing; `explain` says it.",
)
# Keys of policies and of records
_PARTS: tuple[MappingKey[object], ...] = (DESCRIPTION, WHEN, *SECTIONS, KNOWN_ISSUES)


def _policy(given: GivenFields) -> Policy:
    return Policy(
        name=given.text_of(NAME),
        file=given.reader.file,
        description=given.text_of(DESCRIPTION),
        extends=given.value_of(EXTENDS),
        when=given.value_of(WHEN) or {},
        entries={section.name: given.value_of(section) or () for section in SECTIONS},
        known_issues=given.value_of(KNOWN_ISSUES) or (),
        image=given.text_of(IMAGE),
        base=given.text_of(BASE),
        sets=given.value_of(SETS) or (),
        places=given.nodes,
    )


def _record(given: GivenFields) -> Policy:
    row = _policy(given)
    if isinstance(given.place.value, dict):
        if not ("image" in row.places or "when" in row.places):
            given.reader.add_problem(given.place, given.path, "image or when is missing")
        if not ("image" in row.places or "name" in row.places):
            given.reader.add_problem(given.place, given.path, "name is missing")
    return replace(row, name=row.name or row.image)


_ELSEWHERE = dict.fromkeys(_PATCH_NAMES, "patches")
POLICY_FILE = FieldMapping(
    (FORM, NAME, EXTENDS, *_PARTS), _policy, ("version",), elsewhere=_ELSEWHERE
)
RECORD = FieldMapping(
    (RECORD_NAME, IMAGE, BASE, SETS, *_PARTS),
    _record,
    elsewhere=_ELSEWHERE,
    limits={"anyOf": [{"required": ["image"]}, {"required": ["when", "name"]}]},
)
RECORDS = MappingKey("images", ListOf(RECORD), "What is known of images, from general to specific.")
IMAGES_FILE = FieldMapping(
    (FORM, RECORDS), lambda given: given.value_of(RECORDS) or (), ("version", "images")
)
