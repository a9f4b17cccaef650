"""How Sphinx builds the site; `python -m tools.site` gathers what it reads."""

from __future__ import annotations

from typing import Any

from sinkscope import __version__
from sinkscope.theme import BLUE, DARK, FONT, MONO
from tools.site.text import restructured

project, version, release = "sinkscope", __version__, __version__
author = copyright = "The sinkscope authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
nb_execution_mode = "off"  # tutorials show the output that is stored in them
nb_output_stderr = "remove"  # progress
nitpicky = True
# Types in signatures are of other libraries, or private. Links between pages and names are all checked; those to other
# sites need a network, which `python -m sphinx -b linkcheck` has and this build has not.
nitpick_ignore_regex = [("py:class", ".*")]

myst_heading_anchors = 4
myst_enable_extensions: list[str] = []

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"sinkscope {__version__}"
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
templates_path = ["templates"]
_fonts = {"font-stack": FONT, "font-stack--monospace": MONO}
html_theme_options = {
    "light_css_variables": {"color-brand-primary": BLUE, "color-brand-content": BLUE, **_fonts},
    "dark_css_variables": {"color-brand-primary": DARK[BLUE], "color-brand-content": DARK[BLUE], **_fonts},
}


def _plain(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Docstrings are plain English, not reStructuredText."""
    lines[:] = restructured(lines)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon, which reads what is left
