"""What the agent is asked: which of five tools answers a request.

Only this module and the evaluator know the right answers. Held-out requests are about cities
that are never trained on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ASKED = {
    "get_weather": ["How is the weather in {}?", "Will it rain in {} today?"],
    "get_time": ["What time is it in {}?", "Tell me the hour in {}."],
    "find_hotel": ["I need a room in {}.", "Book a hotel in {}."],
    "find_food": ["I am hungry in {}.", "Name a restaurant in {}."],
    "find_train": ["When leaves a train to {}?", "Show the rails to {}."],
}
TOOLS = list(ASKED)
CITIES = ["Paris", "Oslo", "Rome", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Bern", "Riga"]
HELD_OUT_CITIES = ["Milan", "Turin", "Porto", "Malmo"]


def graded(told: dict[str, Any]) -> dict[str, Any]:
    """The share of requests that the right tool was used for, and for each call whether it was.

    ``told`` is what Polar tells an evaluator of a session; the agent prints what it did.
    """
    right = told["metadata"]["right"]
    printed = told["output"].strip().splitlines()
    actions = json.loads(printed[-1]) if printed else []
    scores = [float(names == [tool]) for names, tool in zip(actions, right, strict=False)]
    calls = zip(told["calls"], scores, strict=False)
    return {
        "reward": sum(scores) / len(right),
        "rewards": {"calls": {call["call_id"]: score for call, score in calls}},
    }


@contextlib.contextmanager
def evaluator() -> Iterator[str]:
    """A service that grades, as long as the block lasts; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Grader)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Grader(BaseHTTPRequestHandler):
    """One session's grading."""

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps(graded(told)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def requests(source: random.Random, number: int) -> list[tuple[str, str]]:
    """So many requests to train on, no two alike, each with the right tool."""
    return source.sample(every(CITIES), number)


def held_out() -> list[tuple[str, str]]:
    """All requests about cities that are never trained on, in an order of no meaning."""
    return random.Random(7).sample(every(HELD_OUT_CITIES), len(TOOLS) * 2 * len(HELD_OUT_CITIES))


def every(cities: list[str]) -> list[tuple[str, str]]:
    return [
        (words.format(city), tool)
        for tool, city in itertools.product(TOOLS, cities)
        for words in ASKED[tool]
    ]
