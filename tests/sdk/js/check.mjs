// The tests of the client libraries: one deployment for a file of tests, a fresh session for each.
//
// A test fails on whatever the library complains about, besides what the test itself finds
// wrong, and where its session's tokens do not add up.

import { DEADLINE_MS, Deployment } from './deployment.mjs';
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';

const complaints = [];
process.on('warning', (warning) => complaints.push(`${warning.name}: ${warning.message}`));
for (const level of ['warn', 'error']) {
  console[level] = (...said) => complaints.push(`console.${level}: ${said.join(' ')}`);
}

export const deployment = await Deployment.start();
after(() => deployment.stop());

// A test of its own session, which `body` is given.
export function check(name, body) {
  test(name, { timeout: DEADLINE_MS }, async () => {
    complaints.length = 0;
    const session = await deployment.openSession();
    await body(session);
    const { tokens } = await session.close();
    const untrained = Object.values(tokens.untrained).reduce((sum, count) => sum + count, 0);
    assert.equal(tokens.sampled, tokens.trained + untrained);
    // Warnings are told on a later turn of the event loop.
    await setImmediate();
    assert.deepEqual(complaints, [], 'the client complained');
  });
}

// The same test of unary and of streamed replies.
export function checkBoth(name, body) {
  for (const stream of [false, true]) {
    check(`${name} (${stream ? 'streamed' : 'unary'})`, (session) => body(session, stream));
  }
}

// The events of a stream in a list.
export async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// A text without the line ends that the simulated model puts behind its reasoning.
export function trimmed(text) {
  return (text ?? '').replace(/^\n+|\n+$/g, '');
}
