"""An agent like any other: it has the official OpenAI client, three tools, and work to do.

It reads requests from stdin, asks its model which tool to use for each, and notes what it
did. Of training it knows nothing; its base URL and key are in its environment, as always.
"""

import json
import sys

from openai import OpenAI


def tool(name: str) -> dict:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": city}}


def main() -> None:
    # A call that fails ends the agent: nothing is hidden by trying again.
    client = OpenAI(max_retries=0)
    actions = []
    for request in json.load(sys.stdin):
        reply = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": request}],
            tools=[tool(name) for name in ("get_weather", "get_time", "find_hotel")],
        )
        calls = reply.choices[0].message.tool_calls or []
        actions.append([call.function.name for call in calls])
    with open("actions.json", "w") as out:
        json.dump(actions, out)


if __name__ == "__main__":
    main()
