"""Runs its arguments as ``python3`` would, claiming to be an older version: ``old_python.py 3.6.8 -c CODE ...``.

It refuses the syntax that the claimed version refuses (as far as ``ast`` knows it) and lies about ``sys.version_info``.
"""

import ast
import platform
import sys


def main() -> None:
    claimed = sys.argv[1]
    numbers = tuple(int(part) for part in claimed.split("."))
    arguments = sys.argv[2:]
    real = sys.version_info
    sys.version_info = type("version_info", (tuple,), dict(zip(("major", "minor", "micro"), numbers, strict=True)))(
        (*numbers, "final", 0)
    )
    sys.version = f"{claimed} (default, Nov 16 2020, 16:55:22) \n[GCC 4.8.5]"
    sys.hexversion = (numbers[0] << 24) + (numbers[1] << 16) + (numbers[2] << 8) + 0xF0
    platform.python_version = lambda: claimed
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-c", "-", "-V", "--version"):
        del arguments[0]
    if arguments and arguments[0] in ("-V", "--version"):
        print(f"Python {claimed}")
        return
    if arguments and arguments[0] == "-c":
        name, source, sys.argv = "<string>", arguments[1], ["-c", *arguments[2:]]
    elif not arguments or arguments[0] == "-":
        name, source, sys.argv = "<stdin>", sys.stdin.read(), ["-", *arguments[1:]]
    else:
        name, sys.argv = arguments[0], arguments
        with open(name, encoding="utf-8") as stream:
            source = stream.read()
    tree = ast.parse(source, name, feature_version=numbers[:2] if numbers[:2] < real[:2] else real[:2])
    exec(compile(tree, name, "exec"), {"__name__": "__main__"})  # noqa: S102 - this is what python3 -c does


if __name__ == "__main__":
    main()
