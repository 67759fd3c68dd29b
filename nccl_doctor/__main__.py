"""``python -m nccl_doctor``: the same program as the ``nccl-doctor`` command."""

from nccl_doctor.cli import main

if __name__ == "__main__":
    main()
