"""The pages of the documentation, shipped inside the wheel as the playbooks are."""

from __future__ import annotations

from pathlib import Path


def pages() -> dict[str, str]:
    """Name -> Markdown, in the order of their names; none where the installation lacks them."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "docs", package.parent / "docs"):
        if place.is_dir():
            return {path.stem: path.read_text(encoding="utf-8") for path in sorted(place.glob("*.md"))}
    return {}
