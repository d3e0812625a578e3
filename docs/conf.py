"""The site: every page of the repository, read where it lies, so that links hold in both places.

Its sources begin at the repository's root, and pages link one another by their files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "trmcloud"
copyright = "the authors of trmcloud"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "ci/*.md", "docs/**"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_links_external_new_tab = True

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "trmcloud"
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)  # drawn by those who show the pages where they lie
    app.connect("autodoc-process-docstring", _keep_trees_as_drawn)
    app.connect("build-finished", _lead_to_the_first_page)


def _keep_trees_as_drawn(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """A drawn tree in a docstring is shown as it stands."""
    drawn = next((at for at, line in enumerate(lines) if "├──" in line), 0)
    if drawn:
        lines[drawn - 1 : drawn - 1] = ["::", ""]


def _lead_to_the_first_page(app: Any, error: Exception | None) -> None:
    """The site's own address shows what ``root_doc`` is, which lies one folder below it."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><meta charset="utf-8"><title>trmcloud</title>\n'
        page += f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        page += f'<a href="{root_doc}.html">trmcloud</a>\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")
