"""IP networks: reaching the master, names, ports, firewalls, interfaces, MTU."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "master-timeout",
    "client socket has timed out after {timeout} while trying to connect to ({host}, {port:int})",
    "client socket has timed out after {timeout} while trying to connect to [{host}]:{port:int}",
    "client socket has timed out after {timeout} while trying to connect to {host}:{port:int}",
    "connect() timed out. Original timeout was",
    "RuntimeError: connect() timed out",  # before torch 1.5
    "TCP client failed to connect/validate to host {host}:{port:int} - timed out",
    "TCP connected {host}:{port:int} fail, please check your network",  # Paddle
    cause="net.master-unreachable",
    strength=0.8,
    title="the master at {host}:{port} could not be reached",
    why="The c10d store at MASTER_ADDR:MASTER_PORT never answered: rank 0 not started, wrong address, or a firewall.",
)
says(
    "master-unreachable",
    "failed to connect to any network address of ({host}, {port:int})",
    "client socket has failed to connect to any network address of ({host}",
    cause="net.master-unreachable",
    strength=0.84,
    title="the master at {host}:{port} could not be reached",
    why="No address of MASTER_ADDR accepted a connection.",
)
says(
    "master-refused",
    "client socket has failed to connect to [{host}]:{port:int} (errno: {errno:int} - {error})",
    "failed to connect to [{host}]:{port:int} (errno: {errno:int}",
    "failed to connect to [{host}]:{port:int} (system error",
    "TCP client failed to connect/validate to host {host}:{port:int} - retrying",
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    strength=0.42,
    fold="connection attempts to the store",
    title="the master at {host}:{port} does not accept connections",
    why="One attempt of many: normal while rank 0 is still starting, an error when it goes on.",
    where=lambda groups, line: "errno: 97" not in line,
)
says(
    "connect-attempt-lost",
    "The server socket on {address} has timed out, will retry",
    role=Role.SYMPTOM,
    cause="net.firewall",
    strength=0.46,
    fold="connection attempts that nobody answers",
    title="nothing comes back from {address}: a firewall drops what is sent there, or the address is none of the master's",
    why="c10d tells a refused attempt in other words (is not yet listening): here the packets were lost.",
)
says(
    "rdzv-connection",
    "The connection to the C10d store has failed",
    "RendezvousConnectionError",
    cause="net.master-unreachable",
    strength=0.72,
    title="the rendezvous endpoint could not be reached",
    why="The agent cannot connect to the rendezvous host: it is not up, the address is wrong, or the port is blocked.",
    where=lambda groups, line: "due to an error of type" not in line,  # of an agent that leaves
)
says(
    "launcher-ssh-failed",
    "Command 'ssh -o PasswordAuthentication=no {host} hostname' returned non-zero exit status",  # DeepSpeed
    "unable to run bstrap_proxy on {host} (pid",  # Intel MPI
    cause="net.master-unreachable",
    strength=0.76,
    title="the launcher cannot start anything on {host}: mostly ssh without a password is not set up",
    why="The launcher logs in to every host of its list, the own one included, before it starts a rank.",
)
says(
    "supervisor-not-reached",
    "cannot connect to supervisor",  # Xinference
    cause="net.master-unreachable",
    strength=0.78,
    title="a worker cannot connect to its supervisor",
    why="The supervisor is not up, its address means another host from here, or one of its ports is blocked (Xinference uses several).",
)
says(
    "no-route-ssh",
    "ssh: connect to host {host} port {port:int}: {error}",
    cause="net.master-unreachable",
    strength=0.8,
    title="{host} does not answer on ssh: {error}",
    why="The launcher could not reach a host by ssh.",
)
says(
    "port-in-use",
    "EADDRINUSE",
    "ddress already in use",
    "has failed to listen on any local network address",
    "Only one usage of each socket address",
    "ort {port:int} is already in use",
    "but another process is utilizing it",
    "port is already allocated",  # Docker
    "port: {port:int} already in use",
    cause="net.port-in-use",
    strength=0.96,
    title="the port is already in use on this host",
    why="Another process (an older job, or a second rank 0) holds the port.",
    where=lambda groups, line: (
        re.search(r"ignoring the error|in use\b.{0,200}\b(?:trying|using|next port)|\bras/client_support\.cc:", line)
        is None
    ),
)
says(
    "port-reserved",
    "[WinError 10013]",
    "errno: 10013 - ",
    "system error: 10013 - ",
    cause="net.port-in-use",
    strength=0.82,
    title="Windows does not give out this port: Hyper-V, WSL or Docker reserved its range (netsh int ipv4 show excludedportrange tcp), or a firewall forbids it",
    why="WSAEACCES on bind or connect. With another --master-port, outside of the ranges shown, it works.",
)

# --- NCCL and Gloo sockets
says(
    "connect-timeout",
    "onnect to {address} failed : Connection timed out",
    "connect to {address} returned Connection timed out, exceeded",
    "connect returned Connection timed out, exceeded error retry count",
    "socketPollConnect: Connect to {address} returned {}Connection timed out",
    "exceeded timeouts",
    "ollConnect to {address} failed with error Connection timed out",
    "Call to connect failed : Connection timed out",
    "Call to connect timeout : Connection timed out",
    "dest_addr={address}) failed: Connection timed out",  # UCX
    "_complete_connect] connect() to {address} failed: Connection timed out",  # Open MPI
    cause="net.firewall",
    strength=0.68,
    title="connections to {address} are dropped: a firewall, or an address that cannot be reached",
    why="NCCL's connection to a peer's ephemeral port timed out: dropped by a firewall, or the peer advertised an address that is not routable from here.",
)
says(
    "connect-aborted",
    "onnect to {address} failed : Software caused connection abort",
    why="ECONNABORTED: a second connect() on a socket whose first attempt failed.",
)
says(
    "connect-noroute",
    "onnect to {address} failed : No route to host",
    "onnect to {address} failed : Network is unreachable",
    "onnect to {address} failed : Invalid argument",  # a link-local address of another host
    "onnect to {address} failed with error No route to host",
    "failed with error Network is unreachable",
    "ollConnect: Connect to {address} returned {}No route to host",
    "ollConnect: Connect to {address} returned {}Network is unreachable",
    "Call to connect failed : No route to host",
    "Call to connect failed : Network is unreachable",
    "SO_ERROR: No route to host, remote=[{address}]",
    "vs 0. SO_ERROR: No route to host",  # Gloo before 2019
    "connect [{address}]: No route to host",
    "connect [{address}]:{port:int}: No route to host",
    "(errno: 113 - No route to host)",
    "[Errno 113] No route to host",
    "dest_addr={address}) failed: No route to host",  # UCX
    "_complete_connect] connect() to {address} failed: No route to host",  # Open MPI
    cause="net.firewall",
    strength=0.66,
    title="no route to {address}: rejected by a firewall, or the wrong interface was chosen",
    why="'No route to host' between hosts that otherwise answer is what a rejecting firewall sends; between unrelated subnets it is the wrong interface.",
)
says(
    "connect-refused",
    "onnect to {address} failed : Connection refused",
    "SO_ERROR: Connection refused, remote=[{address}]",
    "vs 0. SO_ERROR: Connection refused",
    "connect [{address}]: Connection refused",
    "connect [{address}]:{port:int}: Connection refused",
    "[Errno 111] Connection refused",
    "ConnectionRefusedError",
    "ollConnect to {address} failed with error Connection refused",
    "Call to connect failed : Connection refused",
    "Call to connect timeout : Connection refused",
    "ollConnect: Connect to {address} returned {}Connection refused",
    "ollConnect: exceeded retries (",
    "tartConnect: exceeded retries (",
    "onnect to {address} returned Connection refused, exceeded",
    "returned Connection refused, exceeded error retry count",
    "dest_addr={address}) failed: Connection refused",  # UCX
    "_complete_connect] connect() to {address} failed: Connection refused",  # Open MPI
    "ECONNREFUSED: connection refused",  # TensorPipe, of torch.distributed.rpc
    "Connection refused (this error originated at tensorpipe/",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.42,
    fold="connections refused",
    title="connections to {address} are refused: no process listens there (any more)",
    why="Nothing listens at that address and port: the peer died, is not yet there, or the address is one's own.",
)
says(
    "rpc-peer-lost",
    "EPIPE: broken pipe (this error originated at tensorpipe/",
    "EOF: end of file (this error originated at tensorpipe/",
    "ECONNRESET: connection reset by peer (this error originated at tensorpipe/",
    "pipe closed (this error originated at tensorpipe/",
    "RPC agent for {rank_name} encountered error when {doing}",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.42,
    fold="a peer of torch.distributed.rpc is gone",
    title="a peer of torch.distributed.rpc closed its connection: it died, or left before the others",
    why="What happened to the other process is in its own lines; at the end of a job it is usual (rpc.shutdown() waits for all).",
)
says(
    "rpc-timeout",
    "RPC ran for more than set timeout ({milliseconds:int} ms)",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.45,
    fold="an RPC took too long",
    title="a call of torch.distributed.rpc took longer than {milliseconds} ms",
    why="The callee is slow, stuck or gone: its own lines say which.",
)
says(
    "rpc-listen",
    "In initFromLoop at {place}/transport/uv/listener.cc",
    cause="net.hostname-resolution",
    strength=0.8,
    title="TensorPipe (torch.distributed.rpc) cannot listen on what this host's own name resolves to: TP_SOCKET_IFNAME names the interface instead",
    why="The name resolves to a link-local address, or to one that this host does not have.",
)
says(
    "dgl-bind",
    "Failed bind on {address} , error: {error}",
    "Failed bind on {address} ,errno=98",
    cause="net.port-in-use",
    strength=0.8,
    title="DGL cannot listen on {address}: the port is taken, or the address is of another host",
    why='A server of an earlier run may still have the port. The errno is often lost on the way: "error: Success".',
    where=lambda groups, line: "tcp_socket.cc" in line and "annot assign" not in line,
)
says(
    "dgl-address",
    "Failed bind on {address} , error: Cannot assign requested address",
    "Failed bind on {address} ,errno=99",
    "] Invalid IP: {address}",
    cause="net.wrong-interface",
    strength=0.85,
    title="DGL's ip_config gives this host an address that none of its interfaces has: {address}",
    why="Each server listens on the address that its line of ip_config names: that of another host, or one from outside of the container, is none of its own.",
    where=lambda groups, line: "tcp_socket.cc" in line,
)
says(
    "dgl-connection",
    "tcp_socket.cc:{number:int}: recv error: {error}",
    "tcp_socket.cc:{number:int}: send error: {error}",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.46,
    fold="a connection of DGL broke",
    title="a connection of DGL to another server or client broke: {error}",
    why="That process ended, never answered, or is cut off: its own log says which. Resource temporarily unavailable is a time-out here.",
)
says(
    "lightgbm-port",
    "Binding port {port:int} failed",
    cause="net.port-in-use",
    strength=0.85,
    title="LightGBM cannot listen on port {port}: a worker of an earlier or another training has it",
    why="Each worker listens on the port that machines (or local_listen_port) gives it; on one host each needs one of its own.",
    where=lambda groups, line: "LightGBM" in line,
)
says(
    "lightgbm-machines",
    "Machine list file doesn't contain the local machine",
    cause="net.wrong-interface",
    strength=0.85,
    title="LightGBM's list of machines has no address and port of this host",
    why="It compares the list with the addresses of its own interfaces: a name, or an address outside of the container, is none of them.",
)
says(
    "ps-lite-address",
    "Check failed: !ip.empty() failed to get ip",
    "Check failed: !interface.empty() failed to get the interface",
    "Check failed: (my_node_.port) != (-1) bind failed",
    cause="net.wrong-interface",
    strength=0.76,
    title="ps-lite (MXNet, BytePS) has no address to bind to: DMLC_INTERFACE without one, DMLC_PS_ROOT_URI not the scheduler's own, or its port taken",
    why="The scheduler binds to DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, the others to the address of DMLC_INTERFACE (else of the first interface that has one).",
)
says(
    "connect-retry",
    "connect returned {error}, retrying (",
    "Call to connect returned {error}, retrying",
    "connect to {address} returned {error}, retrying",
    why="One of up to 34 attempts (NCCL_SOCKET_RETRY_CNT): normal while peers start, an error only when it goes on.",
)
says(
    "connect-gave-up",
    "returned {error}, exceeded error retry count",
    "exceeded error retry count after {tries} attempts",
    "exceeded error retry count ({tries})",
    cause="net.firewall",
    strength=0.62,
    title="a peer could not be reached in all attempts: {error}",
    why="NCCL gave up connecting: nothing answers at that address and port.",
    where=lambda groups, line: "onnection refused" not in line,
)
says(
    "gloo-connect-failed",
    "Gloo connectFullMesh failed with {error}",
    "connectFullMesh failed",
    "connect timeout",
    "Connect timeout [{address}]",
    "Connecting to {}timed out",
    "timed out connecting",
    role=Role.SYMPTOM,
    cause="net.wrong-interface",
    strength=0.55,
    fold="Gloo could not connect",
    title="Gloo's peers cannot connect to each other: wrong interface or loopback address",
    why="Each rank advertised an address that the others cannot reach.",
    where=lambda groups, line: "gloo" in line.lower() or "transport/tcp" in line,
)
says(
    "gloo-endpoint",
    "connect [{address}]:{port}",
    "remote=[{address}]:{port:int}",
    "local=[{address}]",
    "Read error [{address}]",
    "Write error [{address}]",
    why="An address that Gloo uses.",
)
says(
    "gloo-no-interface",
    "Unable to find address for: {interface}",
    "Unable to find interface for: {interface}",
    cause="net.wrong-interface",
    strength=0.95,
    title="GLOO_SOCKET_IFNAME names an interface that this host does not have: {interface}",
    why="Gloo looks for exactly this name (a comma list; no prefix match, no ^ and no =).",
)
says(
    "no-socket-interface",
    "NET/Socket : no interface found",
    "No usable listening interface found",
    "NET/IB : No IP interface found",
    "no socket interface found",
    "Could not find a usable interface",
    "Found no interface matching",
    "Could not find interface matching",
    cause="net.wrong-interface",
    strength=0.92,
    title="no interface matches NCCL_SOCKET_IFNAME on this host",
    why="The filter matches no running interface on this host (names differ between hosts), or there is none at all.",
)
says(
    "no-same-subnet",
    "No interface found in the same subnet as remote address {address}",
    cause="env.bad-nccl-var",
    strength=0.8,
    title="no interface of this host lies in the subnet of NCCL_COMM_ID ({address})",
    why="NCCL_COMM_ID points to an address that this host (or container) cannot match.",
)
says(
    "socket-family",
    "Socket creation failed : Address family not supported by protocol",
    "ncclSocketInit: Socket creation failed",
    "socket: Address family not supported",
    cause="net.wrong-interface",
    strength=0.72,
    title="a socket has no usable address: no interface was found, or only one of the other IP family",
    why="EAFNOSUPPORT: NCCL found no interface with an address of a family that this host supports (none matches, or IPv6 is off).",
)

says(
    "established-timeout",
    "Call to recv failed : Connection timed out",
    "Call to {call:word} {address} failed : Connection timed out",
    "Call to {call:word} {address} failed : No route to host",
    role=Role.SYMPTOM,
    fold="an established connection no longer gets answers",
    why="Packets of a connection that worked are not acknowledged any more: the peer's host vanished (not only its process, which would close it), or something on the way dropped the connection's state.",
)

# --- names
_IPV6 = "The IPv6 network addresses of"
_IPV4 = "The IPv4 network addresses of"
says(
    "name-unresolved",
    "network addresses of ({name}, {port:int}) cannot be retrieved",
    "ould not resolve hostname {name}: ",
    "server can't find {name}: NXDOMAIN",
    "can't resolve '{name}'",
    "Name or service not known",
    "Temporary failure in name resolution",
    "No address associated with hostname",
    "gai error:",
    "nodename nor servname provided",
    "Could not resolve hostname",
    "unable to resolve host",
    "unable to get host address",  # Hydra
    "getaddrinfo failed",
    "gaierror",
    "error encountered when getting address info",
    "Unknown host",
    "Name does not resolve",
    "dial tcp: lookup {name} on {server}: ",  # programs in Go (Kubernetes, containerd, Ray's operator)
    "connection timed out; no servers could be reached",  # dig, nslookup
    "NXDOMAIN",
    "nslookup: can't resolve",
    "** server can't find",
    "could not be resolved",
    "cannot be resolved",
    cause="net.hostname-resolution",
    page="net.hostname-resolution.unresolved",
    strength=0.93,
    title="a host name does not resolve",
    why="The resolver does not know the name on this host: DNS, /etc/hosts, or a headless service that is not ready yet.",
    where=lambda groups, line: (
        (_IPV6 not in line or _IPV4 in line)
        and ("be resolved" not in line or re.search(r"[Hh]ost|[Aa]ddress|[Nn]ode|[Nn]ame", line) is not None)
        and "'(null)'" not in line  # nslookup: the server's own address has no name
        and ("port" in groups or not re.search(r"huggingface|wandb|github|pypi|https?://|api\.|s3\.|amazonaws", line))
    ),
)
says(
    "name-without-ipv6",
    _IPV6 + " ({name}, {port:int}) cannot be retrieved",
    role=Role.HARMLESS,
    why="c10d asks for IPv6 addresses first: a name that has only IPv4 ones is told of like this. It matters where the same is said of IPv4.",
    where=lambda groups, line: _IPV4 not in line,
)
says(
    "gloo-no-name",
    "Device(): interface or hostname can't be empty",
    cause="net.hostname-resolution",
    strength=0.86,
    title="Gloo has no address of this machine: its own name resolves to none",
    why="Without GLOO_SOCKET_IFNAME torch gives Gloo the address of the machine's own name: there is none (names with letters beyond ASCII on Windows, say).",
)
says(
    "gloo-families",
    "ss1.ss_family == ss2.ss_family. {own:int} vs {other:int}",
    cause="net.hostname-resolution",
    strength=0.85,
    title="Gloo's ranks advertise addresses of different families, IPv4 and IPv6",
    why="Gloo listens on the address that the host's own name resolves to; one host's resolves to the other family "
    "(2 is IPv4, 10 is IPv6; ::1 for a host that calls itself localhost).",
)
says(
    "hostname-loopback",
    "Unable to resolve hostname to a (local) address. Using the loopback address as fallback",
    role=Role.FACT,
    why="Gloo: the own host name does not resolve to a local address, so loopback is advertised. Harmless on one node.",
)
says(
    "loopback-name",
    "127.0.1.1{names}",
    "127.0.0.1 {names}",
    "127.0.0.1\t{names}",
    why="A line of /etc/hosts, or of getent's answer, that gives names to loopback.",
    where=lambda groups, line: re.fullmatch(r"[A-Za-z][\w.-]*(?:\s+[\w.-]+)*", groups["names"]) is not None,
)

says(
    "name-lookup",
    "getent hosts",
    "/etc/hosts",
    rows=24,
    why="Somebody asked hosts what a name resolves to: the answers stand below.",
    pattern=re.compile(r"\bgetent hosts|\b(?:cat|grep|more|head)\b.*/etc/hosts"),
)

# --- MTU
_OF_AN_INTERFACE = re.compile(r"inet|UP|flags")
_NAMED = re.compile(r"\w[:@]")  # the interface stands in front
says(
    "mtu-ping",
    "essage too long",
    "Frag needed and DF set",
    "fragmentation needed",
    cause="net.mtu",
    strength=0.92,
    title="packets larger than the path's MTU do not pass",
    why="A probe with the don't-fragment bit says that the path's MTU is smaller than the interface's.",
)
says(
    "ip-link-mtu",
    "mtu {mtu:int} qdisc",
    " mtu {mtu:int} ",
    "MTU:{mtu:int}",
    why="An interface's MTU.",
    where=lambda groups, line: (
        "lo:" not in line
        and (_OF_AN_INTERFACE.search(line) is not None or _NAMED.search(line, 0, max(line.rfind("mtu"), 0)) is not None)
    ),
)
says("ping-loss", "100% packet loss", "packets transmitted, 0 received", why="Packets of some size do not come back.")

# --- evidence of a blocked port
says(
    "firewall-rule",
    "iptables -A {rule}DROP",
    "iptables{}REJECT",
    "nft{}drop",
    "DROP       tcp",
    "REJECT     tcp",
    "UFW BLOCK",
    cause="net.firewall",
    strength=0.8,
    title="a firewall rule drops or rejects connections",
    why="The log shows a dropping rule, or a dropped packet.",
)
says(
    "firewall-on",
    "firewalld{}active",
    "ufw{}active",
    cause="net.firewall",
    strength=0.45,
    title="a host's firewall is on",
    why="Whether it lets the job's ports through, its rules say.",
    pattern=re.compile(r"\b(?:firewalld|ufw)\b(?:(?!\bnot\b)[^,;]){0,120}\bactive\b"),
)
says(
    "open-ports",
    "  ports: {ports}",
    "  services: {services}",
    "reject-with icmp-host-prohibited",
    "Default: deny (incoming)",
    "policy DROP",
    "-P INPUT DROP",
    why="firewall-cmd, iptables, nft or ufw: what a host's firewall lets in; the rest is rejected.",
    where=lambda groups, line: (
        re.search(r"ports: (?:[\d-]+/(?:tcp|udp)[ ,]?)*$", line.rstrip()) is not None
        if "ports" in groups
        else "services" not in groups or " ssh" in line
    ),
)
says(
    "connection-table-full",
    "table full, dropping packet",
    cause="net.firewall",
    page="net.conntrack-full",
    strength=0.88,
    title="the kernel's table of connections is full: packets of new connections are dropped",
    why="nf_conntrack has no room for another connection (net.netfilter.nf_conntrack_max): new ones fail at random.",
)
says(
    "neighbour-table-full",
    "neighbor table overflow",
    "neighbour table overflow",
    cause="net.firewall",
    strength=0.84,
    title="the kernel's table of neighbours (ARP) is full: packets to further hosts are dropped",
    why="More hosts on the link than net.ipv4.neigh.default.gc_thresh3 admits: connections to some peers fail at random.",
)
says(
    "packet-dropped",
    " SRC={source:word} DST={target:word} {}PROTO={}DPT=",
    cause="net.firewall",
    strength=0.8,
    title="a firewall drops packets from {source} to {target} (kernel log)",
    why="Netfilter's LOG target writes what a rule drops or rejects; its prefix says which.",
    pattern=re.compile(r"drop|reject|block|den(?:y|ied)", re.IGNORECASE),
)
says(
    "nc-blocked",
    "nc: connect to {address} port {port:int} (tcp) timed out",
    "nc: connect to {address} port {port:int} (tcp) failed: {error}",
    cause="net.firewall",
    strength=0.7,
    title="port {port} of {address} is blocked",
    why="A hand-made connection test to the port failed.",
)
says(
    "connect-test-failed",
    "telnet: Unable to connect to remote host: {error}",
    "curl: (28) {error}",
    "Ncat: {error}",
    cause="net.firewall",
    strength=0.7,
    title="a connection test by hand failed: {error}",
    why="telnet, curl or ncat did not reach the port.",
    pattern=re.compile(r"timed? ?out|[Rr]efused|[Nn]o route|unreachable|\(28\)"),
)
says(
    "link-speed",
    "Speed: {speed:int}Mb/s",
    "Could not get speed {}Defaulting to 10 Gbps",
    "Bytes {speed:num} Mbits/sec",  # iperf
    "Bytes {gigabits:num} Gbits/sec",
    why="An interface's speed, looked up or measured.",
    every=True,  # of which host and interface, its begin or the lines above tell
)
says(
    "ethtool-asked",
    "ethtool {interface:word}",
    "Settings for {interface:word}:",
    why="Whose speed one of the next lines tells.",
    every=True,
)
says(
    "ethtool-loop",
    "ethtool ${variable:word} | grep {}peed",
    'ethtool "${variable:word}" | grep {}peed',
    rows=32,
    every=True,
    why="A shell's loop over interfaces: each one's name, and its speed in the line below, or the same one.",
)

says(
    "net-types-differ",
    ": wrong type {got:int} != {wanted:int}",
    why="A connection came from another part of NCCL: 3 is the socket network, 4 the InfiniBand network (enum ncclSocketType).",
)
says(
    "nccl-magic",
    "wrong magic {got:hex} != {wanted:hex}",
    why="A connection to NCCL's port began with other bytes than this job's: another job, another release, or no NCCL at all.",
    where=lambda groups, line: len(groups["got"]) <= 16,
)
says(
    "service-mesh",
    "istio-proxy",
    "Envoy proxy",
    "linkerd-proxy",
    "istio-init",
    "envoy ",
    why="A service mesh's proxy stands in the pods: it accepts and closes connections in place of the job's processes.",
)
says(
    "garbage-address",
    "is neither AF_INET",
    "with family {family:int} is neither",
    cause="sw.nccl-version-mismatch",
    strength=0.55,
    title="a peer's address was read as garbage (family {family})",
    why="The bytes that a peer sent were not the address expected: ranks of different NCCL versions, or ranks in different calls.",
)
