"""Types of arguments, for type checkers and their users' editors.

The values of each `Literal` are those of the extension module:
tests/unit/test_argument_types.py compares them.
"""

from typing import Literal, TypeVar

# The type of a tree, which a call returns as it got it.
Tree = TypeVar("Tree")

Backend = Literal["optireduce", "xla"]

# Policies for late data: see `CallArguments`.
Mode = Literal["exact", "bounded", "agreed", "lossy"]

# Formats of float32 values on the wire: see `CallArguments`.
WireFormat = Literal["float32", "bfloat16", "int8", "auto", "float4"]

# Protection of datagrams: see `Options.security`.
Security = Literal["authenticated", "encrypted", "none"]
