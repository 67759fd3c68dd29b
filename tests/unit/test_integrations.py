"""The ready-to-use pieces of docs/integrations: they parse, and the command line takes every line of theirs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from nccl_doctor import cli
from nccl_doctor.rules import policy, requirements
from tests.pieces import PIECES, documents, launch_lines, pod, smaller

DOCS = PIECES.parent


def nested(value: Any) -> list[str]:
    """Every string of a YAML document."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in nested(item)]
    if isinstance(value, list):
        return [text for item in value for text in nested(item)]
    return [value] if isinstance(value, str) else []


def argv(line: str) -> list[str]:
    """The words of the nccl-doctor command in a shell command; a variable stands for one word."""
    words = shlex.split(line.replace("\\\n", " "))
    start = next(number for number, word in enumerate(words) if word.split("/")[-1] == "nccl-doctor")
    return words[start + 1 :]


def lines() -> list[list[str]]:
    found = [argv(text) for text in launch_lines().values()]
    for name in ("github-actions.yml", "gitlab-ci.yml"):
        texts = [line for text in nested(documents(name)) for line in text.splitlines()]
        found += [argv(line) for line in texts if "nccl-doctor preflight" in line]
    found += [
        argv(text) for text in re.findall(r"sh '(.*nccl-doctor preflight .*)'", (PIECES / "Jenkinsfile").read_text())
    ]
    prolog = (PIECES / "slurm-prolog.sh").read_text()
    command = re.search(r"\$\((nccl-doctor .*?)\)\n", prolog)
    assert command is not None
    optional = {'"${policy[@]}"': "--policy x", '"${metrics[@]}"': "--report prometheus=x", "2>&1": ""}
    text = command.group(1)
    for old, new in optional.items():
        assert old in text
        text = text.replace(old, new)
    found.append(argv(text))
    batch = (PIECES / "slurm-sbatch.sh").read_text()
    found.append(argv(batch[batch.index("nccl-doctor preflight") : batch.index("\nstatus=")]))
    found.append(pod()[0][1:])
    return found


@pytest.mark.parametrize("words", lines(), ids=lambda words: " ".join(words)[:60])
def test_the_command_line_takes_it(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)  # kubectl need not be here
    cli._load_commands()
    group: Any = typer.main.get_command(cli.app)
    assert words[0] in ("preflight", "run")
    parameters = group.commands[words[0]].make_context(words[0], list(words[1:])).params
    if words[0] == "run":
        assert parameters["command"]
        return
    from nccl_doctor.cli import preflight
    from nccl_doctor.rules.policy import PROFILES

    assert not parameters["profile"] or parameters["profile"] in PROFILES
    assert cli._options.seconds(parameters["budget"] or "120s", "--budget", "90s") > 0
    preflight._outputs(list(parameters["report"] or ()))
    for text in parameters["require"] or ():
        assert all(requirements.parse(part) for part in requirements.split(text))
    assert parameters["spares"] is None or parameters["min_hosts"]
    transport = parameters["transport"]
    assert transport == "ssh" or cli._hosts.connect_options(transport, "", "", 1.0, 1, False)
    command = parameters["command"] or []
    assert ("--" in words) == bool(command)
    if command[:1] == ["srun"]:
        check_shell(command[-1])


def check_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_pieces_were_looked_at() -> None:
    assert len(lines()) >= 11
    page = (PIECES / "README.md").read_text()
    assert [path.name for path in PIECES.iterdir() if path.name != "README.md" and path.name not in page] == []


@pytest.mark.parametrize("name", ["slurm-prolog.sh", "slurm-sbatch.sh"])
def test_shell_parses(name: str) -> None:
    check_shell((PIECES / name).read_text())


def test_shell_inside_yaml_parses() -> None:
    for name in ("github-actions.yml", "gitlab-ci.yml"):
        for text in nested(documents(name)):
            if "nccl-doctor" in text:
                check_shell(text)


def stub(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("status", "drains"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (10, 1), (11, 1)])
def test_the_prolog_drains_for_the_node_and_not_for_the_gate(tmp_path: Path, status: int, drains: int) -> None:
    stub(tmp_path, "nccl-doctor", f"echo ERROR: said; exit {status}")
    stub(tmp_path, "logger", f'echo "$@" >> {tmp_path}/log')
    text = (PIECES / "slurm-prolog.sh").read_text().replace("PATH=/opt/nccl-doctor/bin", f"PATH={tmp_path}")
    done = subprocess.run(["bash", "-c", text], env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False)
    assert done.returncode == drains and done.stderr == ""
    logged = (tmp_path / "log").read_text() if status else ""
    assert (f"({status}): ERROR: said" in logged) == (status != 0)


def test_the_batch_script_passes_on_the_status_and_names_the_hosts_to_exclude(tmp_path: Path) -> None:
    stub(tmp_path, "nccl-doctor", "printf 'gpu[02-03]\\nroot@gpu09\\n' > bad.7; exit 11")
    env = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["bash", str(PIECES / "slurm-sbatch.sh")]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 11
    assert "sbatch --exclude=gpu[02-03],root@gpu09 train.sbatch" in done.stderr


# What each service's own schema refuses: a field mistyped, a wrong kind of value.
TYPOS = {
    "github-actions.yml": ("timeout-minutes: 10", "timeout-minute: 10"),
    "gitlab-ci.yml": ("    when: always", "    when: allways"),
    "kubernetes.yaml": ("onExitCodes:", "onExitCode:"),
}


def accepted(name: str, text: str, directory: Path) -> bool:
    """Whether the schema that the service publishes takes this text."""
    path = directory / name
    path.write_text(text)
    words = {
        "github-actions.yml": ["check_jsonschema", "--builtin-schema", "vendor.github-workflows"],
        "gitlab-ci.yml": ["check_jsonschema", "--builtin-schema", "vendor.gitlab-ci"],
        "kubernetes.yaml": ["kubernetes_validate", "--strict"],
    }[name]
    done = subprocess.run([sys.executable, "-m", *words, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("name", TYPOS)
def test_the_service_s_own_schema_takes_it_and_no_typo(tmp_path: Path, name: str) -> None:
    text = (PIECES / name).read_text()
    assert accepted(name, text, tmp_path)
    assert not accepted(name, smaller(text, TYPOS[name]), tmp_path)


def test_the_job_fits_together() -> None:
    """What no schema says: names that refer to each other, and that the policy needs restartPolicy Never."""
    service, job = documents("kubernetes.yaml")
    spec = job["spec"]["template"]["spec"]
    assert spec["restartPolicy"] == "Never" and spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    containers = [*spec["initContainers"], *spec["containers"]]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert all({mount["name"] for mount in container["volumeMounts"]} <= volumes for container in containers)
    assert len({container["resources"]["limits"]["nvidia.com/gpu"] for container in containers}) == 1
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] in {container["name"] for container in containers}
    assert job["spec"]["completions"] >= job["spec"]["parallelism"]


def torchrun_lines() -> list[str]:
    """Every torchrun command of the pieces, in a shell's words."""
    batch = (PIECES / "slurm-sbatch.sh").read_text().replace("\\\n", " ")
    texts = [*launch_lines().values(), batch, pod()[1][-1]]
    return [found for text in texts for found in re.findall(r"torchrun (--.*? train\.py)", text)]


@pytest.mark.parametrize("line", torchrun_lines())
def test_torchrun_takes_its_options(line: str) -> None:
    run = pytest.importorskip("torch.distributed.run")
    # Exact names: argparse takes abbreviations, too.
    known = set(run.get_args_parser()._option_string_actions)
    words = shlex.split(re.sub(r"\$\w+|\$\{\w+%%,\*\}", "1", line))
    assert {word for word in words if word.startswith("--")} <= known
    assert run.get_args_parser().parse_args(words).training_script == "train.py"


def test_no_input_becomes_shell() -> None:
    (github,) = documents("github-actions.yml")
    assert not any("${{" in step.get("run", "") for job in github["jobs"].values() for step in job["steps"])


def test_the_policy_of_the_page_is_a_policy_with_every_key(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "preflight.md").read_text(), re.S)
    (tmp_path / "nccl-doctor.toml").write_text(text)
    rules = policy.load(tmp_path / "nccl-doctor.toml")
    for name in policy.Policy.__struct_fields__:
        assert getattr(rules, name) or name == "strict", name
        assert name.replace("_", "-") in text


def test_the_page_names_every_format_and_requirement() -> None:
    from nccl_doctor.report import formats

    page = (DOCS / "preflight.md").read_text()
    assert [name for name in formats.names() if f"`{name}`" not in page] == []
    assert [name for name in requirements.STAGE_OF if f"`{name}=" not in page] == []
