"""Numbers of bytes as people read them. A leaf: any room may import it, it imports nothing of ours."""

from __future__ import annotations


def format_size(size: float) -> str:
    """Returns a number of bytes as text: 1536 becomes "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
