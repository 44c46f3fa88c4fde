"""The facts about a release are the same in every place."""

import re

from source_tree import ROOT, text


def test_the_citation_has_the_version_of_the_package():
    package = re.search(
        r'^__version__ = "(.+)"$',
        text(ROOT / "jax_optireduce/__init__.py"),
        re.MULTILINE,
    )
    citation = re.search(r"^version: (.+)$", text(ROOT / "CITATION.cff"), re.MULTILINE)
    assert package.group(1) == citation.group(1)
