"""``python -m polar.rollout_server --port 50051`` starts the rollout server.

The same as ``polar rollout-server``, whose flags all pass through.
"""

from __future__ import annotations

import sys

from polar.binary import run_binary
from polar.flags import dashed

if __name__ == "__main__":
    run_binary(["rollout-server", *dashed(sys.argv[1:])])
