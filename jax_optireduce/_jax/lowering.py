"""The lowering of calls: devices, names of equations, custom calls.

Custom calls have a title in a profile; host computations return to the device.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jax_optireduce import _jax_version
from jax_optireduce._errors import UsageError
from jax_optireduce._jax_version import explained

try:
    from jax.core import ShapedArray
    from jax.experimental import compute_on as _compute_on
    from jax.extend.core import Primitive, Var
    from jax.interpreters import mlir
except ImportError as missing:
    raise ImportError(_jax_version.moved(missing)) from missing

try:
    from jaxlib.mlir import ir as _ir
except ImportError:  # Calls have no title in a profile.
    _ir = None

try:
    from jax._src import source_info_util as _source
except ImportError:  # Messages have no place in the source.
    _source = None

# Attributes of the donated arguments of a program.
_DONATED = ("jax.buffer_donor", "tf.aliasing_output")

# Primitives whose arguments are those of their jaxpr, and such that leave the bytes of
# an array as they are.
_WITH_BODY = ("jit", "pjit", "shard_map")
_SAME_BYTES = ("reshape", "squeeze")

# Keys of our entries in JAX's cache of a module during its lowering.
_ORDINALS = "jax_optireduce.ordinals"
_SEEN = "jax_optireduce.program"


@explained
def lowering_mesh(ctx: Any) -> jax.sharding.Mesh:
    """Returns the devices of the program under lowering.

    Raises:
      UsageError: the program is lowered without devices.
    """
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if not isinstance(mesh, jax.sharding.Mesh):
        raise UsageError(
            "a collective was lowered without a mesh of devices; call it inside "
            "jax.shard_map with a concrete mesh (or jax.pmap), not while exporting."
        )
    return mesh


@explained
def abstract_mesh(ctx: Any) -> Any:
    """Returns the mesh of the operands of an equation under lowering."""
    # The last one is a leaf.
    mesh = ctx.avals_in[-1].sharding.mesh
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


@explained
def devices_of_compiler(ctx: Any) -> int:
    """Returns the number of devices over which the compiler divides the program."""
    return getattr(ctx.module_context.axis_context, "num_devices", None) or 1


@explained
def automatic_axes(ctx: Any, shape: Iterable[str]) -> tuple[str, ...]:
    """Returns those of the axes of a mesh that are not manual in the program."""
    manual = getattr(ctx.module_context.axis_context, "manual_axes", ())
    return tuple(name for name in shape if name not in manual)


@explained
def next_ordinal(ctx: Any, key: str) -> int:
    """Returns the number of equations with `key` lowered in this module before."""
    ordinals = ctx.module_context.lowering_cache.setdefault(_ORDINALS, {})
    ordinals[key] = ordinals.get(key, -1) + 1
    return ordinals[key]


def enclosing_equations() -> tuple[list[Any], Any]:
    """Returns the equations around the one that JAX is lowering, and the whole jaxpr.

    The context of a rule has neither; both are on the stack of JAX. Without them, in a
    release with other names, the result is ([], None).

    Returns:
      The equations, innermost first, and the jaxpr of the module.
    """
    code = getattr(getattr(mlir, "jaxpr_subcomp", None), "__code__", None)
    equations, program = [], None
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and "eqn" in frame.f_locals:
            equations.append(frame.f_locals["eqn"])
            program = frame.f_locals.get("jaxpr")
        frame = frame.f_back
    return equations, program


class Scan(NamedTuple):
    """The parts of a scan.

    Attributes:
      turns: their number.
      body: the jaxpr of a turn.
      constants: number of inputs of the body that are the same in each turn.
      carried: number of the next inputs, and of the first outputs: carried values.
    """

    turns: int
    body: Any
    constants: int
    carried: int


def scan_of(equation: Any) -> Scan | None:
    """Returns the parts of a scan, or None of another equation."""
    if equation.primitive.name != "scan":
        return None
    params = equation.params
    body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    if "num_consts" in params:
        return Scan(params["length"], body, params["num_consts"], params["num_carry"])
    # JAX 0.12 has trees of the inputs.
    parts = params["ft_in"].update(range(len(equation.invars))).unpack()
    constants, carried = (len(list(part)) for part in parts[:2])
    return Scan(params["length"], body, constants, carried)


def place(equation: Any) -> str:
    """Returns "file:line (function)" of the code that made an equation."""
    if _source is None:
        return "(unknown)"
    path, *line = _source.summarize(equation.source_info).rpartition(":")
    return f"{Path(path).name}{''.join(line)}"


def program(ctx: Any) -> Any:
    """Returns the jaxpr under lowering; None if it was returned before."""
    cache = ctx.module_context.lowering_cache
    if _SEEN in cache:
        return None
    cache[_SEEN] = True
    _, whole = enclosing_equations()
    return whole


@explained
def without_manual_types(ctx: Any) -> Any:
    """Returns `ctx` with inputs of plain types, for the lowering of local code."""
    plain = [ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    return ctx.replace(avals_in=plain)


@explained
def on_host(function: Callable[..., Any], *operands: Any) -> Any:
    """Calls a function as a host computation; its results are on the device again.

    All results are used together: the compiler would otherwise move one without a user
    to the next host computation, and in a program for one device the result of this one
    has then a shape that does not fit (JAX 0.11.2, CUDA 13).
    """
    # JAX 0.10 has another name for it.
    wrap: Any = getattr(_compute_on, "compute_on2", _compute_on.compute_on)
    call = wrap(
        function,
        compute_type="device_host",
        out_memory_spaces=jax.memory.Space.Device,
    )
    return jax.lax.optimization_barrier(call(*operands))


def kept_operands(ctx: Any) -> set[int]:
    """Returns the operands of the equation under lowering that its program keeps.

    They are arguments of the program that are not donated. An operand of which this is
    unknown, as in a loop, is not in the result.
    """
    equations, program = enclosing_equations()
    if not equations or program is None:
        return set()
    bodies = [*map(_body, equations[1:]), program]
    if not all(bodies):
        return set()
    outer = [*equations[1:], None]
    kept = set()
    for i, given in enumerate(equations[0].invars):
        operand, number = given, None
        for body, equation in zip(bodies, outer, strict=True):
            number = _argument(operand, body)
            if number is None:
                break
            operand = equation.invars[number] if equation is not None else operand
        if number is not None and not _is_donated(ctx, number - len(program.invars)):
            kept.add(i)
    return kept


def _body(equation: Any) -> Any:
    """Returns the jaxpr whose arguments are those of an equation, or None."""
    if equation.primitive.name not in _WITH_BODY:
        return None
    body = equation.params["jaxpr"]
    return getattr(body, "jaxpr", body)


def _argument(operand: Any, body: Any) -> int | None:
    """Returns the position of an operand among the arguments of a jaxpr, or None."""
    producers = {out: x for x in body.eqns for out in x.outvars}
    while isinstance(operand, Var) and operand in producers:
        if producers[operand].primitive.name not in _SAME_BYTES:
            return None
        operand = producers[operand].invars[0]
    found = [i for i, x in enumerate(body.invars) if x is operand]
    return found[0] if found else None


def _is_donated(ctx: Any, number: int) -> bool:
    """Whether an argument of the program is donated; counted from the last one, -1."""
    for operation in ctx.module_context.module.body.operations:
        found = operation.operation.attributes
        if "sym_name" in found and found["sym_name"].value == "main":
            if "arg_attrs" not in found:
                return False
            # The first arguments may be tokens.
            given = str(list(found["arg_attrs"])[number])
            return any(name in given for name in _DONATED)
    return True


def ffi_call(
    target: str,
    results: Sequence[Any],
    title: str,
    aliases: dict[int, int] | None = None,
) -> Callable[..., list[Any]]:
    """Returns a function that calls a handler, like `jax.ffi.ffi_call`.

    XLA names the instruction, and so the event of a profile, after the location of the
    operation: there it is "ffi_call" for every call of every package.

    Args:
      target: the name of the handler, which may have side effects.
      results: shape and dtype of each result.
      title: of the call in a profile; XLA writes "_" for other characters than letters
        and digits.
      aliases: operand -> result that has its memory.
    """
    types = tuple(ShapedArray(x.shape, x.dtype) for x in results)
    rule = jax.ffi.ffi_lowering(
        target, has_side_effect=True, operand_output_aliases=dict(aliases or {})
    )

    def call(*operands: Any, **attributes: Any) -> list[Any]:
        def lower(ctx: Any, *operands: Any) -> Any:
            with _titled(title, ctx.name_stack):
                return rule(ctx, *operands, **attributes)

        return _ffi_call_p.bind(*operands, types=types, lower=lower)

    return call


def _titled(title: str, scope: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the context of operations at the current place, with a title."""
    if _ir is None:
        return contextlib.nullcontext()
    place: Any = _ir.Location.current
    # The names that JAX has given it.
    while isinstance(place, _ir.NameLoc):
        place = place.child_loc
    # JAX writes such locations: the type of the operation, and its name in all scopes.
    scoped = _ir.Location.name(f"{scope}/{title}".lstrip("/"), childLoc=place)
    return _ir.Location.name(f"{title}:", childLoc=scoped)


_ffi_call_p = Primitive("optireduce_ffi_call")
_ffi_call_p.multiple_results = True
_ffi_call_p.def_abstract_eval(lambda *_, types, **__: list(types))
mlir.register_lowering(
    _ffi_call_p,
    lambda ctx, *operands, lower, **_: lower(ctx, *operands),
    cacheable=False,
)
