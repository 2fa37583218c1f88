"""Sphinx configuration. The build runs with every warning an error (scripts/check)."""

from sphinx.application import Sphinx

import devmem

project = "devmem"
copyright = "devmem developers"
author = "devmem developers"
release = version = devmem.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
napoleon_google_docstring = False

# "dtype" as the type of a parameter means NumPy's; that several classes of ours have such a property is no ambiguity.
suppress_warnings = ["ref.python"]

# Names of our own must resolve; those of Python and NumPy would need an inventory from the network.
nitpick_ignore_regex = [(r"py:.*", r"(?!devmem\b).*")]


# In the list beside a page its names stand under their class: with the class before each they are too long for a line.
toc_object_entries_show_parents = "hide"


def unlisted(app: object, what: str, name: str, obj: object, skip: bool, options: object) -> bool:
    """Whether a member is one that only devmem's own modules use, which ``dir`` does not list either, or one that each mapping of
    Python has; else as Sphinx says."""
    function = obj.fget if isinstance(obj, property) else obj
    if getattr(function, "__module__", None) == "collections.abc":
        return True
    owner, _, member = getattr(function, "__qualname__", "").rpartition(".")
    return True if member in getattr(getattr(devmem, owner, None), "_unlisted", ()) else skip


def setup(app: Sphinx) -> None:
    """Leave out of the reference what is not listed."""
    app.connect("autodoc-skip-member", unlisted)


html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines the modules of imports, as if they were links
html_title = f"devmem {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
