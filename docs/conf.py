"""Sphinx: the Markdown pages of this repository, unchanged, as a site.

    make docs

The source folder is the repository, so that links between `README.md`, `docs/` and the
pages beside them stay as they are. `docs/index.md` is the one home of the navigation:
its headings and tables become the sections of the side bar. `docs/api.md` names the
public objects; the site adds their docstrings.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
# The package is imported for its docstrings, from the checkout, without a compiler.
sys.path.insert(0, str(ROOT))
autodoc_mock_imports = ["jax_optireduce._native"]

project = "jax_optireduce"
author = "The jax_optireduce authors"
project_copyright = author
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

root_doc = "README"
exclude_patterns = [".*", "build", "dist", "third_party"]
include_patterns = [
    "*.md",
    "docs/**.md",
    "benchmarks/README.md",
    "examples/README.md",
    "ffi/sim/README.md",
]

smartquotes_action = "De"  # Dashes and ellipses; quotes are those of Python.

# GitHub's anchors, for all levels of headings.
myst_heading_anchors = 6

# In docstrings a name in backquotes is a link if it is documented, and code if not.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],  # The side bar has the search.
    "show_navbar_depth": 1,
    "show_toc_level": 2,
}
copybutton_exclude = ".linenos, .gp, .go"

_LINK = re.compile(r"\]\(([^)\s#]+\.md)\)")
_VERB = re.compile(r"^\| `python -m jax_optireduce (\w+)` \|", re.MULTILINE)
# A row of two columns; options have three.
_PUBLIC_NAME = re.compile(r"^\| `([\w.]+)` \|[^|]*\|$", re.MULTILINE)


def _sections(text: str) -> list[tuple[str, str]]:
    """Returns heading and body of each section of the second level."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _toctree(caption: str, folder: str, body: str) -> str:
    """Returns a hidden table of contents of the linked pages, as MyST."""
    targets = dict.fromkeys(_LINK.findall(body))
    pages = "\n".join(f"/{folder}{target}" for target in targets)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def _navigation() -> str:
    """Returns the side bar: a section for each heading of docs/index.md."""
    index = (ROOT / "docs/index.md").read_text()
    found = [_toctree("Overview", "", "](docs/index.md)")]
    found += [_toctree(name, "docs/", body) for name, body in _sections(index)]
    return "".join(found)


def _kind(name: str) -> str:
    """Returns the kind of a public name: "module", "class" or "function"."""
    place = ROOT / "jax_optireduce" / name
    if place.is_dir() or place.with_suffix(".py").is_file():
        return "module"
    return "class" if name.rpartition(".")[2][0].isupper() else "function"


def _with_docstrings(text: str) -> str:
    """Returns docs/api.md with the docstrings of the names below each table."""
    found = [text.split("\n## ", 1)[0]]
    for heading, body in _sections(text):
        found += [f"## {heading}\n", body, "```{eval-rst}"]
        for name in _PUBLIC_NAME.findall(body):
            kind = _kind(name)
            members = ["   :members:"] if kind == "class" else []
            found += [f".. auto{kind}:: jax_optireduce.{name}", *members, ""]
        found.append("```")
        for verb in _VERB.findall(body):
            module = ast.parse((ROOT / f"jax_optireduce/tools/{verb}.py").read_text())
            found += [f"### {verb}\n\n```text", ast.get_docstring(module) or "", "```"]
    return "\n".join(found)


def _with_folder_pages(page: str, text: str) -> str:
    """Returns the text with links to folders as GitHub shows them: to their README."""
    here = (ROOT / page).parent

    def lead(match: re.Match[str]) -> str:
        folder = match.group(1)
        found = (here / folder / "README.md").is_file()
        return f"]({folder}/README.md)" if found else match.group()

    return re.sub(r"\]\(([\w./]+)\)", lead, text)


def _complete(_app: Sphinx, page: str, source: list[str]) -> None:
    """Adds to a page the parts that only the site has."""
    source[0] = _with_folder_pages(page, source[0])
    if page == root_doc:
        source[0] += _navigation()
    elif page == "docs/api":
        source[0] = _with_docstrings(source[0])
    elif page == "docs/decisions/index":
        folder = page.removesuffix("index")
        links = "".join(
            f"]({name})" for name in _LINK.findall(source[0]) if "/" not in name
        )
        source[0] += _toctree("Pages", folder, links)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the functions above to Sphinx."""
    app.connect("source-read", _complete)
    return {"parallel_read_safe": True}
