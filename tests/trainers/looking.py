"""An agent for exports: a call for a title, then turns with tools until it is told an answer.

Runs in a sandbox with the standard library alone; its source is part of the task.
"""

import json
import os
import sys
import urllib.request

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def call(messages, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "m", "messages": messages, **more}).encode(),
        headers={
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def main():
    asked = sys.stdin.read()
    call([{"role": "system", "content": "Give this a title."}, {"role": "user", "content": asked}])
    messages = [
        {"role": "system", "content": "You look after a house."},
        {"role": "user", "content": asked},
    ]
    while True:
        reply = call(messages, tools=[LOOK])
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        for made in reply["tool_calls"]:
            seen = "as it should be: " + json.loads(made["function"]["arguments"])["at"]
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": seen})
    with open("answer.txt", "w") as out:
        out.write(reply["content"])


if __name__ == "__main__":
    main()
