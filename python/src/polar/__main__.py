"""``python -m polar …`` is the ``polar`` binary."""

from __future__ import annotations

import sys

from polar.binary import run_binary

if __name__ == "__main__":
    run_binary(sys.argv[1:])
