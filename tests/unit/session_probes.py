"""Probes that the session tests ship with the agent; never imported here."""

import os
import subprocess
import sys
import threading
import time

from nccl_doctor.agent import children
from nccl_doctor.agent.probing import ProbeTrouble, emitter, probe, run_command


@probe("t.echo")
def echo(arguments):
    return {"got": arguments}


@probe("t.hang")
def hang(arguments):
    time.sleep(3600)


@probe("t.sleep")
def sleeping(arguments):
    time.sleep(arguments["seconds"])
    return {}


@probe("t.big")
def big(arguments):
    return {"text": "x" * arguments["bytes"]}


@probe("t.print")
def printing(arguments):
    print("a library prints to stdout")
    os.write(1, b"and so does C\n")
    sys.stdout.flush()
    subprocess.run(["echo", "and a child"])
    return {"stdin": sys.stdin.read()}


@probe("t.events")
def events(arguments):
    emitter()({"n": 1})
    send = emitter()
    thread = threading.Thread(target=send, args=({"n": 2},))
    thread.start()
    thread.join()
    return {}


@probe("t.raise")
def raising(arguments):
    return {}["no"]


@probe("t.exit")
def leaving(arguments):
    sys.exit(3)


@probe("t.trouble")
def trouble(arguments):
    raise ProbeTrouble("not-supported", "no such thing", {"seen": 1})


@probe("t.unjson")
def unjson(arguments):
    return {"x": float("nan"), "y": object()}


@probe("t.surrogate")
def surrogate(arguments):
    return {"x": "a\udcff"}


@probe("t.import")
def importing(arguments):
    import pure_module_of_the_test

    return {"value": pure_module_of_the_test.VALUE}


@probe("t.pynvml")
def nvml(arguments):
    sys.modules.pop("pynvml", None)
    import importlib.util

    found = importlib.util.find_spec("pynvml")
    if found is None or "<nccl-doctor" not in str(found.origin):
        raise ProbeTrouble("tool-missing", "no module pynvml", {"module": "pynvml"})
    import pynvml

    return {"file": pynvml.__spec__.origin}


@probe("t.children")
def start_children(arguments):
    tag = arguments["tag"]
    sleeper = [sys.executable, "-c", "import time; time.sleep(3600)", tag]
    worker = children.start(sleeper)
    run_command(["sh", "-c", "setsid sh -c 'sleep 3600 </dev/null >/dev/null 2>&1 &'"])
    threading.Thread(target=run_command, args=(sleeper, 3600.0), daemon=True).start()
    stubborn = "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", stubborn, tag])
    time.sleep(0.3)
    return {"agent": os.getpid(), "worker": worker.pid, "below": sorted(children.descendants(os.getpid()))}
