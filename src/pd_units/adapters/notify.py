"""Status lines for `systemctl status`, sent to the service manager."""

from __future__ import annotations


def send_status(text: str) -> None:
    """Show `text` as the unit's status; nothing if nobody listens. Source: sd_notify(3)."""
    _notify(f"STATUS={' '.join(text.split())}")


def extend_timeout(seconds: float) -> None:
    """Ask the manager to let this start, or stop, go on for `seconds` from now. Source: sd_notify(3)."""
    _notify(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")


def _notify(message: str) -> None:
    try:
        from systemd import daemon
    except ImportError:
        return
    try:
        daemon.notify(message)
    except (OSError, ValueError):  # nobody listens; a NUL in a text that a server answered
        return
