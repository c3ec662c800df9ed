// A gateway in front of a simulated engine, each a process of the `polar` binary.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';

export const DEADLINE_MS = 60_000;
const MODEL = 'sdk-test-model';
const CONTEXT_WINDOW = 8192;

export class Deployment {
  model = MODEL;
  contextWindow = CONTEXT_WINDOW;

  static async start() {
    const started = new Deployment();
    started.folder = await mkdtemp(join(tmpdir(), 'polar-sdk-js-'));
    try {
      await started.#start();
    } catch (error) {
      await started.stop();
      throw error;
    }
    return started;
  }

  processes = [];

  async #start() {
    const engine = await this.#run('simulate-engine', { engine: /at (http:\/\/\S+)/ }, [
      '--port=0',
      `--policy=${process.env.POLAR_POLICY}`,
      `--model=${MODEL}`,
      `--context-window=${CONTEXT_WINDOW}`,
      '--tokens-per-second=2000',
    ]);
    const announced = { proxy: /proxy\s+(http:\/\/\S+)/, control: /control\s+(http:\/\/\S+)/ };
    const gateway = await this.#run('gateway', announced, [
      '--port=0',
      '--control-port=0',
      `--state=${this.folder}`,
      `--engine=${engine.engine}`,
    ]);
    this.engine = engine.engine;
    this.proxy = gateway.proxy;
    this.controlAddress = gateway.control;
    // Where a gateway that is given no token keeps its own.
    this.token = (await readFile(join(this.folder, 'polar', 'token'), 'utf8')).trim();
  }

  // Starts a process and waits for the addresses that it prints.
  async #run(command, announces, args) {
    const log = await open(join(this.folder, `${command}.log`), 'a');
    const environment = { ...process.env, XDG_STATE_HOME: this.folder, POLAR_LOG: 'info' };
    delete environment.POLAR_TOKEN;
    const child = spawn(process.env.POLAR_BINARY, [command, ...args], {
      stdio: ['ignore', 'pipe', log.fd],
      env: environment,
    });
    await log.close();
    this.processes.push(child);
    const deadline = AbortSignal.timeout(DEADLINE_MS);
    deadline.addEventListener('abort', () => child.kill());
    const addresses = {};
    const lines = createInterface({ input: child.stdout });
    for await (const line of lines) {
      for (const [name, pattern] of Object.entries(announces)) {
        const found = pattern.exec(line);
        if (found) addresses[name] = found[1];
      }
      if (Object.keys(addresses).length === Object.keys(announces).length) {
        // Reads on, so that the process never blocks on a full pipe.
        child.stdout.resume();
        return addresses;
      }
    }
    const told = await readFile(join(this.folder, `${command}.log`), 'utf8');
    throw new Error(`polar ${command} did not start: ${told}`);
  }

  async stop() {
    for (const child of this.processes.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = new Promise((resolve) => child.once('exit', resolve));
      child.kill();
      await ended;
    }
    await rm(this.folder, { recursive: true, force: true });
  }

  // Asks the gateway's control listener.
  async control(method, path, body) {
    const answer = await fetch(this.controlAddress + path, {
      method,
      headers: { authorization: `Bearer ${this.token}`, 'content-type': 'application/json' },
      body: body && JSON.stringify(body),
    });
    assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
    return answer.json();
  }

  // A session as a harness gets one.
  async openSession() {
    return new Session(this, await this.control('POST', '/sessions', { sampling: {} }));
  }

  // The engine's counters.
  async stats() {
    return (await fetch(`${this.engine}/simulator/stats`)).json();
  }

  // What the engine was asked last.
  async lastRequest() {
    return (await (await fetch(`${this.engine}/simulator/requests`)).json()).at(-1).body;
  }
}

class Session {
  #opened;
  #deployment;
  #closed;

  constructor(deployment, opened) {
    this.#deployment = deployment;
    this.#opened = opened;
    this.proxy = deployment.proxy;
    this.secret = opened.secret;
  }

  // Counts while it is open.
  async activity() {
    const sessions = await this.#deployment.control('GET', '/sessions');
    return sessions.find((session) => session.session_id === this.#opened.session_id);
  }

  // Waits until so many calls are recorded and none is running.
  async untilIdle(calls) {
    const deadline = Date.now() + DEADLINE_MS;
    for (;;) {
      const now = await this.activity();
      if (now.calls === calls && now.running === 0) return;
      assert.ok(Date.now() < deadline, JSON.stringify(now));
      await setTimeout(10);
    }
  }

  // Closes it and gives its trajectory.
  async close() {
    const path = `/sessions/${this.#opened.session_id}`;
    this.#closed ??= await this.#deployment.control('DELETE', path);
    return this.#closed.trajectory;
  }

  // Closes it and gives its calls.
  async calls() {
    await this.close();
    return this.#closed.calls;
  }

  // Closes it and checks that its calls became one sequence of tokens, all trained.
  async isOneLineOfWork(calls) {
    const { traces, tokens } = await this.close();
    assert.equal(traces.length, 1);
    assert.deepEqual(traces[0].calls, this.#closed.calls.map((call) => call.call_id));
    assert.equal(traces[0].calls.length, calls);
    assert.equal(tokens.trained, tokens.sampled);
  }
}
