"""Starts a gateway node.

``python -m polar.gateway --rollout_server localhost:50051 --inference_server localhost:8000``
is the same as ``polar gateway``, whose flags all pass through.
"""

from __future__ import annotations

import sys

from polar.binary import run_binary
from polar.flags import dashed

if __name__ == "__main__":
    run_binary(["gateway", *dashed(sys.argv[1:])])
