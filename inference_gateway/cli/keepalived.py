"""The configuration of keepalived for two gateways with one virtual IP (VRRP)."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from inference_gateway.errors import GatewayError
from inference_gateway.sections import GatewaySection


def configurations(section: GatewaySection, shared: str, interface: str, router_id: int) -> Iterator[str]:
    """The file for each of the two nodes. Raises `GatewayError` where no address can move between the gateways."""
    for node, priority in _pair(section, shared):
        yield _file(section, node, shared, interface, router_id, priority)


def _pair(section: GatewaySection, shared: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Both nodes with their VRRP priorities. Raises `GatewayError` where no address can move between the gateways."""
    try:
        ip_interface(shared)
    except ValueError as error:
        raise GatewayError(
            f"--keepalived: found {shared!r}, accepted: an address with its prefix, 10.0.0.9/24"
        ) from error
    first, second = section.job, section.job.second
    if second is None or not (first.node and second.node) or second.port not in (None, section.listen.port):
        raise GatewayError(
            "an address moves between two nodes: name them in job.node and job.second.node, with one port"
        )
    if section.listen.host not in ("0.0.0.0", "::"):  # noqa: S104
        raise GatewayError(
            f"listen.host: is {section.listen.host}; to take an address that moves it must be 0.0.0.0 or ::"
        )
    return (first.node, 150), (second.node, 100)


_KEEPALIVED = """\
# {node}: /etc/keepalived/keepalived.conf
global_defs {{
    enable_script_security
    script_user nobody
}}
vrrp_script {name} {{
    script "/usr/bin/curl --insecure --fail --silent --output /dev/null --max-time 1 {scheme}://127.0.0.1:{port}/healthz"
    interval 1
    fall 2
    rise 2
}}
vrrp_instance {name} {{
    state BACKUP
    interface {interface}
    virtual_router_id {router_id}
    priority {priority}
    advert_int 1
    virtual_ipaddress {{
        {shared}
    }}
    track_script {{
        {name}
    }}
}}
"""


def _file(section: GatewaySection, node: str, shared: str, interface: str, router_id: int, priority: int) -> str:
    """The file of one node: it has the address while its gateway answers, the first before the second."""
    listen = section.listen
    scheme = "http" if listen.certificate is None else "https"
    about = {"node": node, "name": f"gateway_{section.name.replace('-', '_')}", "scheme": scheme, "port": listen.port}
    return _KEEPALIVED.format(**about, interface=interface, router_id=router_id, priority=priority, shared=shared)
