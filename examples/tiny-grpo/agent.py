"""An agent like any other: a program of its own with tools, an OpenAI API and work to do.

It reads requests from stdin and goes through them in one conversation: it asks its model
which tool to use, tells it that this is done, and prints in the end what it did. Of training it
knows nothing; its base URL and key are in its environment, as always. It needs Python's
standard library alone, since a thousand of it are started.
"""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

TOOLS = ("get_weather", "get_time", "find_hotel", "find_food", "find_train")


def tool(name: str) -> dict:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": city}}


class Model:
    """The chat completions of an OpenAI API, over one connection."""

    def __init__(self) -> None:
        base = urlsplit(os.environ["OPENAI_BASE_URL"])
        self._connection = http.client.HTTPConnection(base.netloc, timeout=300)
        self._path = base.path.rstrip("/") + "/chat/completions"
        self._headers = {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        }

    def reply(self, messages: list[dict]) -> dict:
        body = {"model": "tiny", "messages": messages, "tools": [tool(name) for name in TOOLS]}
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        # A call that fails ends the agent: nothing is hidden by trying again.
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer.decode()}")
        return json.loads(answer)["choices"][0]["message"]


def main() -> None:
    model = Model()
    messages: list[dict] = []
    actions = []
    for request in json.load(sys.stdin):
        messages.append({"role": "user", "content": request})
        reply = model.reply(messages)
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        actions.append([call["function"]["name"] for call in calls])
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls
        ]
    print(json.dumps(actions))


if __name__ == "__main__":
    main()
