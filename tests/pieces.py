"""The ready-to-use pieces of docs/integrations, taken apart: what the tests parse and run is what is published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PIECES = Path(__file__).resolve().parents[1] / "docs" / "integrations"


def documents(name: str) -> list[Any]:
    """The documents of a YAML piece."""
    return list(yaml.safe_load_all((PIECES / name).read_text()))


def launch_lines() -> dict[str, str]:
    """Heading -> shell line of the launch page."""
    page = (PIECES / "launch.md").read_text()
    return dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```sh\n(.*?)\n```", page, re.M | re.S))


def github_step() -> tuple[str, list[str]]:
    """The preflight step's script, and the files that the next step uploads."""
    (workflow,) = documents("github-actions.yml")
    steps = workflow["jobs"]["preflight"]["steps"]
    script = next(step["run"] for step in steps if step.get("name") == "preflight")
    upload = next(step for step in steps if "upload-artifact" in step.get("uses", ""))
    return script, upload["with"]["path"].split()


def gitlab_job() -> tuple[list[str], list[str]]:
    """The preflight job's script lines, and all files it hands on."""
    (pipeline,) = documents("gitlab-ci.yml")
    artifacts = pipeline["preflight"]["artifacts"]
    return pipeline["preflight"]["script"], [*artifacts["paths"], *artifacts["reports"].values()]


def pod() -> tuple[list[str], list[str], list[int]]:
    """The init container's command, the training container's, and the exit codes that fail the Job at once."""
    job = documents("kubernetes.yaml")[1]["spec"]
    spec = job["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    return spec["initContainers"][0]["command"], spec["containers"][0]["command"], rule["onExitCodes"]["values"]


def smaller(text: str, *changes: tuple[str, str]) -> str:
    """A piece with the numbers of a real cluster replaced by the lab's; each must be there, once."""
    for published, here in changes:
        assert text.count(published) == 1, (published, text)
        text = text.replace(published, here)
    return text
