"""Prints the packages that a build of the project without isolation needs.

    python tools/requirements.py test > requirements.txt

These are the requirements of the build, of the package, and of the named extras, from
pyproject.toml. The package's own requirement of JAX takes the place of the build's,
which pins the oldest supported release for its headers.
"""

import re
import sys
import tomllib
from pathlib import Path


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def main() -> None:
    """Prints one requirement per line."""
    root = Path(__file__).parent.parent
    with (root / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    project = settings["project"]
    extras = project["optional-dependencies"]
    found = list(project["dependencies"])
    own = {_name(requirement) for requirement in found}
    found += [r for r in settings["build-system"]["requires"] if _name(r) not in own]
    pending = list(sys.argv[1:])
    while pending:
        for requirement in extras[pending.pop()]:
            own_extra = requirement.removeprefix(f"{project['name']}[")
            if own_extra != requirement:
                pending += own_extra.removesuffix("]").split(",")
            else:
                found.append(requirement)
    sys.stdout.write("\n".join(dict.fromkeys(found)) + "\n")


if __name__ == "__main__":
    main()
