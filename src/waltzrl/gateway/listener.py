"""The listening socket: its address, its TLS, and who may connect without an API key."""

import ipaddress
import socket
import ssl
from pathlib import Path
from typing import NoReturn

from waltzrl.errors import InputError
from waltzrl.gateway.access import KeyRing


def open_listener(host: str, port: int) -> socket.socket:
    """Open the listening socket, so that a failure is reported before anything is loaded.

    Raises:
        InputError: the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # early clients wait in the backlog until the gateway is loaded
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener


def listener_url(listener: socket.socket, *, has_tls: bool) -> str:
    """Return the URL by which clients reach a listening socket."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host  # a version 6 address has colons of its own
    return f"{'https' if has_tls else 'http'}://{shown}:{port}"


def open_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Read the files of a TLS server.

    Args:
        cert: certificate chain in PEM, the server's own certificate first.
        key: its private key in PEM, without a password.
        client_ca: certificates in PEM; clients must show one that these have signed. None asks
            clients for none.

    Raises:
        InputError: a file cannot be read, or the key is not the certificate's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    for path in filter(None, (cert, key, client_ca)):
        try:
            path.open("rb").close()  # the errors of ssl do not name the file
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; TLS needs this file") from error
    try:
        # Without a function OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(cert, key, _refuse_password)
    except ssl.SSLError as error:
        why = "is not the key of" if error.reason == "KEY_VALUES_MISMATCH" else "cannot serve with"
        raise InputError(
            f"{key} {why} {cert} ({error.reason}); TLS needs a certificate chain and its private "
            "key, both in PEM"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise InputError(f"{client_ca}: not certificates in PEM ({error.reason})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def check_bind(host: str, ring: KeyRing, *, open_to_all: bool) -> None:
    """Refuse to listen on the network without API keys, unless the operator allows it.

    Raises:
        InputError: `host` is not loopback, there are no keys and `open_to_all` is False.
    """
    if ring.is_open and not open_to_all and not is_loopback(host):
        raise InputError(
            f"without API keys the gateway listens on loopback only, not on {host}; make one "
            "with `waltzrl keys add NAME --file keys.toml` and pass --keys keys.toml, or --open"
        )


def _refuse_password() -> NoReturn:
    raise InputError("the private key of TLS has a password; write it without one")


def is_loopback(host: str) -> bool:
    """Return whether an address or a name is that of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
