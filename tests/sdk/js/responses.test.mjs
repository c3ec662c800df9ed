// OpenAI's own client against the gateway, over Responses.

import { all, check, checkBoth, deployment, trimmed } from './check.mjs';
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
  strict: false,
};
const PATCH = {
  type: 'custom',
  name: 'apply_patch',
  description: 'Changes files.',
  format: { type: 'grammar', syntax: 'lark', definition: 'start: "*** Begin Patch"' },
};
const IMAGE = 'data:image/png;base64,iVBORw0KGgo=';

function connect(session, options = {}) {
  return new OpenAI({
    baseURL: `${session.proxy}/v1`,
    apiKey: session.secret,
    maxRetries: 0,
    ...options,
  });
}

// A reply, whole or put together by the client from its events.
async function ask(client, request, stream) {
  request = { model: 'm', ...request };
  return stream
    ? client.responses.stream(request).finalResponse()
    : client.responses.create(request);
}

function said(reply) {
  return trimmed(reply.output_text);
}

function calls(reply) {
  return reply.output.filter((item) => item.type.endsWith('_call'));
}

check('a unary reply and its usage', async (session) => {
  const request = { model: 'm', input: 'Hello', metadata: { run: '7' } };
  const reply = await connect(session).responses.create(request);
  assert.equal(said(reply), 'You said: Hello');
  assert.deepEqual([reply.object, reply.status, reply.error], ['response', 'completed', null]);
  assert.deepEqual(reply.metadata, { run: '7' });
  const [call] = await session.calls();
  assert.equal(reply.usage.input_tokens, call.prompt_tokens);
  assert.equal(reply.usage.output_tokens, call.sampled_tokens);
  assert.equal(reply.usage.total_tokens, call.prompt_tokens + call.sampled_tokens);
  assert.equal(call.delivered, true);
});

check('a stream says the same as a unary reply', async (session) => {
  const client = connect(session);
  // All but what belongs to the one reply.
  const kept = ({ id, created_at, usage, output, output_parsed, ...reply }) => ({
    ...reply,
    output: output.map(({ id, content, encrypted_content, ...item }) => ({
      ...item,
      content: content?.map(({ parsed, ...part }) => part),
    })),
  });
  for (const input of ['Hello', 'Say something in many scripts', 'Think first']) {
    const [whole, streamed] = [await ask(client, { input }, false), await ask(client, { input }, true)];
    assert.deepEqual(kept(streamed), kept(whole));
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  }
});

check('the events come in the order of the API', async (session) => {
  const request = { model: 'm', input: "What's the weather?", tools: [WEATHER], stream: true };
  const events = await all(await connect(session).responses.create(request));
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  const kinds = events.map((event) => event.type).filter((kind) => kind !== 'response.in_progress');
  assert.deepEqual([kinds[0], kinds.at(-1)], ['response.created', 'response.completed']);
  const items = [];
  for (const event of events) {
    if (event.type === 'response.output_item.added') items.push(event.item.type);
    if ('output_index' in event) assert.equal(event.output_index, items.length - 1);
  }
  assert.deepEqual(items, ['reasoning', 'message', 'function_call']);
});

for (const by of ['input', 'previous_response_id', 'item_reference']) {
  checkBoth(`a tool loop by ${by} keeps one line of work`, async (session, stream) => {
    const client = connect(session);
    const history = [
      { role: 'developer', content: 'You are a helpful agent.' },
      { role: 'user', content: 'The weather of Paris, then Rome, please.' },
    ];
    let request = { input: history, tools: [WEATHER], store: by !== 'input' };
    const inputs = [];
    let reply;
    for (;;) {
      reply = await ask(client, request, stream);
      if (!calls(reply).length) break;
      const results = calls(reply).map((call) => {
        const input = JSON.parse(call.arguments);
        inputs.push(input);
        const output = `${input.city}: 21 °C`;
        return { type: 'function_call_output', call_id: call.call_id, output };
      });
      if (by === 'previous_response_id') {
        request = { ...request, previous_response_id: reply.id, input: results };
      } else if (by === 'item_reference') {
        history.push(...reply.output.map(({ id }) => ({ type: 'item_reference', id })), ...results);
      } else {
        history.push(...reply.output, ...results);
      }
    }
    assert.deepEqual(inputs, [{ city: 'Paris', days: [1, 2], unit: 'é"\\' }, { city: 'Rome' }]);
    assert.equal(said(reply), 'The tool says: Rome: 21 °C');
    await session.isOneLineOfWork(3);
  });
}

checkBoth('tools called at once come in order with their own ids', async (session, stream) => {
  const request = { input: 'The weather of Paris and Rome?', tools: [WEATHER] };
  const called = calls(await ask(connect(session), request, stream));
  assert.deepEqual(called.map((call) => JSON.parse(call.arguments).city), ['Paris', 'Rome']);
  assert.equal(new Set(called.map((call) => call.call_id)).size, 2);
  assert.equal(new Set(called.map((call) => call.id)).size, 2);
});

checkBoth('a freeform tool gets text and keeps one line of work', async (session, stream) => {
  const client = connect(session);
  const question = { role: 'user', content: 'Patch the file' };
  const first = await ask(client, { input: [question], tools: [PATCH], store: false }, stream);
  const [call] = calls(first);
  assert.equal(call.type, 'custom_tool_call');
  assert.deepEqual([call.name, call.input], ['apply_patch', '*** Begin Patch\n+"ü"\n']);
  const result = { type: 'custom_tool_call_output', call_id: call.call_id, output: 'Done' };
  const input = [question, ...first.output, result];
  assert.equal(said(await ask(client, { input, tools: [PATCH], store: false }, stream)), 'The tool says: Done');
  await session.isOneLineOfWork(2);
});

checkBoth("shell and namespaces are told in the client's terms", async (session, stream) => {
  const client = connect(session);
  const shell = { input: 'List the files', tools: [{ type: 'local_shell' }] };
  const [listed] = calls(await ask(client, shell, stream));
  assert.equal(listed.type, 'local_shell_call');
  assert.deepEqual([listed.action.command, listed.action.timeout_ms], [['ls', '-l'], 500]);
  const find = { type: 'function', name: 'find', parameters: { type: 'object' }, strict: false };
  const crm = { type: 'namespace', name: 'crm', description: 'Customers.', tools: [find] };
  const [found] = calls(await ask(client, { input: 'Find the customer', tools: [crm] }, stream));
  assert.deepEqual([found.type, found.name, found.namespace], ['function_call', 'find', 'crm']);
});

checkBoth('reasoning is an item of its own', async (session, stream) => {
  const client = connect(session);
  const reply = await ask(client, { input: 'Think first', store: false }, stream);
  assert.deepEqual(reply.output.map((item) => item.type), ['reasoning', 'message']);
  assert.equal(reply.output[0].content[0].text.trim(), 'Six times seven.');
  assert.ok(reply.output[0].encrypted_content);
  assert.equal(said(reply), '42');
  const summed = await ask(client, { input: 'Think first', reasoning: { summary: 'auto' } }, stream);
  assert.equal(summed.output[0].summary[0].text.trim(), 'Six times seven.');
});

checkBoth('instructions go for one request', async (session, stream) => {
  const client = connect(session);
  const first = await ask(client, { input: 'ahoy', instructions: 'Talk like a pirate.' }, stream);
  assert.equal(said(first), 'Arr, ahoy');
  const next = await ask(client, { input: 'Hello', previous_response_id: first.id }, stream);
  assert.equal(said(next), 'You said: Hello');
});

checkBoth('structured output is asked for and parsed', async (session, stream) => {
  const format = zodTextFormat(z.object({ answer: z.int() }), 'answer');
  const request = { model: 'm', input: 'Answer in JSON', text: { format } };
  const { responses } = connect(session);
  const reply = stream
    ? await responses.stream(request).finalResponse()
    : await responses.parse(request);
  assert.deepEqual(reply.output_parsed, { answer: 42 });
  const { response_format: sent } = await deployment.lastRequest();
  assert.deepEqual(sent.json_schema.schema, format.schema);
});

checkBoth('the token limit makes a reply incomplete', async (session, stream) => {
  const request = { model: 'm', input: 'Count to five', max_output_tokens: 4, stream };
  let reply = await connect(session).responses.create(request);
  if (stream) {
    const last = (await all(reply)).at(-1);
    assert.equal(last.type, 'response.incomplete');
    reply = last.response;
  }
  assert.equal(reply.status, 'incomplete');
  assert.equal(reply.incomplete_details.reason, 'max_output_tokens');
  assert.equal(reply.usage.output_tokens, 4);
});

check('images reach the engine', async (session) => {
  const image = { type: 'input_image', image_url: IMAGE, detail: 'auto' };
  const content = [{ type: 'input_text', text: 'What is this?' }, image];
  await ask(connect(session), { input: [{ role: 'user', content }] }, false);
  assert.equal((await deployment.lastRequest()).messages[0].content[1].image_url.url, IMAGE);
});

check('bad input is a 400 with a message', async (session) => {
  const client = connect(session);
  for (const body of [
    { input: 'x' },
    { model: 'm', input: [] },
    { model: 'm', input: 3 },
    { model: 'm', input: [{ role: 'wizard', content: 'x' }] },
    { model: 'm', input: 'x', tools: [{ type: 'code_interpreter' }] },
    { model: 'm', input: 'x', background: true },
    { model: 'm', input: 'x', temperature: 'hot' },
  ]) {
    await assert.rejects(client.responses.create(body), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.type, 'invalid_request_error');
      assert.ok(error.param);
      return true;
    });
  }
  assert.deepEqual(await session.calls(), []);
});

check('an unknown earlier reply is named', async (session) => {
  const request = { model: 'm', input: 'Hello', previous_response_id: 'resp_0' };
  await assert.rejects(connect(session).responses.create(request), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, 'previous_response_not_found');
    assert.equal(error.param, 'previous_response_id');
    return true;
  });
});

check('tokens are counted without a generation', async (session) => {
  const client = connect(session);
  const first = await ask(client, { input: 'Hello' }, false);
  const later = { model: 'm', input: 'Hello', previous_response_id: first.id };
  const count = await client.responses.inputTokens.count(later);
  assert.equal((await session.activity()).calls, 1);
  assert.equal((await ask(client, later, false)).usage.input_tokens, count.input_tokens);
});

checkBoth('an unknown secret is a 401', async (session, stream) => {
  const { responses } = connect(session, { apiKey: 'wrong' });
  const asked = responses.create({ model: 'm', input: 'Hello', stream });
  await assert.rejects(asked, OpenAI.AuthenticationError);
});

checkBoth("the engine's refusals have the client's classes", async (session, stream) => {
  const { responses } = connect(session);
  for (const [status, kind] of [
    [429, OpenAI.RateLimitError],
    [500, OpenAI.InternalServerError],
    [503, OpenAI.InternalServerError],
    [400, OpenAI.BadRequestError],
  ]) {
    const request = { model: 'm', input: `Please fail with ${status}`, stream };
    await assert.rejects(responses.create(request), (error) => {
      assert.ok(error instanceof kind, `${status}: ${error}`);
      if (status === 429) assert.ok(Number(error.headers.get('retry-after')) >= 1);
      return true;
    });
  }
});

check('the client tries again only where that can help', async (session) => {
  const { responses } = connect(session, { maxRetries: 2 });
  for (const [status, tries] of [[429, 3], [400, 1]]) {
    const before = (await deployment.stats()).requests;
    const request = { model: 'm', input: `Please fail with ${status}` };
    await assert.rejects(responses.create(request), OpenAI.APIError);
    assert.equal((await deployment.stats()).requests, before + tries);
  }
});

check("context overflow is said in OpenAI's words", async (session) => {
  const { responses } = connect(session);
  const request = { model: 'm', input: 'word '.repeat(deployment.contextWindow) };
  await assert.rejects(responses.create(request), { code: 'context_length_exceeded' });
  // Within a stream, where alone Codex takes it for what it is.
  const last = (await all(await responses.create({ ...request, stream: true }))).at(-1);
  assert.equal(last.type, 'response.failed');
  assert.equal(last.response.error.code, 'context_length_exceeded');
});

check('a reply that does not end well fails', async (session) => {
  const { responses } = connect(session);
  for (const input of ['Please break off', 'Please abort yourself']) {
    const events = await all(await responses.create({ model: 'm', input, stream: true }));
    assert.equal(events.at(-1).type, 'response.failed');
    assert.equal(events.at(-1).response.error.code, 'server_error');
    await assert.rejects(responses.create({ model: 'm', input }), OpenAI.APIError);
  }
  assert.equal((await session.close()).tokens.trained, 0);
});
