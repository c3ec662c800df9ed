"""Attacks by network: everything but the session's own gateway must be out of reach."""

from __future__ import annotations

from attacks import Attack, Problems, Seen, ended, met, refused

UNREACHED = ("ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH")
WRONG_SECRET = (
    "401 the API key is not the secret of an open session; it is valid only while its session runs"
)
NO_SECRET = "401 no session secret: give it as the API key, or put /s/<secret> in front of the path"


def control_api(seen: Seen) -> Problems:
    yield from refused(seen)
    for name in seen.told["met"]:
        if name.startswith(("GET", "POST")):
            yield from met(seen, name, "404", "401", "400")
        elif name.startswith(("127.0.0.1", "::1", "localhost")):
            yield from met(seen, name, "ECONNREFUSED", "EADDRNOTAVAIL", "gaierror")
        else:
            yield from met(seen, name, *UNREACHED)
    for visitor in seen.facts["visitors"]:
        yield f"the listener of the host was reached by {visitor}"


def control_api_by_loopback(seen: Seen) -> Problems:
    """A local sandbox with an open network has the machine's loopback."""
    yield from refused(seen)
    # An open network of containers is another one than the machine's own.
    if "connection" in seen.told["met"] and seen.runtime in ("docker", "podman"):
        yield from met(seen, "connection", "ECONNREFUSED")
        return
    for key in ("''", "'KEY'", "'polar'"):
        said = str(seen.told["met"].get(f"as {key}"))
        if not said.startswith("401 "):
            yield f"as {key} it met {said!r}"
        if "token" not in said:
            yield f"the refusal does not speak of a token: {said}"


def other_proxy(seen: Seen) -> Problems:
    yield from refused(seen)
    yield from met(seen, "own", "200")
    said = {name for name in seen.told["met"] if name != "own"}
    if said != {WRONG_SECRET, NO_SECRET}:
        yield f"is refused with {said}"
    if seen.report["calls"] != 1:
        yield f"has {seen.report['calls']} calls of its own, not 1"


def internet(seen: Seen) -> Problems:
    yield from refused(seen)
    for host in ("169.254.169.254", "fd00:ec2::254", "1.1.1.1", "2606:4700:4700::1111", "udp"):
        yield from met(seen, host, *UNREACHED)
    for name in ("metadata.google.internal", "example.org", "host.docker.internal"):
        yield from met(seen, name, "gaierror")
    for kind in ("raw", "packet"):
        yield from met(seen, kind, "EPERM")


def listener(seen: Seen) -> Problems:
    """No refusal: it shows that the host would notice whoever reaches it."""
    yield from ended(seen)
    if not seen.told["got"]:
        yield f"an open network does not reach the host: {seen.told['met']}"


def flood(seen: Seen) -> Problems:
    yield from refused(seen)
    yield from met(seen, "afterwards", "200")
    statuses = set(seen.told["met"].get("calls", "?").strip("[]").split(", "))
    if not statuses <= {"0", "200", "429"} or "200" not in statuses:
        yield f"its calls met {statuses}"
    if not seen.told["met"].get("large", "").startswith("413 "):
        yield f"a body of 65 MiB met {seen.told['met'].get('large', '')[:300]}"
    print(f"flood: {seen.facts['node_peak_mb']} MiB, {seen.told['met']}"[:600])
    if seen.facts["node_peak_mb"] > MOST_MEMORY_MB:
        yield f"the node had up to {seen.facts['node_peak_mb']} MiB of memory"


# A quarter of what the agent sends and does not end, and what a node has anyway.
MOST_MEMORY_MB = 768

REACHING = [
    Attack("control-api", "reach.py control_api", control_api, unguarded=True),
    Attack(
        "control-api-by-loopback",
        "reach.py control_api_by_loopback",
        control_api_by_loopback,
        runtime={"network": "open"},
    ),
    Attack("other-proxy", "reach.py other_proxy", other_proxy),
    Attack("internet", "reach.py internet", internet, unguarded=True),
    Attack("open-network", "reach.py listener", listener, runtime={"network": "open"}),
    Attack("flood", "reach.py flood", flood, runtimes=("local", "docker")),
]
