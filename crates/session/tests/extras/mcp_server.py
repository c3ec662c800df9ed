"""An MCP server over stdio with one tool, `stamp`, which answers a word with the word and a
secret from its environment. The secret tells that the tool was called and not guessed."""

import json
import os
import sys

STAMP = {
    "name": "stamp",
    "description": "Stamps a word.",
    "inputSchema": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}


def result(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "office", "version": "1.0.0"},
        }
    if method == "tools/list":
        return {"tools": [STAMP]}
    if method == "tools/call":
        text = params["arguments"]["word"] + " " + sys.argv[1] + " " + os.environ["STAMP_SECRET"]
        return {"content": [{"type": "text", "text": text}]}
    if method == "ping":
        return {}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    found = result(message["method"], message.get("params", {}))
    if found is None:
        answer["error"] = {"code": -32601, "message": "there is no " + message["method"]}
    else:
        answer["result"] = found
    print(json.dumps(answer), flush=True)
