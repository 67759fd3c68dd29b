"""The pages of the documentation, shipped inside the wheel as the playbooks are."""

from __future__ import annotations

from nccl_doctor.findings.playbooks import shipped


def pages() -> dict[str, str]:
    """Name -> Markdown, in the order of their names; none where the installation lacks them."""
    place = shipped("docs")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(place.glob("*.md"))} if place else {}
