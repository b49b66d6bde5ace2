"""The documentation site: ``make docs`` builds it into ``build/docs``, and a warning fails it.

The pages are plain Markdown that reads well on a code host too, so what only the site needs is not written as
a directive: a comment ``<!-- {directive} ... -->`` becomes one here and stays invisible there, and
the links of a page of contents are the navigation.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from airflow_provider_eaco import __version__  # noqa: E402 # found by the line above

project = "airflow-provider-eaco"
release = version = __version__
html_title = f"EaCO for Airflow {release}"
copyright = "the authors of airflow-provider-eaco, Apache-2.0"  # noqa: A001 # Sphinx's own name

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["reference/grafana-dashboard.json"]

_DIRECTIVE = re.compile(r"<!-- (\{[a-z-]+\}.*?)-->", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^):#\s]+)\)")
_PAGE = re.compile(r"\]\(([^):#\s]+)\.md(?:#[^)]*)?\)")


def setup(app: Sphinx) -> None:
    """Connect what makes a site of the plain pages."""
    app.connect("source-read", _prepare)
    app.add_lexer("csv", TextLexer)


def _prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make comments directives, links of a page of contents navigation, and links that lead nowhere text."""
    folder, _, name = docname.rpartition("/")
    text = _DIRECTIVE.sub(r"```\1\n```\n", source[0])
    text = _LINK.sub(
        lambda link: link[0] if _is_on_site(Path(app.srcdir), folder, link[2]) else link[1], text
    )
    if name in {"index", "README"}:
        linked = (os.path.normpath(f"{folder}/{page}").lstrip("/") for page in _PAGE.findall(text))
        own = [page for page in dict.fromkeys(linked) if _is_below(folder, page)]
        text += "\n".join(["\n```{toctree}", ":hidden:", "", *(f"/{page}" for page in own), "```\n"])
    source[0] = text


def _is_on_site(docs: Path, folder: str, target: str) -> bool:
    """Tell whether the site has what a link leads to: it has no folders, and no pages from beyond its own."""
    path = (docs / folder / target).resolve()
    return not path.is_dir() and (path.suffix != ".md" or docs.resolve() in path.parents)


def _is_below(folder: str, page: str) -> bool:
    """Tell whether a page stands right below the page of contents of the folder."""
    if page.startswith(".."):
        return False
    parent, _, name = page.rpartition("/")
    return parent == folder or (name == "README" and parent.rpartition("/")[0] == folder)
