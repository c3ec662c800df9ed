"""A small agent: asks the model, runs the commands it wants, tells it what came out."""

import json
import os
import subprocess
import sys
import urllib.request

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Runs a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]


def ask(messages):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": TOOLS}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:
        message = json.load(response)["choices"][0]["message"]
    if "ACKNOWLEDGED" in os.environ:
        # From here on the call must not get lost, whatever is killed.
        with open(os.environ["ACKNOWLEDGED"], "a") as log:
            log.write(os.environ["POLAR_SESSION_ID"] + "\n")
    return message


messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    reply = ask(messages)
    messages.append(reply)
    if not reply.get("tool_calls"):
        print(reply["content"])
        break
    for call in reply["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append(
            {"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr}
        )
