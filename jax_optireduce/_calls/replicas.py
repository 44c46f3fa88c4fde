"""Comparisons of replicas: equality of their bits, and drift."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jax_optireduce._calls import collectives
from jax_optireduce._errors import ReplicasDifferError, UsageError
from jax_optireduce._program import checks
from jax_optireduce._program.call import AxisName, Drain
from jax_optireduce._session.communicator import current, exchange

# Independent estimates of a squared distance, which are averaged.
# Chosen: a distance within about a tenth, and bytes that no network notices.
_ESTIMATES = 64
# Elements of a row of the matrix in which an estimate sees a tree.
# Chosen: the products with both random vectors cost less than a pass over the memory.
_COLUMNS = 1024


# --- Equality ------------------------------------------------------------------------


class _Piece(NamedTuple):
    """One device's copy of a part of a leaf.

    Attributes:
      leaf: its path in the tree.
      type: dtype and shape of the leaf, and the part.
      holders: names all devices with a copy, equally on every process.
      holder: the process, and the device if the process has several.
      digest: of the bits.
    """

    leaf: str
    type: str
    holders: str
    holder: str
    digest: str


def assert_replicas_equal(tree: Any, fail_message: str = "") -> None:
    """Compares the replicas of a tree bit by bit, over all processes.

    In the modes "bounded" and "lossy" the replicas of parameters can drift apart
    (`resync`); in "exact" and "agreed" a difference is an error of the program, such as
    another seed on one rank. Every process calls this function, outside of `jax.jit`,
    the same number of times; it waits for the arrays, and for all processes. Between
    processes it sends hashes, through JAX's coordination service.

    Works with the arrays of `jax.shard_map`, of plain `jit`, and of one process alone
    (then each process has one replica). The copies of each shard of a sharded array
    are compared; a shard with one copy has no replica. NaN equals NaN of the same bits,
    and 0.0 differs from -0.0. Dead and removed processes are left out.

    Differs from `jax.experimental.multihost_utils.assert_equal`, which expects values
    of one process and does not report the leaf, in the comparison of all copies, also
    those of the devices of one process.

    Args:
      tree: arrays of any dtype, keys of `jax.random` and Python numbers.
      fail_message: beginning of the message of the error.

    Raises:
      ReplicasDifferError: on every process: names the first leaf that differs, and the
        ranks; or the trees have different leaves.
      RendezvousError: a process did not call this function within `call_timeout_s`.
      UsageError: the call is in a program under trace.
      NotInitializedError: `init` was not called.
    """
    communicator = current("assert_replicas_equal")
    pieces = list(_pieces(tree, communicator.rank))
    if _all_equal(exchange(communicator, _summary(pieces))):
        return
    # Every process has the same summaries, so all of them send the details.
    details = json.dumps(pieces).encode()
    rows = exchange(communicator, details)
    reason = _missing_leaves(rows) or _describe(_differing(rows))
    raise ReplicasDifferError(f"{fail_message}: {reason}" if fail_message else reason)


def _pieces(tree: Any, rank: int) -> Iterator[_Piece]:
    """Yields the pieces that this process holds, in the order of the leaves."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path) or "(the argument)"
        if isinstance(leaf, Tracer):
            raise UsageError(
                f"assert_replicas_equal got leaf {name} in the trace of a program; "
                "call it outside of jax.jit, with the results of the program. Inside, "
                "replica_drift returns the distances of the replicas."
            )
        if isinstance(leaf, jax.Array) and jnp.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        ):
            leaf = jax.random.key_data(leaf)  # noqa: PLW2901 (the same leaf)
        kind = f"{jax.dtypes.result_type(leaf)}{list(np.shape(leaf))}"
        if not isinstance(leaf, jax.Array):
            yield _Piece(name, kind, "", f"rank {rank}", _digest(np.asarray(leaf)))
            continue
        indices = leaf.sharding.devices_indices_map(leaf.shape)
        several = len(leaf.addressable_shards) > 1
        for shard in leaf.addressable_shards:
            part = _part(shard.index, leaf.shape)
            holders = part
            if not leaf.is_fully_addressable:
                same = [d.id for d, index in indices.items() if index == shard.index]
                holders = ",".join(map(str, sorted(same)))
            device = f" (device {shard.device.id})" if several else ""
            digest = _digest(np.asarray(shard.data))
            of_part = f"{kind}{part}"
            yield _Piece(name, of_part, holders, f"rank {rank}{device}", digest)


def _part(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Describes a part of an array; "" for all of it."""
    limits = [i.indices(n)[:2] for i, n in zip(index, shape, strict=True)]
    if all(limit == (0, n) for limit, n in zip(limits, shape, strict=True)):
        return ""
    return " part [" + ", ".join(f"{begin}:{end}" for begin, end in limits) + "]"


def _digest(array: np.ndarray) -> str:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(flat.data, digest_size=16).hexdigest()


def _summary(pieces: Sequence[_Piece]) -> bytes:
    """Encodes one digest for all pieces with the same holders, and for the types.

    All leaves with the same holders are on the same processes.
    """
    copies: dict[tuple[str, str, str], set[str]] = {}
    for piece in pieces:
        copies.setdefault(piece[:3], set()).add(piece.digest)
    hashes: dict[str, Any] = {}
    types = hashlib.blake2b(digest_size=16)
    for (leaf, kind, holders), digests in copies.items():
        of_holders = hashes.setdefault(holders, hashlib.blake2b(digest_size=16))
        of_holders.update(f"{leaf}\n{kind}\n{min(digests)}\n".encode())
    for leaf in _leaves(pieces):
        types.update("\n".join((*leaf, "")).encode())
    summary = {holders: of_key.hexdigest() for holders, of_key in hashes.items()}
    equal = all(len(digests) == 1 for digests in copies.values())
    return json.dumps([equal, {**summary, "types": types.hexdigest()}]).encode()


def _all_equal(rows: Mapping[int, bytes]) -> bool:
    """Whether the summaries show that all copies are equal."""
    known: dict[str, str] = {}
    for row in rows.values():
        equal, summary = json.loads(row)
        if not equal or any(known.setdefault(k, v) != v for k, v in summary.items()):
            return False
    return True


def _leaves(pieces: Sequence[Sequence[str]]) -> dict[tuple[str, str], None]:
    """Returns (path, type) of the leaves, in their order."""
    return dict.fromkeys((piece[0], piece[1].split(" part")[0]) for piece in pieces)


def _differing(rows: Mapping[int, bytes]) -> list[list[_Piece]]:
    """Returns the copies of each piece that is not equal on all its holders."""
    copies: dict[tuple[str, str, str], list[_Piece]] = {}
    for row in rows.values():
        for fields in json.loads(row):
            piece = _Piece(*fields)
            key = (piece.leaf, piece.type, piece.holders)
            copies.setdefault(key, []).append(piece)
    return [same for same in copies.values() if len({copy.digest for copy in same}) > 1]


def _missing_leaves(rows: Mapping[int, bytes]) -> str:
    """Describes the first leaf that not all processes have; "" if there is none."""
    leaves = {rank: _leaves(json.loads(row)) for rank, row in rows.items()}
    for leaf in dict.fromkeys(itertools.chain.from_iterable(leaves.values())):
        without = [rank for rank, own in leaves.items() if leaf not in own]
        if without:
            have = [rank for rank in leaves if rank not in without]
            return (
                f"the trees differ: leaf {leaf[0]} ({leaf[1]}) exists on "
                f"{_ranks(have)}, but not on {_ranks(without)}. Pass the same tree in "
                "every process."
            )
    return ""


def _describe(differing: Sequence[Sequence[_Piece]]) -> str:
    """Describes the first leaf that differs, and the ranks."""
    first = differing[0]
    by_digest: dict[str, list[str]] = {}
    for piece in first:
        by_digest.setdefault(piece.digest, []).append(piece.holder)
    groups = sorted(by_digest.values(), key=len, reverse=True)
    texts = [", ".join(group) for group in groups]
    shown = "; ".join(texts[1:4]) + (" and others" if len(texts) > 4 else "")
    leaves = len({piece[0].leaf for piece in differing})
    more = f", and so do {leaves - 1} other leaves" if leaves > 1 else ""
    return (
        f"replicas differ in leaf {first[0].leaf} ({first[0].type}): {shown} from "
        f"{texts[0]}{more}. In the modes 'bounded' and 'lossy' replicas drift apart, "
        "and jax_optireduce.resync makes them equal; in 'exact' and 'agreed' the "
        "program differs between the ranks, such as in a seed or an input."
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


# --- Drift ---------------------------------------------------------------------------


def replica_drift(tree: Any, axis_name: AxisName) -> jax.Array:
    """Estimates the distance of each replica from their mean, relative to its size.

    For parameters in the modes "bounded" and "lossy", whose replicas drift apart until
    the next `resync`: a figure to plot, and to choose the interval of `resync` by. Call
    it inside the program, like `psum`; every 10 or 100 steps, in a `jax.lax.cond` on
    the step, as it waits for all ranks. Its result is an array like any other, so
    nothing waits for the host.

    The distance is that of 64 random projections, the same ones on all ranks (Alon,
    Matias and Szegedy, "The space complexity of approximating the frequency moments",
    STOC 1996). It is within about a tenth of the true one, and costs two floating
    operations per parameter and projection. The call has 264 bytes for each rank,
    whatever the size of the tree. The distance is 0 if all replicas are equal.
    Distances below 1e-6 are rounding errors.

    Args:
      tree: parameters, of this replica; leaves that are not floating are ignored.
      axis_name: see `psum`.

    Returns:
      Float32 [ranks], equal on all ranks: of each rank of the axis the L2 distance of
      its floating leaves from their mean over the ranks, divided by their L2 norm. 0
      for a removed rank; NaN if a leaf has NaN or infinite values.

    Raises the errors of `psum`.
    """
    kind = "replica_drift"
    key = checks.checked_key(None, kind)
    # The call waits for all live ranks, as `resync` does.
    call = checks.checked_call(
        kind, axis_name, key, "bounded", mean=False, drain=Drain.OF_CALLS_IF_ANY
    )
    sketch, norm = _sketch(tree)
    own = jnp.concatenate([sketch, jnp.stack([norm, jnp.float32(1)])])
    ranks = lax.axis_size(call.axes)
    row = lax.axis_index(call.axes)
    # Zeros of the others: the sum is exact.
    rows = jnp.where(jnp.arange(ranks)[:, None] == row, own, 0)
    table = collectives.reduce_tree(rows, None, call).tree
    sketches, norms, present = table[:, :-2], table[:, -2], table[:, -1]
    # Differences first: those of equal replicas are 0, whatever the rounding of a mean.
    weights = present / jnp.maximum(present.sum(), 1)
    differences = sketches[:, None] - sketches[None, :]
    from_mean = jnp.einsum("ijk,j->ik", differences, weights, precision="highest")
    distance = jnp.sqrt(jnp.mean(jnp.square(from_mean), axis=1))
    relative = jnp.where(norms == 0, distance, distance / norms)
    return jnp.where(present > 0, relative, 0)


def _sketch(tree: Any) -> tuple[jax.Array, jax.Array]:
    """Projects a tree on random vectors of signs.

    The leaves are the rows of a matrix; a vector of signs is the product of one for its
    rows and one for its columns.

    Returns:
      The projections, float32 [_ESTIMATES], and the L2 norm of the tree, float32 [].
    """
    columns = _signs(0, _COLUMNS)
    total = jnp.zeros(_ESTIMATES, jnp.float32)
    square = jnp.float32(0)
    begin = _COLUMNS
    for leaf in jax.tree_util.tree_leaves(tree):
        if not jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.floating):
            continue
        flat = jnp.asarray(leaf).astype(jnp.float32).reshape(-1)
        square += jnp.sum(jnp.square(flat))
        matrix = jnp.pad(flat, (0, -flat.size % _COLUMNS)).reshape(-1, _COLUMNS)
        products = jnp.matmul(matrix, columns, precision="highest")
        total += jnp.sum(products * _signs(begin, len(matrix)), axis=0)
        begin += len(matrix)
    return total, jnp.sqrt(square)


def _signs(begin: int, rows: int) -> jax.Array:
    """Returns pseudo-random signs, float32 [rows, _ESTIMATES], from a row on."""
    at = jnp.arange(rows * _ESTIMATES, dtype=jnp.uint32) + np.uint32(
        begin * _ESTIMATES % 2**32
    )
    # Source: the finalizer of MurmurHash3 (32 bits), by Austin Appleby.
    at = (at ^ (at >> 16)) * np.uint32(0x85EBCA6B)
    at = (at ^ (at >> 13)) * np.uint32(0xC2B2AE35)
    signs = jnp.where((at ^ (at >> 16)) & 1, jnp.float32(1), jnp.float32(-1))
    return signs.reshape(rows, _ESTIMATES)
