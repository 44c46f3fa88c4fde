"""One folder may use private names of JAX."""

import ast

from source_tree import files, relative, text


def _private_uses(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        found += [
            f"{node.lineno}: {name}"
            for name in names
            if name.split(".")[0] in ("jax", "jaxlib")
            and any(
                part.startswith("_") and not part.endswith("__")
                for part in name.split(".")
            )
        ]
    return found


def test_only_one_folder_uses_private_names_of_jax():
    found = [
        f"{relative(path)}:{use}"
        for path in files(".py")
        if path.parent.name != "_jax"
        for use in _private_uses(text(path))
    ]
    assert not found, f"private names of JAX, move to _jax: {found}"


def test_the_rule_sees_private_imports_and_attributes():
    assert _private_uses("from jax._src import core") == ["1: jax._src.core"]
    assert _private_uses("import jax\njax._src.core") != []
    assert _private_uses("import jax\njax.lax.psum, jax.__version__") == []
