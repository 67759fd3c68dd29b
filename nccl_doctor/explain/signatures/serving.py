"""Engines that serve models from several hosts: how they start, and how KV caches move between them.

Texts of Mooncake and NIXL (August 2026), SGLang 0.4 and 0.5, vLLM 0.8 to 0.11, Dynamo and llama.cpp, read in their sources.
"""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

# --- key-value caches that move between the hosts of a serving engine
says(
    "kv-transfer",
    "KV Transfer metrics: {}Throughput (MB/s)={rate:num}",
    why="How fast vLLM's decode instances got the KV caches that others had computed.",
)
says(
    "ucx-over-tcp",
    "inter-node cfg#{number:int} {lanes}(tcp/{interface:word}",
    why="UCX tells over which devices it reaches another host: a TCP interface.",
)
says(
    "kv-peer-lost",
    "Failed to get kvcache from prefill instance",
    "osing connection with prefill instance",
    "ost connection with prefill instance",
    "Decode instance could be dead",
    "NIXL_ERR_REMOTE_DISCONNECT",
    "nixlRemoteDisconnectError",
    "etadata for remote agent '{agent}' not found",
    "NIXL transfer failure{}type: handshake_failed",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.46,
    fold="a prefill or decode instance no longer answers",
    title="the other side of a KV-cache transfer no longer answers",
    why="Said of the peer by guess: its process or node died, or the transfer between them broke (a port, a cable, used-up ports) while both live. Its own log and its pod's events say which.",
)
says(
    "kv-transfer-failed",
    "Decode transfer failed for request",
    "Prefill transfer failed for request",
    "Decode handshake failed for request",
    "Failed due to an unknown reason from another rank",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.4,
    fold="KV-cache transfers that failed",
    title="transfers of KV caches between prefill and decode fail; another rank or the other instance says why",
    why="One request's cache did not arrive; the reason stands at the end of the line, or on another rank.",
)
says(
    "kv-bootstrap-timeout",
    "timed out after {seconds:num}s in KVPoll.",
    "Some requests timed out when bootstrapping",
    "Some requests fail to receive KV Cache transfer done signal",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.4,
    fold="KV-cache transfers that waited in vain",
    title="a prefill and a decode instance wait for each other in vain",
    why="The other instance is overloaded (no free cache pages), hangs, or is gone.",
)
says(
    "kv-bootstrap-unreachable",
    "Error fetching prefill server info from bootstrap",
    "Error fetching prefill parallel info from bootstrap",
    "Prefill instance failed to register to bootstrap server",
    "Prefill Failed to connect to bootstrap server",
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.46,
    fold="the bootstrap server of the prefill side",
    title="the bootstrap server of the prefill instance does not answer",
    why="Not started yet, on another port (--disaggregation-bootstrap-port), or a firewall is between.",
)
says(
    "kv-settings-differ",
    "NIXL compatibility hash mismatch",
    "age size mismatch: prefill server has",
    "cache dtype mismatch: prefill server has",
    "Decode pp size ({decode:int}) should be equal to prefill pp size",
    cause="app.pg-misuse",
    strength=0.84,
    title="the prefill and the decode instance are started with different settings",
    why="They must agree on version, model, data type, page size and layout of the cache.",
)
says(
    "nixl-other-engine",
    "Remote NIXL agent engine ID mismatch",
    why="An engine tells its peers the address of its side channel: VLLM_NIXL_SIDE_CHANNEL_HOST, localhost where it is not set. On another node that is the asking engine itself. Set it to an address that the peers reach, and its port (VLLM_NIXL_SIDE_CHANNEL_PORT) apart for each engine of a host.",
)
says("nixl-asks", "Querying metadata on path: {path}", why="Where an engine looks for a peer's NIXL side channel.")
says(
    "nixl-plugin",
    "createBackend: unsupported backend '{backend}'",
    "getPluginParams: backend '{backend}' not found",
    "Failed to find nixl_plugin_init in",
    "Plugin API version mismatch for {file}: expected",
    "Plugin directory does not exist or is not readable:",
    cause="net.plugin",
    strength=0.82,
    title="NIXL has no plugin for its backend: {backend}",
    why="libplugin_{BACKEND}.so is not in NIXL_PLUGIN_DIR, of another version, or the library it needs (UCX's libucp.so) is not found: ldd shows it.",
)
says(
    "nixl-backend",
    "NIXL_ERR_BACKEND",
    "registerMem: registration failed for the specified or all potential backends",
    "backend creation failed for '",
    "backend initialization error for '",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.4,
    fold="NIXL's backend refused",
    title="NIXL's backend (UCX, where no other is named) refused a request",
    why="The reason is the backend's: its lines with UCX_LOG_LEVEL=info tell. GPU memory that cannot be registered is often a UCX without CUDA, or a second UCX beside the wheel's own.",
)
says(
    "nixl-refused",
    "NIXL_ERR_NOT_FOUND",
    "NIXL_ERR_INVALID_PARAM",
    "NIXL_ERR_MISMATCH",
    "NIXL_ERR_NOT_ALLOWED",
    "NIXL_ERR_NOT_SUPPORTED",
    "NIXL_ERR_UNKNOWN",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.46,
    fold="NIXL refused a request",
    title="NIXL refused a request: a peer or memory that it does not know, or memory that does not fit the other side's",
    why="NOT_FOUND: the agent's metadata are gone (its process was started anew), or no backend registered the memory. MISMATCH, INVALID_PARAM: the two sides lay out their caches differently (tensor-parallel sizes, page size).",
)
says(
    "inference-server-awaited",
    "server can't be reached at {peer}",  # TRL, verifiers
    "Inference server was not reached after",  # prime-rl
    "Inference server is not ready after",
    "Servers not reachable after",  # ms-swift
    "Server did not become ready within timeout period",  # AReaL
    "failed to become healthy within timeout period",  # verl
    "OpenAI server failed to start within",  # OpenRLHF
    "vLLM server health check failed with status",  # open-instruct
    "No available workers (all circuits open or unhealthy)",  # SGLang's router
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.48,
    fold="an inference server is awaited",
    title="the inference server that this job asks does not answer: it still loads, has ended, or is at another address",
    why="Its own log says which. Usual while it loads its weights; trainers give up after some minutes.",
)
says(
    "kv-wrong-peer",
    "Remote NIXL agent engine ID mismatch",
    cause="net.wrong-interface",
    strength=0.82,
    title="a NIXL handshake reached another engine than it meant (VLLM_NIXL_SIDE_CHANNEL_HOST is localhost by default)",
    why="vLLM asks the side channel's address for the engine's agent. Left at its default, both hosts tell their own localhost; the same port for two "
    "engines of a host (VLLM_NIXL_SIDE_CHANNEL_PORT), or a pod that was started anew, looks the same.",
)
says(
    "llama-rpc-gone",
    "Remote RPC server crashed or returned malformed response",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.46,
    fold="a server of llama.cpp's RPC is gone",
    title="a server of llama.cpp's RPC ended, or its answer cannot be read",
    why="rpc-server's own output says why: mostly its GPU or host ran out of memory, or an operation its backend lacks.",
)
says(
    "llama-rpc-unreachable",
    "Failed to connect to {endpoint:word}",
    "RPC handshake failed for {endpoint:word}",
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.46,
    title="{endpoint} does not answer: nothing listens there, or a firewall or a wrong address is in between",
    why="The program names whom it does not reach, and no reason. llama.cpp's rpc-server listens on 127.0.0.1 unless it is given -H.",
    pattern=re.compile(r"(?:connect to|failed for) \S*:\d{1,5}\s*$"),
)
says(
    "llama-rpc-versions",
    "RPC server version mismatch: {version:word}",
    cause="sw.nccl-version-mismatch",
    strength=0.88,
    title="an rpc-server of llama.cpp is of another version than its client",
    why="llama.cpp's RPC has a version of its own: build client and servers from the same commit.",
)
says(
    "dynamo-no-etcd",
    "Failed to connect to etcd server with config",
    "Unable to create lease. Check etcd server status",
    "nats.errors.NoServersError",
    "nats: no servers available for connection",
    "Failed to connect to NATS",
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.78,
    title="the service under which the parts of a serving cluster find each other (etcd or NATS) does not answer",
    why="Dynamo keeps its workers in etcd and its queues in NATS (ETCD_ENDPOINTS, NATS_SERVER; default localhost): not started, or another address.",
)
says(
    "mooncake-no-device",
    "RdmaTransport: No available RNIC",
    "No matched device found: {device}",
    "Failed to install RDMA transport",
    "EfaTransport: No available EFA devices",
    cause="ib.device-not-found",
    strength=0.74,
    title="Mooncake's transfer engine finds no RDMA device that it can use",
    why="The named device does not exist in this process, its port is down, or the container has no /dev/infiniband.",
)
says(
    "mooncake-gid",
    "GID is NULL, please check your GID index",
    "No suitable GID found on",
    cause="ib.gid-index",
    strength=0.86,
    title="the GID that Mooncake uses is empty: MC_GID_INDEX does not fit this port",
    why="The port's GID table has no entry at that index (RoCE v2 over IPv4 is often 3).",
)
says(
    "mooncake-registers-gpu",
    "DMA BUF supported required for GPU RDMA",
    "Failed to retrieve dmabuf for {address:word}",
    "Failed to export dma_buf for addr=",
    cause="ib.gdr",
    strength=0.84,
    title="GPU memory cannot be registered for Mooncake's transfers",
    why="Neither nvidia_peermem nor DMA-BUF lets the adapter reach this memory.",
)
says(
    "mooncake-registers-otherwise",
    "rdma_context.cpp:{line:int}] Failed to register memory {address:word}: {error} [{errno:int}]",
    "Failed to register memory region (chunk",
    "RdmaTransport: Failed to register memory: addr {address:word} length",
    cause="ib.memlock",
    strength=0.48,
    title="Mooncake cannot register memory with the adapter: {error}",
    why="ERANGE, EINVAL and EIO are a driver that registers no such size (its max_mr_size) or kind of memory; where no error is told it is usually the limit.",
    where=lambda groups, line: not re.search("Bad address|Cannot allocate memory", line),
)
says(
    "mooncake-master",
    "master_client.cpp:{line:int}] RPC call failed: {error}",
    "mount_segment_to_master_failed base={address:word}",
    "Failed to mount segment: RPC_FAIL",
    "] Failed to connect to master",
    "No master is available in HA backend",
    "] Error from http client, {method:word} {url:word} error: ",
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.46,
    fold="Mooncake's master or metadata server gives no answer",
    title="Mooncake's master, or its metadata server, gives no answer",
    why="Not started, another address (master_server_address, metadata_server), a firewall, or too busy: its own log says which. Where it was started anew, its clients' segments are gone.",
)
says(
    "mooncake-lease",
    "lease_expired_before_data_transfer_completed",
    "error_codes=[-707",
    role=Role.SYMPTOM,
    cause="ib.retry-exceeded",
    strength=0.4,
    fold="Mooncake's leases ran out during transfers",
    title="Mooncake's lease of a key ran out before its data had come: the transfer was too slow, or stood still",
    why="LEASE_EXPIRED (-707): a lease lasts seconds (the master's default_kv_lease_ttl).",
)
says(
    "mooncake-tcp-gpu",
    "ession::writeBody failed. Error: Bad address",
    "ession::readBody failed. Error: Bad address",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.76,
    title="Mooncake's TCP transport was given GPU memory, which its build does not know",
    why="EFAULT: a socket cannot send what is not host memory. A Mooncake built with CUDA (USE_CUDA=ON) copies it first; RDMA or NIXL need no copy.",
)
says(
    "mooncake-handshake",
    "SocketHandShakePlugin: connect()",
    "Failed to exchange handshake description",
    "Active handshake RPC failed",
    "Worker: Cannot make connection for endpoint",
    "Handshake rejected by",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.4,
    fold="handshakes of Mooncake's transfer engine",
    title="a peer of Mooncake's transfer engine does not answer",
    why="Refused: no process there (any more). Timed out: a firewall, or an address that does not lead there.",
)

says(
    "mooncake-name",
    "Transfer Engine parseHostNameWithPort. server_name: {address:word} port: ",
    why="The address under which Mooncake's transfer engine offers this host's memory to its peers.",
)
says(
    "mooncake-transfer",
    "Failed to complete transfers after {seconds:int} seconds for batch",
    "] Transfer failed for task{task:int}",
    "transfer_incomplete max_attempts=",
    "Put operation failed with error: TRANSFER_FAIL",
    "Sync batch data transfer timeout after",
    role=Role.SYMPTOM,
    cause="ib.retry-exceeded",
    strength=0.42,
    fold="transfers of Mooncake fail",
    title="Mooncake's transfers fail or do not complete: its transport's own lines say why",
    why="Adapters that do not reach each other (rails without a route between them: MC_ENABLE_DEST_DEVICE_AFFINITY=1), a peer that is gone, or memory that one of them did not register.",
)


# --- engines that start on several hosts
says(
    "engine-start-timeout",
    "Did not receive response from front-end process within",
    "Timed out waiting for engine core processes to start",
    "Timed out waiting for engines to send",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.36,
    fold="an engine waits for its other processes",
    title="an engine's processes did not all start in time",
    why="A sister process crashed or loads its weights slowly: its own first error counts. Without one: the address or port of the first node (--data-parallel-address, --data-parallel-rpc-port) is not reached.",
)
says(
    "engine-waits-for-nodes",
    "Waiting for {local:int} local, {remote:int} remote core engine proc(s) to connect",
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.46,
    fold="an engine waits for processes of other nodes",
    title="{remote} engine processes of other nodes have not connected",
    why="Fewer nodes were started than --data-parallel-size needs, or they do not reach the first one; vLLM waits without a limit.",
    where=lambda groups, line: groups["remote"] != "0",
)
says(
    "engine-ranks",
    "Message from engine with unexpected data parallel rank",
    cause="launch.world-size",
    strength=0.84,
    title="an engine reported a rank that the first node does not expect",
    why="--data-parallel-size, -local or -start-rank differ between the nodes.",
)
says(
    "tensor-parallel-spread",
    "Tensor parallel workers can be spread out to 2+ nodes",
    "Custom allreduce is disabled because this process group spans across nodes",
    why="vLLM: the ranks of one tensor-parallel group stand in several hosts.",
)
