"""Sphinx's configuration of the documentation site, which ``make site`` builds.

The sources are what a reader of the repository has, too: docs/*.md, research/*.md, the list of
experiments and five files of the root. So they are plain Markdown, without a directive of Sphinx.
toc.yml says in which order they stand.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.transforms import SphinxTransform

project = "rocm_autopatch"
author = "the authors of rocm_autopatch"
# The version that is installed where the site is made: `make site` installs this checkout.
version = release = metadata.version("rocm_autopatch")

extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "tools/website/toc.yml"
external_toc_exclude_missing = False
include_patterns = [
    "docs/*.md",
    "research/*.md",
    "experiments/README.md",
    *("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md"),
]
exclude_patterns = [".*", "*.egg-info", "build", "dist"]

# The ids of headings are GitHub's, so a link works there and here. It has to: each warning is an
# error in `make site`.
myst_heading_anchors = 6
nitpicky = True
# Python's, shell's and YAML's blocks say so themselves. The others are what a program printed.
highlight_language = "text"

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["index.html"]
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# <a id="NAME"></a>, with which a row of a table has an address.
ANCHOR = re.compile(r'<a id="([\w.-]+)">')


class Anchors(SphinxTransform):
    """Lets links lead to ``<a id="NAME"></a>``, which MyST takes for HTML that it does not know."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        domain = self.env.get_domain("std")
        assert isinstance(domain, StandardDomain)
        for raw in list(self.document.findall(nodes.raw)):
            if found := ANCHOR.fullmatch(raw.astext()):
                name = found[1]
                raw.replace_self(nodes.target("", "", ids=[name], names=[name]))
                # By its page, too: names are unique in a page only.
                domain.anonlabels[f"{self.env.docname}#{name}"] = (self.env.docname, name)


def setup(app: Sphinx) -> None:
    """Sphinx calls this when it has read the configuration."""
    app.add_transform(Anchors)
