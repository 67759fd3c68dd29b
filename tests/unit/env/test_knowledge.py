"""The knowledge base: complete, nothing invented, and right where the folklore is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from nccl_doctor.env import knowledge, versions
from nccl_doctor.env.knowledge import Status, lookup
from nccl_doctor.findings import playbooks

ROOT = Path(__file__).resolve().parents[3]
FACTS = Path(os.environ.get("NCCL_DOCTOR_SHARED", ROOT.parent / "shared")) / "facts"
DATA = ROOT / "nccl_doctor" / "env" / "data"

needs_facts = pytest.mark.skipif(not FACTS.is_dir(), reason="the reference facts (../shared/facts) are not here")


def importer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_env_facts", ROOT / "tests" / "tools" / "import_env_facts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_facts
@pytest.mark.parametrize("name", ["nccl.json", "torch.json", "nobody.json"])
def test_the_imported_files_are_what_the_facts_give(name: str) -> None:
    assert json.loads((DATA / name).read_text()) == importer().build(FACTS)[name]


def test_what_must_agree_between_hosts_is_known_and_is_not_what_may_differ() -> None:
    known = knowledge.load()
    assert known.must_agree | known.may_differ <= set(known.variables)
    assert not known.must_agree & known.may_differ


@needs_facts
def test_every_variable_of_every_release_is_in_and_none_is_invented() -> None:
    facts = json.loads((FACTS / "nccl_env.json").read_text())
    torch = json.loads((FACTS / "torch_env.json").read_text())
    read = {row["name"] for row in facts["variables"]} | {
        row["name"] for row in facts["binary_only_newer_than_newest_tag"]
    }
    read |= {row["name"] for row in torch["variables"]}
    known = knowledge.load()
    assert read <= set(known.variables)
    # What is known beyond the facts belongs to a plugin, or was added by people, and says whose source it comes from.
    beyond = [known.variables[name] for name in set(known.variables) - read]
    assert all(variable.source for variable in beyond)
    assert {variable.name for variable in beyond if not variable.family} == {"PYTORCH_ALLOC_CONF"}


@needs_facts
def test_the_newest_release_s_variables_are_current() -> None:
    facts = json.loads((FACTS / "nccl_env.json").read_text())
    for row in facts["variables"]:
        status = lookup(row["name"], "2.30.7").status
        if row["last_tag"]:
            assert status in (Status.REMOVED, Status.RENAMED), row["name"]
        elif row["name"] not in knowledge.load().variables or not knowledge.load().variables[row["name"]].of_torch:
            assert status is Status.CURRENT, row["name"]


def test_each_row_carries_its_source_and_a_meaning() -> None:
    known = knowledge.load()
    for variable in known.variables.values():
        assert variable.source and variable.reader, variable.name
    assert all(row.source for row in known.nobody.values())
    assert not set(known.variables) & set(known.nobody)


def test_replacements_are_names_that_are_read() -> None:
    known = knowledge.load()
    for variable in known.variables.values():
        assert not variable.replaced_by or variable.replaced_by in known.variables, variable.name
    for row in known.nobody.values():
        assert not row.instead or row.instead in known.variables, row.name


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("NCCL_TIMEOUT", "", Status.READ_BY_NOBODY),
        ("TORCH_DISTRIBUTED_TIMEOUT", "", Status.READ_BY_NOBODY),
        ("NCCL_ASYNC_ERROR_HANDLING", "", Status.RENAMED),
        ("NCCL_BLOCKING_WAIT", "", Status.RENAMED),
        ("NCCL_TREE_THRESHOLD", "2.30.7", Status.REMOVED),
        ("NCCL_TREE_THRESHOLD", "2.5.6", Status.REMOVED),
        ("NCCL_TREE_THRESHOLD", "2.4.8", Status.CURRENT),
        ("NCCL_LL_THRESHOLD", "", Status.REMOVED),
        ("NCCL_MIN_NRINGS", "", Status.CURRENT),
        ("NCCL_IB_CUDA_SUPPORT", "", Status.REMOVED),
        ("NCCL_MNNVL", "2.20.5", Status.CURRENT),
        ("NCCL_MNNVL", "2.21.5", Status.RENAMED),
        ("NCCL_RAS_ENABLE", "2.18.3", Status.READ_BY_NOBODY),
        ("NCCL_RAS_ENABLE", "2.24.3", Status.CURRENT),
        ("NCCL_RUN_DIAGNOSTICS", "2.32.3", Status.CURRENT),
        ("NCCL_MLOPART_RDMA_ENABLE", "2.32.3", Status.REMOVED),
        ("NCCL_SHARP_DISABLE", "", Status.CURRENT),
        ("OFI_NCCL_PROTOCOL", "", Status.CURRENT),
        ("OFI_NCCL_NO_SUCH_THING", "", Status.UNKNOWN),
        ("UCX_IB_ADDR_TYPE", "", Status.CURRENT),
        ("NCCL_NO_SUCH_THING_AT_ALL", "", Status.UNKNOWN),
    ],
)
def test_status_at_a_version(name: str, version: str, status: Status) -> None:
    assert lookup(name, version).status is status


def test_torch_names_follow_torch_s_versions() -> None:
    assert lookup("NCCL_BLOCKING_WAIT", torch_version="2.1.0").status is Status.CURRENT
    assert lookup("NCCL_BLOCKING_WAIT", torch_version="2.2.0").replaced_by == "TORCH_NCCL_BLOCKING_WAIT"
    assert lookup("TORCH_NCCL_AVOID_RECORD_STREAMS", torch_version="2.15.0").status is Status.REMOVED


@pytest.mark.parametrize(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", "2.13.4", "14"),
        ("NCCL_IB_TIMEOUT", "2.22.3", "18"),
        ("NCCL_IB_TIMEOUT", "2.23.4", "20"),
        ("NCCL_IB_GID_INDEX", "2.20.5", "0"),
        ("NCCL_IB_GID_INDEX", "2.21.5", "-1"),
        ("NCCL_IB_TC", "2.25.1", "0"),
        ("NCCL_CUMEM_ENABLE", "2.18.5", "0"),
        ("NCCL_P2P_DISABLE", "", "unset"),
        ("NCCL_NET_GDR_LEVEL", "2.5.7", "PHB"),
        ("NCCL_NET_GDR_LEVEL", "2.28.9", "PXB"),
        ("NCCL_P2P_LEVEL", "2.22.3", "auto (SYS; PXB or PHB on Intel, PXB on Arm and Zhaoxin)"),
        ("NCCL_WORK_FIFO_BYTES", "2.27.3", "1048576"),
    ],
)
def test_default_at_a_version(name: str, version: str, default: str) -> None:
    assert lookup(name, version).default == default


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKETIFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IFNAME_SOCKET", "NCCL_SOCKET_IFNAME"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_IB_GIDINDEX", "NCCL_IB_GID_INDEX"),
        ("TORCH_NCCL_BLOCKING_WIAT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("OFI_NCCL_PROTOCOLL", "OFI_NCCL_PROTOCOL"),
    ],
)
def test_did_you_mean(typo: str, meant: str) -> None:
    assert lookup(typo).near[0] == meant


def test_far_names_get_no_suggestion() -> None:
    assert lookup("NCCL_COMPLETELY_DIFFERENT").near == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.21.5", (2, 21, 5)),
        ("v2.21.5-1", (2, 21, 5)),
        ("2.21.5+cuda12.4", (2, 21, 5)),
        ("22105", (2, 21, 5)),
        ("2708", (2, 7, 8)),
        ("2.21", (2, 21)),
        ("2.13.0a0+git1a2b3c", (2, 13, 0)),
        ("2.7.0.dev20250310+cu128", (2, 7, 0)),
        ("2.4rc3", (2, 4)),
    ],
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert versions.parse(text) == version


@pytest.mark.parametrize("text", ["", "two", "latest", "2", "2.2O", "2.19.3,2.20", "2.18 2.19"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        versions.parse(text)


def test_a_version_without_patch_stands_for_all_its_patches() -> None:
    assert versions.at_least(versions.parse("2.4"), "2.4.2")
    assert versions.at_most(versions.parse("2.4"), "2.4.8")
    assert not versions.at_least(versions.parse("2.3"), "2.4.2")


def test_no_playbook_recommends_what_nobody_reads() -> None:
    for name in playbooks.names():
        for entry in playbooks.load(name).env:
            assert lookup(entry.name).status is Status.CURRENT, (name, entry.name)
