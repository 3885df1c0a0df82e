"""The form that the address of a webhook must have; `webhooks` also looks where it leads."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_webhook_url(url: str) -> bool:
    """Whether this is an https:// address with a host, a port that can be, and no password."""
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        return False
    return (
        parts.scheme == "https" and bool(parts.hostname) and not parts.username and port > 0 and url.isprintable()
    )
