"""What links carry: lanes and rates of PCIe, bit errors and drops of ports, and what tests measured over them."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

# Of a network adapter: Linux says the same of disks and GPUs.
_SLOT = re.compile(
    r"\b(?:mlx[45]\w*|bnxt_en|ice|irdma|ionic|efa|hfi1|cxgb4|qede|enic) .{0,40}?(?P<gbits>\d+\.\d+) Gb/s available"
)
says(
    "pcie-limited",
    " Gb/s available PCIe bandwidth, limited by {speed} link at {at:word} (capable of {capable:num} Gb/s",
    why="Linux (pcie_print_link_status): an adapter's slot, or a bridge above it, carries less than the adapter could.",
    pattern=_SLOT,
)
says(
    "pcie-whole",
    " Gb/s available PCIe bandwidth (",
    why="Linux (pcie_print_link_status): an adapter's PCIe link is as wide and as fast as the adapter's.",
    pattern=_SLOT,
)
says(
    "pcie-table",
    "pcie.link.width.current",
    "pcie.link.gen.",
    why="nvidia-smi was asked for the lanes, or the generation, of the GPUs' PCIe links; below the heading (or the command) a row for each.",
    where=lambda groups, line: "," in line,
    rows=24,
)
says(
    "pcie-lanes",
    "Current {}: {lanes:int}x",
    why="nvidia-smi -q: the lanes of a GPU's PCIe link.",
    pattern=re.compile(r"\bCurrent\s+: \d+x\s*$"),
    every=True,
)
_BIT_ERRORS = re.compile(r"(?:Effective Physical|Symbol) BER\s*:\s*(?P<rate>\d+(?:\.\d+)?[eE]-?\d+)")
says(
    "bit-errors",
    "Effective Physical BER {}: ",
    "Symbol BER {}: ",
    why="mlxlink: bit errors that are left after forward error correction, since the counters were cleared.",
    pattern=_BIT_ERRORS,
    where=lambda groups, line: "Link " not in line,  # that of an NVLink
)
RECOVERED = re.compile(r"LinkErrorRecoveryCounter(?: == |:\.+)(\d{1,9})\b")
says(
    "fabric-errors",
    "[LinkErrorRecoveryCounter == ",
    "[SymbolErrorCounter == ",
    "LinkErrorRecoveryCounter:.",
    why="ibqueryerrors, perfquery: a port's counters since they were cleared.",
)
DROPS = re.compile(r"\b(out_of_sequence|packet_seq_err|rx_discards_phy|rx_out_of_buffer)\W{1,24}(\d+)")
says(
    "packets-lost",
    "out_of_sequence",
    "packet_seq_err",
    "rx_discards_phy",
    "rx_out_of_buffer",
    why="Counters of an adapter (hw_counters, rdma statistic, ethtool -S): packets of RoCE that came in the wrong order, or not at all.",
    where=lambda groups, line: any(int(count) > MANY for _, count in DROPS.findall(line)),
)
MANY = 100_000  # packets: retransmissions that cost speed; adaptive routing and old trouble make some
says(
    "flow-control",
    "enabled ",
    why="mlnx_qos: for which of the eight priorities a port has flow control (PFC).",
    pattern=re.compile(r"\benabled(?:\s+[01]){8}\s*$"),
    sampled=True,
)
RESENT = re.compile(r"(?<!\d)(\d{1,18}) segments retrans|TcpRetransSegs\s+(\d+)|\bretrans:\d+/(\d+)")
SENT = re.compile(r"(?<!\d)(\d{1,18}) segments sen[dt] out|TcpOutSegs\s+(\d+)|\bsegs_out:(\d+)")
says(
    "tcp-counters",
    " segments ",
    "TcpRetransSegs ",
    "TcpOutSegs ",
    "segs_out:",
    sampled=True,
    every=True,
    why="netstat -s, nstat or ss -ti: how many segments TCP sent, and how many of them again.",
    where=lambda groups, line: (RESENT.search(line) or SENT.search(line)) is not None,
)
GARBLED = re.compile(
    r"\b(rx_(?:pcs_)?(?:crc|fcs|symbol|align)_err(?:or)?s?(?:_phy|_count)?|rx_crc_align_errors): (\d{1,18})"
)
says(
    "garbled-frames",
    "rx_crc_err",
    "rx_fcs_err",
    "rx_symbol_err",
    "rx_pcs_symbol_err",
    "rx_align_err",
    sampled=True,
    every=True,
    why="ethtool -S: frames that an interface received garbled since the counters were cleared.",
    pattern=GARBLED,
)
says(
    "interface-counts",
    "RX: {}bytes {}packets {}errors",
    rows=1,
    every=True,
    why="ip -s link: what an interface received, and how many frames of it were in error, or had no place.",
)
_SENDER = re.compile(
    r"sec\s+(?P<amount>\d+(?:\.\d+)?) (?P<unit>[KMGT]?)Bytes\s+(?P<rate>\d+(?:\.\d+)? [KMG])bits/sec\s+(?P<again>\d+)\s+sender"
)
says(
    "iperf-sender",
    "bits/sec {}sender",
    sampled=True,
    every=True,
    why="iperf3: what it sent over TCP, how fast, and how many segments of it again.",
    pattern=_SENDER,
)
PAUSED = re.compile(r"\b(rx_(?:prio\d_|global_)?pause(?:_frames|_phy)?|rx_pause_ctrl_phy): (\d{1,18})")
says(
    "paused",
    "_pause: ",
    "_pause_frames: ",
    "_pause_ctrl_phy: ",
    sampled=True,
    every=True,
    why="ethtool -S: pause frames that an interface received: how often the other end had it stop sending.",
    pattern=PAUSED,
)
_LIMITED = re.compile(r"qdisc tbf .{1,80}?\brate (?P<rate>\d{1,6}(?:\.\d{1,3})?)(?P<unit>[KMG])bit")
says(
    "rate-limit",
    "qdisc tbf {}dev {interface} {}rate ",
    "qdisc tbf {}rate ",
    sampled=True,
    every=True,
    why="tc: a token bucket limits what an interface sends.",
    pattern=_LIMITED,
)
says(
    "osu-table",
    "# OSU MPI {}andwidth Test",
    rows=32,
    every=True,
    why="The heading of osu_bw or osu_bibw: what two processes exchange over MPI, in MB/s for each size.",
)
says(
    "interface-load",
    " IFACE {}%ifutil",
    rows=24,
    every=True,
    why="The heading of sar -n DEV: what each interface carries, and what part of its rate that is.",
)
says(
    "port-lanes",
    "Width {}: {lanes:int}x",
    "active_width:{}X (",
    sampled=True,
    every=True,
    why="mlxlink or ibv_devinfo: with how many lanes a port came up.",
)
says(
    "port-speed",
    "Speed {}: IB-{speed:word}",
    "active_speed:{}bps (",
    sampled=True,
    every=True,
    why="mlxlink of InfiniBand, or ibv_devinfo: the rate of one lane, or of the port.",
)
says(
    "copy-matrix",
    "CPU(row) {}GPU(column) bandwidth (GB/s)",
    "GPU(row) {}GPU(column) bandwidth (GB/s)",
    rows=20,
    every=True,
    why="nvbandwidth: what each GPU exchanges with the host, or with each other GPU.",
)
says(
    "copy-test",
    "Transfer Size (Bytes){}Bandwidth(GB/s)",
    rows=1,
    every=True,
    why="CUDA's bandwidthTest: what a GPU exchanges with the host.",
)
says(
    "pause-storm",
    # SONiC (orchagent/pfcwdorch.cpp) and its `show pfcwd stats`
    "PFC Watchdog detected PFC storm on port {port:word}",
    "Ethernet{port:int}:{queue:int} {}stormed",
    "Got PFC {frames:int} frame(s) on lossy queue {queue:int} port {port:word}",
    "tx_pause_storm_error_events: {count:int}",  # ethtool -S of mlx5
    cause="ib.retry-exceeded",
    strength=0.7,
    title="a switch or adapter reports a storm of PFC pause frames: RoCE traffic of that queue is held, then dropped",
    why="A host that takes its packets too slowly, or hangs, has its port send pause frames without end; a switch's watchdog then drops the lossless "
    "queue. On a queue that is lossy here, the two ends count different priorities as lossless.",
    where=lambda groups, line: groups.get("count") != "0",
)
says(
    "perftest-table",
    "BW average[{unit}]",
    why="The heading of perftest's results (ib_write_bw and its kin).",
    rows=24,
)
says(
    "pairs-table",
    "pair {}busbw",
    "pair {}GB/s",
    "pair {}Gb/s",
    "pair {}andwidth",
    "airs{}busbw",
    "airs{}GB/s",
    "airs{}Gb/s",
    "airs{}andwidth",
    why="The heading of a table of what pairs of hosts reach.",
    pattern=re.compile(r"\b[Pp]airs?\b.{1,80}(?:busbw|G[Bb]/s|andwidth)"),
    rows=190,
)
