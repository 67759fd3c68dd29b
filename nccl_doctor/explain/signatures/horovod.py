"""Horovod: its launchers, rendezvous, stall inspector and elastic driver."""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "horovod-rendezvous",
    "Wait timeout after {seconds:int} seconds for key(s): {keys}",
    "gloo/http_store.cc:{number:int}] Wait timeout for key(s): {keys}",  # up to 0.19
    cause="launch.world-size",
    strength=0.72,
    title="Horovod's ranks did not all come to its rendezvous in time",
    why="A rank waits at Horovod's store for what another one should put there: that one was not started, died, or is late.",
)
says(
    "horovod-stall",
    "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks",
    role=Role.SYMPTOM,
    fold="Horovod waits for ranks",
    why="The stall inspector: a rank left the common path, has other tensors, is far behind, or is dead; its own lines decide.",
)
says(
    "horovod-missing",
    "[missing ranks: {ranks}]",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.46,
    fold="Horovod waits for ranks",
    title="Horovod waits for rank {ranks}",
    why="Names the ranks that did not submit the tensor.",
)
says(
    "horovod-start",
    "Timed out waiting for {activity}. Please check connectivity between servers",
    role=Role.SYMPTOM,
    fold="horovodrun waited in vain",
    why="A host's task did not register in time with the driver's service, on a port of its own that ssh says nothing of: blocked, on an "
    "address that cannot be reached, or the task failed or is slow to start there.",
)
says(
    "horovod-no-address",
    "Horovod was unable to connect to {service} on any of the following addresses: {addresses}",
    "Unable to find a set of common task-to-task communication interfaces",
    cause="net.wrong-interface",
    strength=0.72,
    title="Horovod finds no interface over which the hosts reach each other",
    why="Horovod needs an interface of one name on all hosts whose addresses reach each other (--network-interfaces); a firewall between them looks the same.",
)
says(
    "horovod-no-interface",
    "No available network interface found matching user provided interface: {interfaces}",
    "No IP found for NICs {interfaces}",
    cause="net.wrong-interface",
    strength=0.95,
    title="horovodrun was given an interface that this host does not have: {interfaces}",
    why="--network-interfaces (or the older --network-interface) names what the host has not, or what has no IPv4 address.",
)
says(
    "horovod-ssh",
    "ssh not successful for host {host}:",
    "could not connect to some hosts via ssh",
    cause="net.master-unreachable",
    strength=0.72,
    title="horovodrun cannot log in by ssh",
    why="horovodrun starts its tasks by ssh without a password; the lines below say what ssh lacked.",
)
says(
    "horovod-missing-table",
    "Missing ranks:",
    "Stalled ranks:",  # Horovod 0.17 and 0.18
    rows=400,
    why="Below it stand the ranks that did not submit tensors, each with some of them.",
    where=lambda groups, line: line.rstrip().endswith(("Missing ranks:", "Stalled ranks:")),
)
says(
    "horovod-elastic-resources",
    "Please check that you have enough resources to run {processes} Horovod processes",
    cause="launch.world-size",
    strength=0.86,
    title="Horovod did not find room for {processes} processes in time",
    why="Spark has fewer free slots than processes; or the hosts that the elastic driver's script names have fewer than --min-np, or were blacklisted.",
)
says(
    "horovod-store-unreachable",
    "HTTP GET request failed too many times, aborting",
    cause="net.master-unreachable",
    strength=0.76,
    title="Horovod's rendezvous server, in the process that launched the job, does not answer",
    why="Workers find each other through an HTTP server of horovodrun or of Spark's driver: it ended, or its address or port is not reached from here.",
)
says(
    "horovod-elastic-over",
    "blacklisted slots count == {slots:int} -> stop running",
    "failure count == {slots:int} -> stop running",
    "reset count {resets:int} has exceeded limit {limit:int} -> stop running",
    "No hosts from previous set remaining, unable to broadcast state",
    role=Role.SYMPTOM,
    cause="app.rank-exception",
    strength=0.4,
    fold="Horovod's elastic driver gave up",
    title="Horovod's elastic driver gave up: its workers failed again and again, or on every host",
    why="The driver counts failed workers and hosts; why they failed is in the workers' own lines.",
)
says(
    "horovod-shut-down",
    "Horovod has been shut down",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.36,
    fold="Horovod was shut down",
    title="another rank ended or raised",
    why="An exception on one of the ranks, or one that finished before the others.",
)
