"""The documentation site: it builds without a warning, it is whole, and a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from tests import chromium
from tests.conftest import ROOT

pytest.importorskip("sphinx", reason="no Sphinx: pip install '.[site]'")

from tools.website import check

ROOTS = (
    *("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"),
    *("RELEASING.md", "SECURITY.md", "CHANGELOG.md"),
)
# Folders of pages beside them. Of experiments/, the list alone is a page.
PAGES = ("docs/*.md", "research/*.md", "experiments/README.md")
# Widths of a wide and a narrow window, in pixels: a desktop, half of it, and a telephone.
WIDTHS = (1400, 900, 400)
# How wide the widest first column of a table is that has others.
FIRST_COLUMNS = """
const cells = [...document.querySelectorAll("table.docutils td:first-child:not(:last-child)")];
return Math.max(0, ...cells.map(cell => cell.getBoundingClientRect().width));
"""


def build(checkout: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.website.build", str(out)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    done = build(ROOT, out)
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.mark.slow
class TestPages:
    def test_every_page_is_there(self, site: Path) -> None:
        pages = [path for pattern in (*PAGES, *ROOTS) for path in ROOT.glob(pattern)]
        assert len(pages) > 20
        for page in pages:
            assert (site / page.relative_to(ROOT).with_suffix(".html")).is_file()

    def test_each_says_the_version(self, site: Path) -> None:
        for page in check.Site(site).pages:
            if page != site / "index.html":
                assert f"rocm_autopatch {metadata.version('rocm_autopatch')}</title>" in (
                    page.read_text(encoding="utf-8")
                ), page

    def test_a_link_to_a_row_of_a_table(self, site: Path) -> None:
        """GitHub's readers have an <a id>; here it is an id, too."""
        page = check.Site(site).pages[site / "docs" / "claims.html"]
        assert "hipblaslt-solver" in page.ids

    def test_whoever_opens_the_directory_gets_the_front_page(self, site: Path) -> None:
        page = (site / "index.html").read_text(encoding="utf-8")
        (target,) = re.findall(r"0; url=([\w/.]+)", page)
        assert (site / target).is_file()


@pytest.mark.slow
def test_faults_are_errors(tmp_path: Path) -> None:
    for name in ("docs", "evidence", "research", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("build.py", "check.py", "conf.py", "index.html", "style.css", "toc.yml"):
        (tmp_path / "tools" / "website").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tools" / "website" / name, tmp_path / "tools" / "website")
    for name in ROOTS:
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](nowhere.md) [b](policies.md#nowhere) [c](../policies/nowhere.yaml)\n")
        page.write("\n[d](images.md#nothing) [e](#nobody)\n")
    (tmp_path / "docs" / "unlisted.md").write_text("# Not in the order of pages\n")
    # The site of yesterday, which a faulty one does not replace.
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(ROOT / "tools" / "website" / "index.html", out)
    done = build(tmp_path, out)
    assert done.returncode == 1
    assert [path.name for path in out.iterdir()] == ["index.html"]
    faults = ("nowhere.md", "'nowhere'", "../policies/nowhere.yaml", "'nothing'", "'nobody'")
    for fault in (*faults, "unlisted.md"):
        assert fault in done.stderr, done.stderr


# The last: another project's site by Sphinx.
@pytest.mark.parametrize("name", ["letter", "index.html", ".buildinfo"])
def test_what_is_no_site_of_ours_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    done = build(ROOT, tmp_path)
    assert (done.returncode, (tmp_path / name).read_text()) == (1, "mine")
    assert f"{tmp_path} is no site of ours" in done.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = build(ROOT, tmp_path / "file" / "site")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the site can't be written" in done.stderr


def test_the_order_has_every_page_once() -> None:
    given = yaml.safe_load((ROOT / "tools" / "website" / "toc.yml").read_text())
    listed = [entry["file"] for part in given["subtrees"] for entry in part["entries"]]
    found = [path.relative_to(ROOT) for name in (*PAGES, *ROOTS) for path in ROOT.glob(name)]
    assert sorted([given["root"], *listed]) == sorted(str(path.with_suffix("")) for path in found)


class TestCheck:
    @pytest.fixture
    def small(self, tmp_path: Path) -> Path:
        (tmp_path / "a.html").write_text(
            '<link href="a.css"><h1 id="here">a</h1><a href="b.html#there">b</a>'
            '<a href="https://example.org/">out</a><img src="data:image/png;base64,AA">'
        )
        (tmp_path / "b.html").write_text('<a id="there" href="a.html#here">a</a><a href="#there">')
        (tmp_path / "a.css").write_text("a { background: url(a.html) }")
        return tmp_path

    def test_whole(self, small: Path) -> None:
        assert list(check.problems(small)) == []

    @pytest.mark.parametrize(
        ("file", "text", "said"),
        [
            ("b.html", '<a href="c.html">', "b.html: c.html: there is no such file"),
            ("b.html", '<a href="a.html#x">', "b.html: a.html#x: the page has no such place"),
            ("b.html", '<a href="#y">', "b.html: #y: the page has no such place"),
            ("b.html", '<a href="../out.html">', "b.html: ../out.html: there is no such file"),
            ("b.html", '<script src="//cdn/x.js">', "b.html: loads //cdn/x.js, which is elsewhere"),
            ("b.html", '<img src="d.png">', "b.html: d.png: there is no such file"),
            (
                "b.html",
                '<img srcset="a.css 1x, https://e.org/x.png 2x">',
                "b.html: loads https://e.org/x.png, which is elsewhere",
            ),
            (
                "b.html",
                '<p style="background: url(https://e.org/y)">',
                "b.html: loads https://e.org/y, which is elsewhere",
            ),
            (
                "a.css",
                '@import "https://e.org/z"',
                "a.css: loads https://e.org/z, which is elsewhere",
            ),
        ],
    )
    def test_not_whole(self, small: Path, file: str, text: str, said: str) -> None:
        (small / file).write_text(f'<i id="there">{text}')
        assert list(check.problems(small)) == [said]

    def test_nothing(self, tmp_path: Path) -> None:
        assert list(check.problems(tmp_path)) == [f"{tmp_path}: no page"]


@pytest.mark.slow
def test_in_a_browser(site: Path) -> None:
    with chromium.browser() as browser:
        browser.open(f"file://{site}/index.html")
        browser.wait("return location.pathname.endsWith('docs/index.html')")

        # Every page in three widths: what is too wide for it moves inside, not the page itself.
        for page in sorted(check.Site(site).pages):
            browser.open(f"file://{page}")
            for width in WIDTHS:
                browser.width(width)
                too_wide = browser.run_script(
                    "return document.documentElement.scrollWidth - window.innerWidth"
                )
                assert too_wide <= 0, (page, width)
            # The last one is a telephone: a table shows more there than its first column.
            assert browser.run_script(FIRST_COLUMNS) <= 0.6 * WIDTHS[-1], page
            loaded = browser.requests(f"file://{page}")
            assert loaded[0].endswith(page.name), loaded
            assert all(address.startswith(("file://", "data:")) for address in loaded), loaded
        assert browser.complaints() == []

        # Search needs neither a server nor a network.
        browser.open(f"file://{site}/search.html?q=watchdog")
        browser.wait("return document.querySelectorAll('#search-results li a').length > 3")
        found = "return [...document.querySelectorAll('#search-results li a')].map(a => a.href)"
        assert any("docs/watchdog.html" in address for address in browser.run_script(found))

        # Light, and dark where the reader's system is dark.
        colour = "return getComputedStyle(document.body).backgroundColor"
        browser.open(f"file://{site}/docs/measurements.html")
        light = browser.run_script(colour)
        plot = "return getComputedStyle(document.querySelector('img[src$=\".svg\"]')).filter"
        assert browser.run_script(plot) == "none"
        browser.dark()
        assert (light, browser.run_script(colour)) == ("rgb(255, 255, 255)", "rgb(19, 20, 22)")
        assert browser.run_script(plot).startswith("invert")
