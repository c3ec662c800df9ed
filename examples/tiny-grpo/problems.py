"""What the agent is asked: which of three tools answers a request.

Only this module and the evaluator know the right answers. Held-out requests are about cities
that are never trained on.
"""

from __future__ import annotations

import itertools
import random

ASKED = {
    "get_weather": ["How is the weather in {}?", "Will it rain in {} today?"],
    "get_time": ["What time is it in {}?", "Tell me the local time in {}."],
    "find_hotel": ["I need a room in {}.", "Where can I sleep in {}?"],
}
TOOLS = list(ASKED)
CITIES = ["Paris", "Oslo", "Rome", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Bern", "Riga"]
HELD_OUT_CITIES = ["Milan", "Turin", "Porto", "Malmo"]

EVALUATOR = '''
import json, pathlib

def grade(context):
    """The share of requests that the right tool was used for, and for each call whether it was."""
    done = pathlib.Path(context["workdir"], "actions.json")
    actions = json.loads(done.read_text()) if done.exists() else []
    right = context["metadata"]["right"]
    scores = [float(names == [tool]) for names, tool in zip(actions, right)]
    calls = {call["call_id"]: score for call, score in zip(context["calls"], scores)}
    return {"reward": sum(scores) / len(right), "rewards": {"calls": calls}}
'''


def requests(source: random.Random, number: int, held_out: bool = False) -> list[tuple[str, str]]:
    """So many requests, no two alike, each with the right tool."""
    cities = HELD_OUT_CITIES if held_out else CITIES
    every = [
        (words.format(city), tool)
        for tool, city in itertools.product(TOOLS, cities)
        for words in ASKED[tool]
    ]
    return source.sample(every, number)
