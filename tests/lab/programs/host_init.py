"""Runs as root inside a new host's namespaces: names it, mounts its own files, leaves a keeper process behind.

Usage: host_init.py SPECIFICATION.json. Prints the keeper's pid when the host is ready. The keeper (``sleep infinity``)
holds the namespaces until it is killed. Standard library only; nothing here touches the machine outside, because the
mount namespace is private.
"""

import json
import os
import socket
import subprocess
import sys


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def held(path: str) -> str:
    """A name of the directory ``path`` that stays valid after something is mounted over it (for bind mounts)."""
    descriptor = os.open(path, os.O_PATH)
    os.set_inheritable(descriptor, True)
    return f"/proc/self/fd/{descriptor}"


def bind(source: str, target: str, *options: str) -> None:
    # --no-canonicalize: the source may be a /proc/self/fd name, which must not be resolved to the hidden path.
    subprocess.run(["mount", "--no-canonicalize", *options, "--rbind", source, target], check=True, close_fds=False)


def own_sys() -> None:
    """A sysfs of this network namespace (/sys/class/net), with the machine's cgroup mounts put back."""
    cgroup = held("/sys/fs/cgroup") if os.path.isdir("/sys/fs/cgroup") else ""
    mount("-t", "sysfs", "sysfs", "/sys")
    if cgroup and os.path.isdir("/sys/fs/cgroup"):
        bind(cgroup, "/sys/fs/cgroup")


def own_kills(directory: str) -> None:
    """What the kernel killed on this machine for want of memory, in any job before, it did not kill on this host."""
    with open("/proc/self/cgroup", encoding="utf-8") as stream:
        groups = {controllers: group for _, controllers, group in (line.strip().split(":", 2) for line in stream)}
    files = [f"/sys/fs/cgroup/memory{groups[name]}/memory.oom_control" for name in groups if name == "memory"]
    files += [f"/sys/fs/cgroup{groups[name]}/memory.events" for name in groups if not name]
    with open(f"{directory}/kills", "w", encoding="utf-8") as stream:
        stream.write("oom_kill 0\n")
    for file in filter(os.path.isfile, files):
        bind(f"{directory}/kills", file)


def own_dev(stage: str, shm_size: str) -> None:
    """A /dev with copies of the machine's device nodes, so that /dev/shm can be this host's own, or absent."""
    os.makedirs(stage, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755,size=16m", "tmpfs", stage)
    subprocess.run(["cp", "-ax", "/dev/.", stage], check=True)
    for name in ("pts", "mqueue", "infiniband"):
        if os.path.ismount(f"/dev/{name}"):
            os.makedirs(f"{stage}/{name}", exist_ok=True)
            bind(f"/dev/{name}", f"{stage}/{name}")
    os.makedirs(f"{stage}/shm", exist_ok=True)
    mount("--move", stage, "/dev")
    mount("-t", "tmpfs", "-o", f"mode=1777,size={shm_size}", "tmpfs", "/dev/shm")


def own_tmp(size: str, keep: "list[str]") -> None:
    """A /tmp of this host, in which the directories ``keep`` (the lab's files, the program's) stay visible."""
    held_paths = [(path, held(path)) for path in keep]
    mount("-t", "tmpfs", "-o", f"mode=1777,size={size}", "tmpfs", "/tmp")
    for path, name in held_paths:
        os.makedirs(path, exist_ok=True)
        bind(name, path)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:
        wanted = json.load(stream)
    socket.sethostname(wanted["name"])
    # The copies of other namespaces' names would keep those namespaces alive as long as this host stands.
    subprocess.run(["umount", "--recursive", "--lazy", "/run/netns"], check=False, stderr=subprocess.DEVNULL)
    directory = wanted["directory"]
    if wanted["own_tmp"]:
        own_tmp(wanted["tmp_size"], wanted["keep"])
    bind(f"{directory}/etc", "/etc")
    bind(f"{directory}/home", f"{directory}/home")  # a mount of its own, so that a fault can make it read-only
    own_sys()
    own_kills(directory)
    own_dev(f"{directory}/dev", wanted["shm_size"])
    bind(f"{directory}/boot_id", "/proc/sys/kernel/random/boot_id")
    keeper = os.fork()
    if keeper:
        print(keeper)
        return
    os.setsid()
    os.chdir("/")
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, 256)
    os.execvp("sleep", ["sleep", "infinity"])


if __name__ == "__main__":
    main()
