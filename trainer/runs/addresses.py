"""Names of machines as requests carry them."""

from __future__ import annotations

import ipaddress


def is_loopback(name: str) -> bool:
    """Whether a name or address, without port and brackets, is this machine's own."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def bare_host(host: str) -> str:
    """The name in a Host header: without its port, and an IPv6 address without its brackets."""
    return (host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host).strip("[]")
