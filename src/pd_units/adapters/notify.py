"""Status lines for `systemctl status`, sent to the service manager."""

from __future__ import annotations


def send_status(text: str) -> None:
    """Show `text` as the unit's status; nothing if nobody listens. Source: sd_notify(3)."""
    try:
        from systemd import daemon
    except ImportError:
        return
    try:
        daemon.notify(f"STATUS={text}")
    except OSError:
        return
