"""``python -m nccl_doctor``, and what the ``nccl-doctor`` command calls: the same program."""

import sys


def main() -> None:
    """Import and run the program. A Ctrl-C while its packages load ends it without a traceback."""
    try:
        from nccl_doctor.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
