"""How fast a trainer gets its tokens: arrays against JSON, from the same server in the same run.

    pip install ./python[arrays]      # or PYTHONPATH=python/src
    python benches/delivery/measure.py --polar target/release/polar

Sessions are put into a real rollout server over its API, as a node does: real trajectories of the
size asked for, whose tokens are random. Then the batch is read three ways, in turns:

- ``json``: the trajectories as JSON, parsed into plain lists by the fastest parser at hand, each
  list made a NumPy array;
- ``sdk``: `PolarClient.batch_trajectories`, checked models;
- ``arrays``: `PolarClient.batch_arrays`, copied into NumPy arrays of the trainer's own.

With ``--stream GB`` a batch of so many gigabytes is read as arrays afterwards, and the resident
memory of the reader and of the server is told before and after. With ``--export GB`` a task is
written by `polar export` as a Parquet file of so many gigabytes, and the most memory that it took is
told beside that for a hundredth of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import httpx
import numpy as np

from polar import PolarClient


def trajectory(tokens: int) -> dict[str, Any]:
    """One trace, half of it context, as a node writes it."""
    draw = random.Random(7)
    prompt, response = tokens // 4, tokens - tokens // 4
    mask = [int(index // 200 % 3 != 2) for index in range(response)]
    trained = sum(mask)
    trace = {
        "prompt_ids": [draw.randrange(150_000) for _ in range(prompt)],
        "response_ids": [draw.randrange(150_000) for _ in range(response)],
        "loss_mask": mask,
        "response_logprobs": [np.float32(-draw.random()).item() if m else None for m in mask],
        "prompt_messages": [],
        "response_messages": [],
        "weight_versions": [{"version": "1", "start": 0, "end": response}],
        "lineage": {"role": "main", "fork": {"cause": "new_lineage", "shared_tokens": 0}},
        "calls": ["c00000"],
        "rollout_id": "s",
        "group_id": "t",
        "siblings": 1,
        "loss_weight": 1.0,
        "reward": 1.0,
        "sampling": {},
    }
    counts = {"sampled": trained, "trained": trained, "untrained": {}, "context": 0}
    return {
        "session_id": "s",
        "task_id": "t",
        "group_id": "t",
        "strategy": "prefix_merging",
        "reward": 1.0,
        "traces": [trace],
        "tokens": counts,
        "forks": {"new_lineage": 1},
        "train_roles": ["main"],
        "roles": {},
    }


def arrays(found: dict[str, Any]) -> bytes:
    """The same as the file of arrays that a node writes beside it."""
    [trace] = found["traces"]
    prompt, response = len(trace["prompt_ids"]), len(trace["response_ids"])
    logprobs = [np.nan] * prompt + [np.nan if p is None else p for p in trace["response_logprobs"]]
    parts: dict[str, Any] = {
        "ids": np.array(trace["prompt_ids"] + trace["response_ids"], "<i4"),
        "loss_mask": np.array([0] * prompt + trace["loss_mask"], "u1"),
        "logprobs": np.array(logprobs, "<f4"),
        "versions": np.array([-1] * prompt + [0] * response, "<i4"),
        "offsets": np.array([0, prompt + response], "<i8"),
        "prompt_tokens": np.array([prompt], "<i8"),
    }
    kinds = {"<i4": "I32", "|u1": "U8", "<f4": "F32", "<i8": "I64"}
    header: dict[str, Any] = {}
    at = 0
    for name, values in parts.items():
        end = at + values.nbytes
        kind = kinds[values.dtype.str]
        header[name] = {"dtype": kind, "shape": [len(values)], "data_offsets": [at, end]}
        at = end
    about = {key: found[key] for key in ("session_id", "task_id", "group_id")}
    about |= {"layout": "traces", "weight_versions": ["1"], "lineages": []}
    header["__metadata__"] = {"polar": json.dumps(about)}
    text = json.dumps(header).encode()
    data = b"".join(values.tobytes() for values in parts.values())
    return len(text).to_bytes(8, "little") + text + data


class Ground:
    """A server of its own, filled as a node fills it."""

    def __init__(self, polar: str, folder: Path) -> None:
        command = [polar, "rollout-server", "--port=0", f"--state={folder / 'state'}"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        for line in self.server.stdout:
            if "http://" in line:
                self.url = "http://" + line.split("http://")[1].split()[0].rstrip("/.,")
                break
        self.client = PolarClient(self.url, timeout=600)
        self.http = self.client._http

    def fill(self, queue: str, sessions: int, files: dict[str, bytes], trained: int) -> None:
        """Puts in one group whose sessions all have the same files."""
        artifacts = []
        for name, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            self.post("PUT", f"/api/blobs/{sha256}", content=content)
            artifacts.append({"name": name, "sha256": sha256, "size": len(content)})
        harness = {"name": "shell", "command": "true"}
        task = {"task_id": queue, "queue": queue, "harness": harness, "num_samples": sessions}
        self.post("POST", "/api/tasks", json=task)
        node = {"node_id": "n", "boot_id": "b", "version": "0", "runtimes": ["local"]}
        left = sessions
        while left:
            asked = {"node": node | NODE, "free": min(left, 64), "wait_seconds": 1.0}
            leases = self.post("POST", "/api/nodes/n/lease", json=asked).json()["leases"]
            for lease in leases:
                left -= 1
                report = {
                    "session_id": lease["session_id"],
                    "epoch": lease["epoch"],
                    "node_id": "n",
                    "outcome": {"type": "completed"},
                    "reward": 1.0,
                    "calls": 1,
                    "traces": 1,
                    "tokens": {"sampled": trained, "trained": trained, "context": 0},
                    "times": {},
                    "artifacts": artifacts,
                }
                self.post("POST", f"/api/sessions/{lease['session_id']}/result", json=report)
        answer = self.client.next_batch(0, queue=queue)
        assert answer.batch is not None and answer.batch.number == 1

    def post(self, method: str, path: str, **body: Any) -> httpx.Response:
        answer = self.http.request(method, path, timeout=600, **body)
        assert answer.is_success, answer.text
        return answer

    def resident(self) -> float:
        """Megabytes that the server holds."""
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self) -> None:
        self.client.close()
        self.server.terminate()
        self.server.wait()


NODE = {
    "instance_id": "bench",
    "slots": {"prepare": 64, "ready": 64, "run": 64, "grade": 64},
    "engine": "none",
}


def by_json(client: PolarClient) -> int:
    content = client._http.get("/api/batches/bench/1/trajectories", timeout=600).content
    traces = [trace for found in parse(content) for trace in found["traces"]]
    return sum(
        kept(t["prompt_ids"] + t["response_ids"], t["loss_mask"], t["response_logprobs"])
        for t in traces
    )


def by_sdk(client: PolarClient) -> int:
    found = client.batch_trajectories(1, queue="bench")
    traces = [trace for trajectory in found for trace in trajectory.traces]
    return sum(kept(t.token_ids, t.loss_mask, t.response_logprobs) for t in traces)


def by_arrays(client: PolarClient) -> int:
    found = client.batch_arrays(1, queue="bench")
    return sum(kept(part.ids, part.loss_mask, part.logprobs) for part in found)


def kept(ids: Any, mask: Any, logprobs: Any) -> int:
    """Makes the trainer's own arrays; returns how many tokens they hold."""
    own = (np.array(ids, np.int32), np.array(mask, np.uint8), np.array(logprobs, np.float32))
    return len(own[0])


try:
    import orjson

    parse: Callable[[bytes], Any] = orjson.loads
except ImportError:
    parse = json.loads


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--polar", required=True, help="the polar binary")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32_000, help="tokens of one session")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stream", type=float, default=0.0, metavar="GB")
    parser.add_argument("--export", type=float, default=0.0, metavar="GB")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(asked.polar, Path(folder))
        try:
            compare(ground, asked)
            if asked.stream:
                stream(ground, asked)
            if asked.export:
                export(ground, asked.export, asked.polar, Path(folder))
        finally:
            ground.stop()


def compare(ground: Ground, asked: argparse.Namespace) -> None:
    found = trajectory(asked.tokens)
    files = {
        "trajectory.json": json.dumps(found).encode(),
        "trajectory.safetensors": arrays(found),
    }
    ground.fill("bench", asked.sessions, files, found["tokens"]["trained"])
    ways = {"json": by_json, "sdk": by_sdk, "arrays": by_arrays}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(asked.repeats):
        for way, read in ways.items():
            started = time.perf_counter()
            tokens = read(ground.client)
            seconds[way].append(time.perf_counter() - started)
            assert tokens == asked.sessions * asked.tokens, (way, tokens)
    base = statistics.median(seconds["json"])
    print(
        f"{asked.sessions} sessions of {asked.tokens} tokens, median of {asked.repeats}, "
        f"JSON by {parse.__module__}"
    )
    print("| way | million tokens/s | times JSON | bytes a token |\n|---|---|---|---|")
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        rate = asked.sessions * asked.tokens / middle / 1e6
        size = len(files["trajectory.safetensors" if way == "arrays" else "trajectory.json"])
        print(f"| {way} | {rate:.2f} | {base / middle:.1f} | {size / asked.tokens:.1f} |")


def stream(ground: Ground, asked: argparse.Namespace) -> None:
    found = trajectory(2_000_000)
    content = arrays(found)
    sessions = max(1, round(asked.stream * 1e9 / len(content)))
    files = {"trajectory.json": b"{}", "trajectory.safetensors": content}
    ground.fill("stream", sessions, files, found["tokens"]["trained"])
    del found
    before = (ground.resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    started, total = time.perf_counter(), 0
    for part in ground.client.batch_arrays(1, queue="stream"):
        total += (
            part.ids.nbytes + part.loss_mask.nbytes + part.logprobs.nbytes + part.versions.nbytes
        )
    taken = time.perf_counter() - started
    after = (ground.resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        f"\nstream of {total / 1e9:.1f} GB in {sessions} files of {len(content) / 1e6:.0f} MB: "
        f"{total / taken / 1e6:.0f} MB/s"
    )
    print(
        f"resident MB of the server {before[0]:.0f} -> {after[0]:.0f}, "
        f"most of the reader {before[1]:.0f} -> {after[1]:.0f}"
    )


def export(ground: Ground, gigabytes: float, polar: str, folder: Path) -> None:
    found = trajectory(200_000)
    content = json.dumps(found).encode()
    files = {"trajectory.json": content}
    print("\n| sessions | read, GB | file, GB | seconds | most memory, MB |\n|---|---|---|---|---|")
    one = exported(ground, polar, folder, 8, files, found["tokens"]["trained"])
    for part in (0.01, 1.0):
        sessions = max(1, round(part * gigabytes * 1e9 / one))
        exported(ground, polar, folder, sessions, files, found["tokens"]["trained"])


def exported(
    ground: Ground, polar: str, folder: Path, sessions: int, files: dict[str, bytes], trained: int
) -> float:
    """Bytes of the file for each session."""
    task, out = f"export-{sessions}", folder / "rows.parquet"
    ground.fill(task, sessions, files, trained)
    command = [polar, "export", task, "--format=parquet", f"--out={out}", f"--server={ground.url}"]
    started = time.perf_counter()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    memory = 0.0
    # What the kernel tells of a process that has ended has that of its parent in it.
    while running.poll() is None:
        memory = max(memory, most_resident(running.pid))
        time.sleep(0.02)
    taken = time.perf_counter() - started
    assert running.returncode == 0, running.returncode
    size = out.stat().st_size
    out.unlink()
    read = sessions * sum(map(len, files.values())) / 1e9
    print(f"| {sessions} | {read:.1f} | {size / 1e9:.2f} | {taken:.0f} | {memory:.0f} |", flush=True)
    return size / sessions


def most_resident(pid: int) -> float:
    """The most memory that a process ever had, in megabytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
