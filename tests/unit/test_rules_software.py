"""Rules of the software stage, and the drift table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fleets import SITE, ids, only, run, software

from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Driver, Library, NcclCopy, Plugin, Torch
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import drift, engine
from nccl_doctor.rules.software import oldest_driver
from nccl_doctor.rules.software_drift import drift_table, subjects, versions

RULES = [rule.name for rule in engine.all_rules() if rule.name.startswith(("software.", "software_drift."))]


def driver(**changes: Any) -> Driver:
    return msgspec.structs.replace(software().driver, **changes)


def torch(**changes: Any) -> Torch:
    healthy = software().torch
    assert healthy is not None
    return msgspec.structs.replace(healthy, **changes)


def host(**changes: Any) -> dict[str, dict[str, Any]]:
    return {"a": {"software": software(**changes)}}


@pytest.mark.parametrize("rule", RULES)
def test_healthy_hosts_give_nothing_and_pass(rule: str) -> None:
    result = run(rule, {"a": host()["a"], "b": host()["a"]})
    assert not result.findings and not result.unknown and result.passed == ("a", "b")


@pytest.mark.parametrize("rule", RULES)
def test_without_facts_nothing_passes(rule: str) -> None:
    result = run(rule, {"a": {}, "b": {}})
    assert not result.passed and (result.unknown or result.skipped)


def test_missing_torch_is_a_note() -> None:
    assert ids(run("software.torch_present", host(torch=None)), Severity.INFO) == [("sw.torch-missing", ("a",))]


def test_cpu_only_torch_on_a_gpu_host() -> None:
    cpu = torch(version="2.8.0+cpu", cuda="", nccl_link="none")
    found = only(run("software.cuda_build", host(torch=cpu)))
    assert found.id == "sw.no-nccl-backend" and "CPU-only" in found.title and "8 NVIDIA GPUs" in found.title
    assert "a" in run("software.cuda_build", host(torch=cpu, driver=Driver())).skipped


@pytest.mark.parametrize(
    ("change", "id"),
    [
        (driver(version="", gpus=0), "gpu.driver.not-loaded"),
        (driver(version="520.61.05"), "gpu.driver.too-old"),
        (driver(version="525.60.13"), None),
        (
            driver(libraries={"libcuda.so.1": Library("/usr/lib/libcuda.so.1", "550.54.14")}),
            "gpu.driver.library-mismatch",
        ),
        (driver(libraries={"libcuda.so.1": Library("/usr/lib/libcuda.so.1", driver().version)}), None),
        (
            driver(
                version="470.10",
                libraries={"libcuda.so.1": Library("/usr/local/cuda/compat/libcuda.so.1", "560.35.03")},
            ),
            None,
        ),
    ],
)
def test_driver(change: Driver, id: str | None) -> None:
    alone = Plan(stages=("software",))
    assert [item[0] for item in ids(run("software.driver", host(driver=change), alone))] == ([id] if id else [])
    # with the gpu stage, which asks the driver itself, only what that stage cannot know is left
    beside = run("software.driver", host(driver=change))
    assert [item[0] for item in ids(beside)] == ([id] if id == "gpu.driver.too-old" else [])


def test_a_driver_that_serves_gpus_is_loaded_whatever_a_sandbox_hides() -> None:
    hidden = driver(version="", line="", gpus=1, pci_gpus=())
    alone = run("software.driver", host(driver=hidden), Plan(stages=("software",)))
    assert not ids(alone) and [gap.what for gap in alone.unknown] == ["driver version"]
    found = only(run("software.cuda_build", host(torch=torch(cuda="", nccl_link="none"), driver=hidden)))
    assert "the driver serves 1 NVIDIA GPU" in [item.text for item in found.evidence]


def test_oldest_driver_and_a_cuda_version_the_table_does_not_know() -> None:
    assert (oldest_driver("12.8"), oldest_driver("10.2"), oldest_driver("13.0")) == ("525.60.13", "440.33", "580.65.06")
    assert run("software.driver", host(torch=torch(cuda="19.1"))).unknown


def copy(path: str, version: str, found_by: str, wins: bool = False, cuda: str = "12.8") -> NcclCopy:
    return NcclCopy(path, path, version, cuda, found_by, True, wins)


OWN = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def test_older_library_in_front_of_torchs_own() -> None:
    copies = (
        copy("/opt/nccl/lib/libnccl.so.2", "2.18.3", "LD_LIBRARY_PATH", True),
        copy(OWN, "2.27.3", "found on disk"),
    )
    found = only(run("software.nccl_library", host(nccl=copies, environment={"LD_LIBRARY_PATH": "/opt/nccl/lib"})))
    assert (found.id, found.severity) == ("sw.library-conflict.shadowed", Severity.FAIL)
    text = " ".join(item.text for item in found.evidence)
    assert "2.18.3" in text and "2.27.3" in text and "LD_LIBRARY_PATH=/opt/nccl/lib" in text
    assert found.env[0].name == "LD_LIBRARY_PATH" and found.env[0].unset


def test_newer_library_in_front_is_a_warning_and_a_newer_own_copy_is_none() -> None:
    copies = (copy("/opt/nccl/lib/libnccl.so.2", "2.28.9", "LD_PRELOAD", True), copy(OWN, "2.27.3", "found on disk"))
    assert ids(run("software.nccl_library", host(nccl=copies)), Severity.WARN) == [
        ("sw.library-conflict.shadowed", ("a",))
    ]
    again = (copy("/opt/nccl/lib/libnccl.so.2", "2.27.3", "LD_PRELOAD", True), copy(OWN, "2.27.3", "found on disk"))
    assert ids(run("software.nccl_library", host(nccl=again))) == []
    upgraded = (copy(OWN, "2.28.9", "RPATH of libtorch_cuda.so", True),)
    assert ids(run("software.nccl_library", host(nccl=upgraded))) == []


def test_library_for_another_cuda_none_at_all_and_unreadable_version() -> None:
    other = (copy(OWN, "2.27.3", "RPATH of libtorch_cuda.so", True, cuda="13.0"),)
    assert ids(run("software.nccl_library", host(nccl=other))) == [("sw.library-conflict.cuda", ("a",))]
    stray = (NcclCopy("/x/libnccl.so.2", "/x/libnccl.so.2", "2.27.3", "12.8", "found on disk"),)
    found = only(run("software.nccl_library", host(nccl=stray)))
    assert found.id == "sw.library-conflict.not-found" and "nvidia-nccl-cu12==2.27.3" in found.fixes[0].command
    unread = (copy(OWN, "", "RPATH of libtorch_cuda.so", True),)
    assert run("software.nccl_library", host(nccl=unread)).unknown
    assert "a" in run("software.nccl_library", host(torch=torch(nccl_link="built-in"))).skipped


@pytest.mark.parametrize(
    ("value", "names", "bad"),
    [
        ("ofi", (), True),
        ("ofi", ("libnccl-net-ofi.so",), False),
        ("none", (), False),
        ("/opt/x/libnccl-net.so", (), False),
        ("libnccl-net.so", ("libnccl-net.so",), False),
        ("", (), False),
    ],
)
def test_network_plugin(value: str, names: tuple[str, ...], bad: bool) -> None:
    plugins = tuple(Plugin(name, "net", f"/usr/lib/{name}", f"/usr/lib/{name}") for name in names)
    result = run("software.network_plugin", host(plugins=plugins), Plan(env={"NCCL_NET_PLUGIN": value}))
    assert [item[0] for item in ids(result)] == (["net.plugin.missing"] if bad else [])


def nccl(version: str) -> dict[str, Any]:
    return {"software": software(nccl=(copy(OWN, version, "RPATH of libtorch_cuda.so", True),))}


def test_the_minority_is_named() -> None:
    found = only(run("software_drift.drift", {"a": nccl("2.27.3"), "b": nccl("2.26.2"), "c": nccl("2.27.3")}))
    assert (found.id, found.hosts, found.severity) == ("sw.nccl-version-mismatch", ("b",), Severity.FAIL)
    assert found.title == "NCCL differs: 2.26.2 on b; the other 2 hosts have 2.27.3" and len(found.fixes) == 1


def test_of_two_that_differ_both_are_named() -> None:
    found = only(run("software_drift.drift", {"a": nccl("2.27.3"), "b": nccl("2.26.2")}))
    assert found.hosts == ("a", "b") and "no version has a majority" in found.title


def test_installed_nccl_counts_where_torch_uses_none() -> None:
    cpu = torch(version="2.8.0+cpu", cuda="", nccl_link="none")

    def facts(version: str) -> dict[str, Any]:
        return {"software": software(torch=cpu, nccl=(), distributions={"nvidia-nccl-cu12": version})}

    assert ids(run("software_drift.drift", {"a": facts("2.28.9"), "b": facts("2.26.2"), "c": facts("2.28.9")})) == [
        ("sw.nccl-version-mismatch", ("b",))
    ]


def test_drift_of_lesser_subjects_is_graded_and_folded() -> None:
    odd = software(
        python=msgspec.structs.replace(software().python, version="3.11.2"),  # the patch level does not count
        driver=driver(version="570.10.01"),
        system=msgspec.structs.replace(software().system, kernel="5.4", glibc="2.31"),
    )
    three = {"a": host()["a"], "b": {"software": odd}, "c": host()["a"]}
    result = run("software_drift.drift", three, Plan(stages=("software",)))
    assert ids(run("software_drift.drift", three), Severity.WARN) == []  # the gpu stage compares drivers
    assert ids(result, Severity.WARN) == [("sw.drift.driver", ("b",))]
    assert ids(result, Severity.INFO) == [("sw.drift.system", ("b",))]
    assert "kernel (and C library) differs" in result.findings[1].title


def test_two_versions_of_torch_are_no_other_python() -> None:
    (found,) = [
        item
        for item in run(
            "software_drift.drift", {"a": host(torch=torch(version="2.7.1"))["a"], "b": host()["a"]}
        ).findings
        if item.severity is Severity.FAIL
    ]
    assert "torch" in found.title and not any("--python" in fix.text for fix in found.fixes)


def test_a_host_without_torch_differs_in_torch_alone() -> None:
    cpu = software(torch=torch(version="2.13.0+cpu", cuda=""))
    result = run("software_drift.drift", {"a": {"software": cpu}, "b": host(torch=None)["a"], "c": {"software": cpu}})
    (found,) = [item for item in result.findings if item.severity is Severity.FAIL]
    assert (found.id, found.hosts) == ("sw.nccl-version-mismatch.torch", ("b",))
    assert "--python" in found.fixes[1].text


def test_drift_table_lists_equal_rows_too_and_leaves_out_what_nobody_has() -> None:
    rows = {row.subject: row for row in drift_table({"a": software(), "b": software()})}
    assert rows["NCCL"].equal and rows["NCCL"].values == (("2.27.3", ("a", "b")),)
    assert "OFED" not in rows and set(rows) <= set(subjects())


def test_drift_rows() -> None:
    row = drift.row("x", {"a": "1", "b": "2", "c": "1", "d": "2"})
    assert row.tie and not row.odd and row.differing == ("a", "b", "c", "d") and not row.majority
    row = drift.row("x", {"c": "1", "a": "1", "b": ""})
    assert row.odd == ("b",) and row.majority == "1" and row.values[0] == ("1", ("a", "c"))
    assert drift.row("x", {"a": "1"}).equal and drift.row("x", {}).differing == ()


@pytest.mark.parametrize(
    ("torch", "wanted"),
    [
        (Torch(SITE, "2.8.0", "12.8", "", "shared"), "12.8"),
        (Torch(SITE, "2.8.0", "", "6.3", "shared"), "ROCm 6.3"),
        (Torch(SITE, "2.8.0", "", "", "shared"), "none"),
        (None, ""),
    ],
)
def test_what_torch_was_built_with_is_compared(torch: Torch | None, wanted: str) -> None:
    plugins = (
        Plugin("sharp", "net", "/a/libnccl-net.so", "/opt/b/libnccl-net-sharp.so.2"),
        Plugin("t", "tuner", "/a/libnccl-tuner.so", "/a/libnccl-tuner.so"),
    )
    found = versions(software(torch=torch, plugins=plugins))
    assert found["torch CUDA"] == wanted and found["network plugin"] == "libnccl-net-sharp.so.2"


@pytest.mark.parametrize(("need", "differs"), [("same=torch", True), ("same=numpy", False), ("same=numpy+torch", True)])
def test_what_is_required_to_be_the_same_differs(need: str, differs: bool) -> None:
    other = host(torch=torch(version="2.7.1+cu128"))["a"]
    fleet = {"a": host()["a"], "b": other, "c": host()["a"]}
    found = run("requirements.same", fleet, Plan(require=(need,))).findings
    assert [(item.id, item.hosts) for item in found] == [("require.same", ("b",))] * differs


def test_what_no_host_has_is_not_known_to_be_the_same() -> None:
    result = run("requirements.same", {name: host()["a"] for name in "ab"}, Plan(require=("same=cudnn",)))
    assert not result.passed and result.unknown[0].what == "same=cudnn"
