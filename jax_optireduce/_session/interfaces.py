"""The address of this host among those of its network interfaces."""

import ipaddress
from collections.abc import Sequence

from jax_optireduce._errors import UsageError


def matches(pattern: str, name: str) -> bool:
    """Returns True for the interfaces of a pattern.

    Source: NCCL's variable NCCL_SOCKET_IFNAME, whose syntax users know: "eth,ib" names
    beginnings, "=eth0" whole names, and "^docker" or "^=docker0" all others.

    Args:
      pattern: the option `interface`, not empty.
      name: of an interface.
    """
    others = pattern.startswith("^")
    pattern = pattern.removeprefix("^")
    whole = pattern.startswith("=")
    names = [part.strip() for part in pattern.removeprefix("=").split(",")]
    named = any(name == n if whole else name.startswith(n) for n in names if n)
    return named != others


def choose(
    pattern: str, addresses: Sequence[tuple[str, str]], on_route: str | None
) -> str:
    """Returns the address of this host on the interfaces of a pattern.

    Args:
      pattern: see `matches`.
      addresses: names of the interfaces that are up, with their addresses.
      on_route: the address on the route to the coordinator, which is preferred, and
        then one of its family; None if there is no route.

    Raises:
      UsageError: no interface has the name, or none of those has a usable address.
    """
    meant = [address for name, address in addresses if matches(pattern, name)]
    if on_route in meant:
        return on_route

    def rank(address: str) -> tuple[bool, bool, bool]:
        parsed = ipaddress.ip_address(address)
        family = 4 if on_route is None else ipaddress.ip_address(on_route).version
        # Sorted: False first.
        return (parsed.is_loopback, parsed.is_link_local, parsed.version != family)

    if not meant:
        here = ", ".join(f"{name} ({address})" for name, address in addresses)
        raise UsageError(
            f"interface={pattern!r} is no interface of this host that is up and has an "
            f"address; it has {here or 'none'}."
        )
    return min(meant, key=rank)


def name_of(address: str, addresses: Sequence[tuple[str, str]]) -> str:
    """Returns the name of the interface with an address; "" if none has it."""
    return next((name for name, own in addresses if own == address), "")
