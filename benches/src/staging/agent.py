"""An agent of fixed habits: calls its model, works for a while, calls it again."""

import json
import os
import sys
import time
import urllib.request

messages = [{"role": "user", "content": "Go on."}]
for tokens, seconds in json.load(sys.stdin)["turns"]:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": int(tokens)}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:
        messages.append(json.load(response)["choices"][0]["message"])
    time.sleep(seconds)
    messages.append({"role": "user", "content": "Go on."})
open("done", "w").close()
