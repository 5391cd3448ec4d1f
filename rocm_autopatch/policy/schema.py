"""The reader of policies and images files: it goes by the table in ``grammar``.

It collects every problem it meets instead of stopping at the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from rocm_autopatch.policy import grammar
from rocm_autopatch.policy.document import WRONG, Node
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.problem import Hint, Problem, Problems, collected, quoted, similar_name
from rocm_autopatch.policy.value_types import describe_value


def read_policy(root: Node, file: str, name: str, problems: Problems | None = None) -> Policy:
    """The policy in a document; *name* where the document gives none.

    Without *problems* to add to, raises PolicyError.
    """
    with collected(problems) as into:
        policy = grammar.POLICY_FILE.read_value(PolicyReader(into, file), root, "")
        return policy if "name" in policy.places else replace(policy, name=name)


def read_images(root: Node, file: str, problems: Problems | None = None) -> tuple[Policy, ...]:
    """The rows of an images file, general to specific as they stand there.

    Without *problems* to add to, raises PolicyError.
    """
    with collected(problems) as into:
        return grammar.IMAGES_FILE.read_value(PolicyReader(into, file), root, "")


class PolicyReader:
    """Reads the kinds of node that a document has, and adds a problem where another one stands."""

    def __init__(self, problems: Problems, file: str) -> None:
        self.problems = problems
        self.file = file
        # The number of problems, including those that the reader of the document reported
        self.wrong = 0

    def add_problem(self, node: Node, path: str, message: str, hint: Hint | None = None) -> None:
        """Add a problem at a node, if the reader of the document has not added one there."""
        self.wrong += 1
        if node.value is not WRONG:
            self.problems.add(Problem(self.file, node.line, node.column, path, message), hint)

    def add_expected(self, node: Node, path: str, what: str) -> None:
        """Add the problem that a node is not *what*."""
        self.add_problem(node, path, f"expected {what}, found {describe_value(node)}")

    def add_unknown_name(
        self, node: Node, path: str, message: str, name: str, known: Iterable[str]
    ) -> None:
        """Add a problem that ends with the most similar one of the names that are *known*."""
        self.add_problem(node, path, message, partial(similar_name, name, tuple(known)))

    def read_mapping(self, node: Node, path: str) -> Iterator[tuple[str, Node, Node, str]]:
        """Key, the key's node, value's node and path of each entry."""
        if not isinstance(node.value, dict):
            self.add_expected(node, path, "a mapping")
            return
        for key, entry in node.value.items():
            yield key, entry.key, entry.node, f"{path}.{key}" if path else key

    def read_fields(
        self,
        node: Node,
        path: str,
        known: Iterable[str],
        required: Iterable[str] = (),
        elsewhere: Mapping[str, str] | None = None,
    ) -> dict[str, Node]:
        """The nodes of those keys of a mapping that are *known*.

        *elsewhere* has names that are no keys here, but below the key that it gives for them.
        """
        known = tuple(known)
        fields = {}
        for key, key_node, value, inner in self.read_mapping(node, path):
            if key in known:
                fields[key] = value
            elif elsewhere and key in elsewhere:
                message = f"unknown key here: it belongs under {elsewhere[key]}"
                self.add_problem(key_node, inner, message)
            else:
                self.add_unknown_name(key_node, inner, "unknown key", key, known)
        if isinstance(node.value, dict):
            for key in required:
                if key not in node.value:
                    self.add_problem(node, path, f"{key} is missing")
        return fields

    def list_items(self, node: Node, path: str) -> list[tuple[Node, str]]:
        """Each item of a list, and its path."""
        if not isinstance(node.value, list):
            self.add_expected(node, path, "a list")
            return []
        return [(item, f"{path}[{number}]") for number, item in enumerate(node.value)]

    def read_text(self, node: Node, path: str) -> str:
        """A text, "" where there is none."""
        if isinstance(node.value, str):
            return node.value
        advice = ": put it in quotes" if isinstance(node.value, (bool, int, float)) else ""
        self.add_problem(node, path, f"expected a text, found {describe_value(node)}{advice}")
        return ""

    def read_choice(
        self, node: Node, path: str, known: Iterable[str], more: tuple[str, ...] = ()
    ) -> str:
        """One of the words *known*. *more* is what else may stand there, for the message."""
        known = tuple(known)
        text = self.read_text(node, path)
        if text and text not in known:
            message = f"{quoted(text)} is not one of {', '.join((*known, *more))}"
            self.add_unknown_name(node, path, message, text, known)
        return text
