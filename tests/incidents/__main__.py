"""``python -m tests.incidents``."""

import sys

from tests.incidents.run import main

if __name__ == "__main__":
    sys.exit(main())
