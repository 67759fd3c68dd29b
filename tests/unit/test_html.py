"""The HTML page: what it says, that hostile text stays text, how large it grows, and how it behaves in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser as browsers
import msgspec
import page_fleet
import pytest
from facts_builder import NAMES, Builder
from typing_in import typed

from nccl_doctor.bench.model import Link, RankRecord
from nccl_doctor.facts.model import Bundle, HostFacts, Reach, ReachOutcome
from nccl_doctor.findings.model import Evidence, Severity, Unknown, finding
from nccl_doctor.report.html import render
from nccl_doctor.report.html.measured import heatmaps
from nccl_doctor.report.html.page import matrix
from nccl_doctor.rules.gate import decide
from nccl_doctor.rules.judge import StageResult, judge

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202eevil</style></title>{{7*7}}"
needs_gcc = pytest.mark.skipif(page_fleet.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
needs_browser = pytest.mark.skipif(browsers.program() is None, reason="no chromium: the page cannot be opened")


class Elements(HTMLParser):
    """Counts elements, and collects attribute names and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[tuple[str, str]] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(bundle: Bundle, **more: Any) -> str:
    return render(judge(bundle), bundle, **more)


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    return page_fleet.hardware()


@pytest.fixture(scope="module")
def broken(machine: dict[str, Any]) -> str:
    sick = page_fleet.hardware(nvlink_lost={3})
    bundle = page_fleet.broken(machine, sick).bundle()
    return page(bundle, runs=page_fleet.runs())


# ---- what it says ----


@needs_gcc
def test_a_healthy_fleet(machine: dict[str, Any]) -> None:
    bundle = page_fleet.builder(machine).bundle()
    report = judge(bundle)
    assert report.verdict == "healthy", (report.findings, report.unknown)
    text = Elements(render(report, bundle)).text
    assert "HEALTHY: 4 hosts passed every check" in text
    assert "gpu[01-04] (4)" in text
    assert "Not checked" not in text and "uneven" not in text


@needs_gcc
def test_every_section_of_a_broken_fleet(broken: str) -> None:
    found = Elements(broken)
    for section in ("hosts", "findings", "unknown", "environment", "pairs", "bandwidth", "topology", "drift"):
        assert f'<section id="{section}"' in broken and f"#{section}" in found.links
    assert "FAULTY" in found.text.split("Hosts")[0]
    assert "gpu.nvlink.lost" in found.text and "host.ssh-timeout" in found.text
    assert "Connection timed out" in found.text  # evidence
    assert "How to confirm" in found.text  # playbook


@needs_gcc
def test_topology_is_drawn_with_gpu_nic_switch_numa_and_links(broken: str) -> None:
    text = Elements(broken).text
    assert "GPU pairs by link: 28 NV18; 4 NVSwitches" in text
    assert re.search(r"GPU pairs by link: 21 NV18, .*NODE", text)  # GPU3 without NVLink
    assert "NUMA node 0" in text and "NUMA node 1" in text
    assert "GPU0" in text and "NIC mlx5_0" in text and "0000:1b:00.0 x16" in text
    # GPU 0 and its NIC hang under one bridge.
    box = re.search(r'<div class="box">(?:(?!<div class="box">).)*GPU0<.*?</div></div>', broken, re.S)
    assert box and "mlx5_0" in box.group() and "0000:18:01.0" in box.group() and "mlx5_1" not in box.group()


def test_a_narrow_link_is_marked() -> None:
    from nccl_doctor.facts.topology import PciDevice
    from nccl_doctor.report.html.topologies import _chip

    chip = _chip(PciDevice("0000:1b:00.0", "gpu", link_width="8", link_width_max="16"), {"0000:1b:00.0": "GPU2"})
    assert (chip.name, chip.detail, chip.narrow) == ("GPU2", "0000:1b:00.0 x8 of x16", True)
    assert not _chip(PciDevice("0000:1b:00.0", "gpu"), {}).narrow


@pytest.mark.parametrize(
    ("kind", "cell"),
    [("NV18", ("NV18", "nv")), ("PIX", ("PIX", "pix")), ("", ("?", "cut"))],
)
def test_a_cell_of_the_matrix(kind: str, cell: tuple[str, str]) -> None:
    from nccl_doctor.report.html.topologies import _matrix_cell

    assert _matrix_cell("GPU0", "GPU1", kind) == cell
    assert _matrix_cell("GPU0", "GPU0", kind) == ("", "self")


@needs_gcc
def test_bandwidth_with_ceiling_and_baseline(broken: str) -> None:
    text = Elements(broken).text
    assert "ceiling 477 GB/s" in text and "in place, yesterday" in text
    assert re.search(r"cannot-judge\s+allreduce: ", text)  # which collective it is that cannot be judged
    assert re.search(r"8G\s*258 GB/s\s*470 GB/s\s*slower by 45 %", text), text[text.find("baseline") :][:1500]


@needs_gcc
def test_the_uneven_heatmap_is_open_and_the_even_ones_are_folded(broken: str) -> None:
    maps = re.findall(r'<details class="map"( open)?><summary><b>(.*?)</b>', broken)
    assert [(bool(opened), title.split(",")[0]) for opened, title in maps] == [
        (True, "Round trip of small messages"),
        (False, "TCP throughput"),
        (False, "Largest packet that passes (B)"),
    ]
    assert re.search(r'<td class="h9">4.2</td>', broken)


@pytest.mark.parametrize("peers", [("gpu01",), NAMES], ids=["one path", "all paths alike"])
def test_a_path_that_takes_less_than_its_interface_sends_is_red(peers: tuple[str, ...]) -> None:
    """By a hundred bytes only, and be it all of them: the median of what is broken is no measure."""

    def packets(made: Builder) -> Any:
        (found,) = [map for map in heatmaps(made.bundle()) if map.title == "Largest packet that passes"]
        return found

    made = Builder(NAMES)
    assert packets(made).even
    for _, path in made.each("path-mtu"):
        if path["peer"] in peers:
            path.update(outcome="black-hole", largest_passed=1400)
    found = packets(made)
    assert not found.even and found.cells[1][0] == ("1400", 1.0) and "interface" in found.ways


def exchange(slow: str, hosts: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    """What rank 0 tells of its pairs of hosts, one of which is slow with everybody."""
    pairs = [(a, b) for a in range(len(hosts)) for b in range(a + 1, len(hosts))]
    took = {pair: 0.04 if slow in (hosts[pair[0]], hosts[pair[1]]) else 0.002 for pair in pairs}
    return [{"event": "link", "first": a, "second": b, "size": 2 << 20, "seconds": took[a, b]} for a, b in pairs]


def test_pairs_of_the_collectives_are_a_map() -> None:
    made = Builder(NAMES)
    made.stages = ("collectives",)
    for rank, name in enumerate(NAMES):
        made.probes[name]["collectives"] = {
            "host": name,
            "backend": "gloo",
            "world": len(NAMES),
            "ranks": [{"rank": rank, "finished": True}],
            "events": [] if rank else exchange("gpu03"),
        }
    bundle = made.bundle()
    (found,) = [map for map in heatmaps(bundle) if "Exchange" in map.title]
    assert (found.title, found.unit, found.even) == ("Exchange of host pairs over gloo", "GB/s", False)
    assert found.summary.startswith("6 pairs: from 0.0524 to 1.05 GB/s")
    assert found.cells[0][2] == found.cells[2][0] == ("0.0524", 1.0) and found.cells[0][1] == ("1.05", 0.0)
    assert all(found.cells[index][index] is None for index in range(4))
    text = render(judge(bundle), bundle)
    assert "Both send and receive at the same time" in text and 'class="h9">0.0524' in text


def test_pairs_of_a_bench_run_are_a_map() -> None:
    (label, run), _ = page_fleet.runs()
    ranks = tuple(RankRecord(rank, name) for rank, name in enumerate(NAMES))
    links = (Link(0, 1, 8 << 20, 40.0), Link(2, 3, 8 << 20, 4.0), Link(0, 9, 8 << 20, 1.0))
    run = msgspec.structs.replace(run, results=msgspec.structs.replace(run.results, ranks=ranks, links=links))
    (found,) = heatmaps(Builder(NAMES).bundle(), [(label, run)])[-1:]
    assert found.title == "Exchange of host pairs over nccl, today"
    assert found.cells[2][3] == ("4", 1.0) and found.cells[0][3] is None  # measured, and not measured


@needs_gcc
def test_drift_shows_the_odd_host_first(broken: str) -> None:
    drift = broken[broken.index('<section id="drift"') :]
    odd = re.search(r'<tr data-filter class="odd">.*?2\.1\.9.*?</tr>', drift, re.S)
    assert odd and "gpu05" in odd.group()


def test_the_matrix_folds_equal_hosts_and_never_passes_what_was_not_reached() -> None:
    fleet = Builder()
    fleet.reach["gpu02"] = msgspec.structs.replace(
        fleet.reach["gpu02"], outcome=type(fleet.reach["gpu02"].outcome).TIMED_OUT
    )
    rows = {row.hosts: row for row in matrix(judge(fleet.bundle()))}
    assert {state for state, _ in rows["gpu02"].cells} <= {"fail", "unknown"}
    assert "gpu[01,03-04]" in rows and rows["gpu[01,03-04]"].count == 3


def test_what_applies_to_no_host_that_was_reached_is_unknown_of_the_others() -> None:
    skipped = (StageResult("gpu", "skipped", 0, 2, "no NVIDIA GPU on any host"),)
    gaps = (Unknown("every stage", ("gpu02",), "no agent: refused", stages=("gpu",)),)
    report = msgspec.structs.replace(judge(Builder(("gpu01", "gpu02")).bundle()), stages=skipped, unknown=gaps)
    cells = {row.hosts: row.cells for row in matrix(report)}
    assert cells["gpu01"] == (("skipped", "no NVIDIA GPU on any host"),)
    assert cells["gpu02"] == (("unknown", "every stage: no agent: refused"),)


def test_a_host_that_only_suffers_from_another_is_not_marked_as_failing() -> None:
    report = judge(Builder(stages=("connectivity", "ports", "collectives")).bundle())
    cause = finding("net.firewall.dropped", Severity.FAIL, "closed", Evidence("x"), hosts=("gpu02",))
    effect = finding("net.master-unreachable", Severity.FAIL, "far", Evidence("x"), hosts=("gpu02", "gpu03"))
    found = [msgspec.structs.replace(item, stage="ports") for item in (cause, effect)]
    found[1] = msgspec.structs.replace(found[1], folded_under=cause.id)
    rows = {row.hosts: row.cells[1] for row in matrix(msgspec.structs.replace(report, findings=tuple(found)))}
    assert rows["gpu02"] == ("fail", "net.firewall.dropped")
    assert rows["gpu03"] == ("effect", "net.master-unreachable, explained by net.firewall.dropped")


def test_what_fails_and_names_nobody_is_held_against_everybody() -> None:
    report = judge(Builder().bundle())
    of_nobody = finding("require.same", Severity.FAIL, "of nobody", Evidence("a"))
    of_nobody = msgspec.structs.replace(of_nobody, stage=report.stages[0].name)
    (row,) = matrix(msgspec.structs.replace(report, findings=(of_nobody,)))
    assert row.count == 4 and row.cells[0] == ("fail", "require.same")


def test_the_gate_comes_first() -> None:
    bundle = Builder().bundle()
    report = judge(bundle)
    text = Elements(render(report, bundle, decide(report))).text
    assert "GO: 4 of 4 hosts are good" in text and "run on gpu[01-04]" in text
    spared = Elements(render(report, bundle, decide(report, min_hosts=3, spares=1))).text
    assert "run on gpu[01-03] (3); spare: gpu04" in spared
    everyone_bad = Builder()
    for host in NAMES:
        everyone_bad.reach[host] = Reach(ReachOutcome.REFUSED, "refused")
    bundle = everyone_bad.bundle()
    report = judge(bundle)
    text = Elements(render(report, bundle, decide(report))).text
    assert "NO-GO: 0 of 4" in text and "no host is good" in text and "run on" not in text


# ---- hostile text, and no way out of the page ----


def hostile(bundle: Bundle) -> Bundle:
    """The same bundle, with every string that came from a host, and the hosts' names, followed by markup."""

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one) for one in value]
        return value + HOSTILE if isinstance(value, str) and len(value) > 40 else value

    def host(facts: HostFacts) -> HostFacts:
        reach = msgspec.structs.replace(facts.reach, evidence=tuple(line + HOSTILE for line in facts.reach.evidence))
        probes = {name: msgspec.structs.replace(one, data=spoil(one.data)) for name, one in facts.probes.items()}
        return msgspec.structs.replace(facts, name=facts.name + HOSTILE, reach=reach, probes=probes)

    return msgspec.structs.replace(bundle, hosts=tuple(map(host, bundle.hosts)))


@needs_gcc
def test_hostile_names_and_lines_stay_text(machine: dict[str, Any], broken: str) -> None:
    sick = page_fleet.hardware(nvlink_lost={3})
    bundle = hostile(page_fleet.broken(machine, sick).bundle())
    runs = [(label + HOSTILE, run) for label, run in page_fleet.runs()]
    text = page(bundle, runs=runs)
    spoiled, harmless = Elements(text), Elements(broken)
    assert set(spoiled.tags) <= set(harmless.tags) and spoiled.tags["script"] == 1 and not spoiled.tags["img"]
    assert spoiled.tags["style"] == harmless.tags["style"] == 1
    assert spoiled.attributes <= harmless.attributes
    assert "<script>alert(1)</script>" in spoiled.text  # shown as text
    assert "\x1b" not in text and "\u202e" not in text and "{{7*7}}" in spoiled.text
    assert not [name for _, name in spoiled.attributes if name.startswith("on")]


@needs_gcc
def test_nothing_foreign_can_load(broken: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', broken)
    rules = dict(part.strip().split(" ", 1) for part in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'" and rules["form-action"] == "'none'" and rules["base-uri"] == "'none'"
    (script,) = re.findall(r"<script>(.*?)</script>", broken, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not re.search(r"https?:|\*", policy)
    assert all(link.startswith("#") for link in Elements(broken).links)
    assert "url(" not in broken and "@import" not in broken


# ---- size ----


def big(count: int, machine: dict[str, Any]) -> Bundle:
    """Hosts with all probes of a GPU host; every seventh has a fault of its own."""
    sample = page_fleet.builder(machine).bundle().hosts[0]
    sick = page_fleet.hardware(nvlink_lost={3})["topology"]
    spoiled = {**sample.probes, "topology": msgspec.structs.replace(sample.probes["topology"], data=sick)}
    hosts = tuple(
        msgspec.structs.replace(sample, name=f"node{n:05d}", probes=spoiled if n % 7 == 0 else sample.probes)
        for n in range(count)
    )
    plan = page_fleet.builder(machine).bundle().plan
    return Bundle(1, "test", "2026-01-01T00:00:00+00:00", plan, hosts)


@needs_gcc
def test_a_thousand_hosts_stay_under_three_megabytes_and_size_is_linear(machine: dict[str, Any]) -> None:
    small, large = (len(page(big(count, machine)).encode()) for count in (250, 1000))
    assert large < 3_000_000
    assert large < 4.4 * small


# ---- in a browser ----


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsers.Browser]:
    with browsers.browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def opened(tab: browsers.Browser, broken: str, tmp_path: Path) -> browsers.Browser:
    path = tmp_path / "report.html"
    path.write_text(broken, encoding="utf-8")
    tab.open(path)
    return tab


@needs_gcc
@needs_browser
def test_it_opens_without_complaint_and_asks_for_nothing(opened: browsers.Browser) -> None:
    assert opened.eval("document.title").startswith("nccl-doctor: FAULTY")
    assert opened.complaints() == []
    assert [url for url in opened.requests() if not url.startswith("file:")] == []
    assert len(opened.requests()) == 1


@needs_gcc
@needs_browser
def test_the_policy_stops_scripts_and_requests_that_get_in_nevertheless(opened: browsers.Browser) -> None:
    opened.eval(
        """(() => { const s = document.createElement('script'); s.textContent = 'window.got = 1';
        document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:9/x'; document.body.append(i);
        return fetch('http://127.0.0.1:9/y').then(() => 1, () => 0); })()"""
    )
    assert opened.eval("window.got") is None
    told = " ".join(opened.complaints())
    for address in ("127.0.0.1:9/x", "127.0.0.1:9/y"):
        assert re.search(rf"{re.escape(address)}[^}}]*Content Security Policy", told), told
    failed = [e["params"] for e in opened.events if e.get("method") == "Network.loadingFailed"]
    assert failed and all(one.get("blockedReason") == "csp" for one in failed)


@needs_gcc
@needs_browser
def test_the_filter_filters(opened: browsers.Browser) -> None:
    shown = "[...document.querySelectorAll('[data-filter]')].filter((n) => !n.hidden).length"
    total = opened.eval(shown)
    opened.eval("document.getElementById('filter').focus()")
    opened.type("nvlink.lost gpu03")
    left = opened.eval(
        "[...document.querySelectorAll('[data-filter]')].filter((n) => !n.hidden).map((n) => n.innerText)"
    )
    assert 0 < len(left) < total
    assert opened.eval("document.querySelectorAll('details.finding:not([hidden])').length") == 1
    assert opened.eval("document.getElementById('count').textContent") == f"{len(left)} of {total} rows"
    names = "[...document.querySelectorAll('.matrix tbody tr:not([hidden]) th')].map((n) => n.innerText).join(' ')"
    for host, seen in (("gpu04", True), ("gpu99", False)):  # folded: gpu[01-02,04-06]
        opened.eval("document.getElementById('filter').select()")
        opened.type(host)
        assert ("04" in opened.eval(names)) is seen and "gpu03" not in opened.eval(names)
    opened.eval("document.getElementById('filter').select()")
    opened.press("Backspace", 8)
    assert opened.eval(shown) == total


@needs_gcc
@needs_browser
def test_findings_open_by_keyboard(opened: browsers.Browser) -> None:
    second = "document.querySelectorAll('details.finding')[1]"
    assert opened.eval(f"{second}.open") is False
    opened.eval(f"{second}.querySelector('summary').focus()")
    opened.press("Enter", 13, "\r")
    assert opened.eval(f"{second}.open") is True
    assert opened.eval(f"{second}.querySelector('pre').getBoundingClientRect().height") > 0
    opened.press("Enter", 13, "\r")
    assert opened.eval(f"{second}.open") is False


@needs_gcc
@needs_browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phones_and_both_schemes(opened: browsers.Browser, width: int, scheme: str) -> None:
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    # The page itself never scrolls sideways; wide tables scroll within their box.
    assert opened.eval("document.documentElement.scrollWidth") <= width
    ground, ink = opened.eval(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (
        (_light(ground) > 0.8 > 0.4 > _light(ink)) if scheme == "light" else (_light(ground) < 0.2 < 0.6 < _light(ink))
    )
    tall = "[...document.querySelectorAll('.matrix tbody tr')].map((row) => row.getBoundingClientRect().height)"
    assert max(opened.eval(tall)) < 120  # names do not break letter by letter


@needs_gcc
@needs_browser
@pytest.mark.parametrize("width", [360, 1280])
def test_a_thousand_hosts_fit_and_their_names_are_folded_away(
    tab: browsers.Browser, machine: dict[str, Any], tmp_path: Path, width: int
) -> None:
    path = tmp_path / "large.html"
    path.write_text(page(big(1000, machine)), encoding="utf-8")
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    tab.open(path)
    assert tab.complaints() == []
    assert tab.eval("document.documentElement.scrollWidth") <= width
    assert tab.eval("document.querySelector('.matrix').getBoundingClientRect().height") < 400
    tab.eval("document.querySelector('.matrix summary').focus()")
    tab.press("Enter", 13, "\r")
    assert "00994]" in tab.eval("document.querySelector('.matrix details[open]').innerText")


def _light(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765


@needs_gcc
@needs_browser
def test_it_prints_with_everything_open(opened: browsers.Browser) -> None:
    opened.eval("dispatchEvent(new Event('beforeprint'))")
    assert opened.eval("document.querySelectorAll('details.finding:not([open])').length") == 0
    opened.eval("dispatchEvent(new Event('afterprint'))")
    assert opened.eval("document.querySelectorAll('details.finding[open]').length") == 1
    assert base64.b64decode(opened.call("Page.printToPDF", printBackground=True)["data"]).startswith(b"%PDF")


def test_curves_for_a_format_that_draws_none_are_refused() -> None:
    told = typed("report run.ndb --format json --bench run.json")
    assert told.exit_code == 2 and "--bench draws curves" in told.output
