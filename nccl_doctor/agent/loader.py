# mypy: ignore-errors
# ruff: noqa: S102, RUF005, RET501, UP
"""Start of the agent on a host: reads the agent's modules from the stream and imports them from memory.

Sent as source and executed by whatever Python the host has, so this file must also parse and run on Python 2.7 and
3.5, far enough to say "too old". Nothing is written on the host.
"""

import sys

OLDEST = (3, 8)


class MemoryFinder(object):
    """Imports modules from ``{name: [source, is_package]}``; first on sys.meta_path, so no installed copy is used."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        """The import system's question: the module's spec, or None if it is not one of ours."""
        if name not in self.sources:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, origin=self.file_name(name), is_package=bool(self.sources[name][1]))

    def file_name(self, name):
        """What tracebacks show as the file."""
        return "<nccl-doctor agent>/" + name.replace(".", "/") + ".py"

    def create_module(self, spec):
        """Let the import system create the module."""
        return None

    def exec_module(self, module):
        """Run the module's source in its namespace."""
        name = module.__spec__.name
        exec(compile(self.sources[name][0], self.file_name(name), "exec"), module.__dict__)

    def get_source(self, name):
        """The module's source text (for tracebacks, and for workers that need to carry it further)."""
        return self.sources[name][0]

    def is_package(self, name):
        """Whether the module is a package."""
        return bool(self.sources[name][1])

    def children(self, package):
        """The names of the modules directly inside a package, sorted."""
        start = package + "."
        return sorted(name for name in self.sources if name.startswith(start) and "." not in name[len(start) :])


def say(marker, text):
    """Write one line that the controller recognises among whatever a login shell printed before."""
    sys.stdout.write("\n%s %s\n" % (marker, text))
    sys.stdout.flush()


def main():
    """Read ``<length> <nonce>`` and that many bytes of zlib-packed JSON, then serve requests until the end of input."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # a json.py in somebody's home directory must not replace the standard library's
    stream = getattr(sys.stdin, "buffer", sys.stdin)
    head = stream.readline().split()
    if len(head) != 2:
        sys.exit(0)  # the controller went away
    # The nonce comes back reversed: a shell that echoes its input cannot be mistaken for an agent.
    marker = "NCCL-DOCTOR-" + head[1].decode("ascii")[::-1]
    if sys.version_info < OLDEST:
        say(marker, "python-too-old %d.%d.%d %s" % (tuple(sys.version_info[:3]) + (sys.executable,)))
        sys.exit(86)
    import json
    import zlib

    packed = stream.read(int(head[0]))
    if len(packed) != int(head[0]):
        sys.exit(0)
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, MemoryFinder(json.loads(zlib.decompress(packed).decode("utf-8"))))
    from nccl_doctor.agent import runtime

    runtime.serve(stream.raw, marker)


main()
