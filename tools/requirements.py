"""Prints the packages that a build of the project without isolation needs.

    python tools/requirements.py test > requirements.txt

These are the requirements of the build, of the package, and of the named extras, from
pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints one requirement per line."""
    root = Path(__file__).parent.parent
    with (root / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    project = settings["project"]
    extras = project["optional-dependencies"]
    found = settings["build-system"]["requires"] + project["dependencies"]
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
