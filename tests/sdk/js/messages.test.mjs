// Anthropic's own client against the gateway.

import { all, check, checkBoth, deployment, trimmed } from './check.mjs';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import assert from 'node:assert/strict';
import { z } from 'zod';

const WEATHER = {
  name: 'get_weather',
  description: 'The weather in a city.',
  input_schema: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
  },
};

function connect(session, options = {}) {
  return new Anthropic({
    baseURL: session.proxy,
    apiKey: session.secret,
    maxRetries: 0,
    ...options,
  });
}

function ask(text, more = {}) {
  return { model: 'm', max_tokens: 1000, messages: [{ role: 'user', content: text }], ...more };
}

// A message, whole or put together by the client from its events.
async function create(client, request, stream) {
  return stream ? client.messages.stream(request).finalMessage() : client.messages.create(request);
}

function texts(message) {
  return message.content.filter((block) => block.type === 'text').map((block) => trimmed(block.text));
}

function uses(message) {
  return message.content.filter((block) => block.type === 'tool_use');
}

check('a unary reply and its usage', async (session) => {
  const message = await create(connect(session), ask('Hello'), false);
  assert.deepEqual(texts(message), ['You said: Hello']);
  assert.deepEqual([message.role, message.type], ['assistant', 'message']);
  assert.deepEqual([message.stop_reason, message.stop_sequence], ['end_turn', null]);
  const [call] = await session.calls();
  const { input_tokens: read, cache_read_input_tokens: cached } = message.usage;
  assert.equal(read + (cached ?? 0), call.prompt_tokens);
  assert.equal(message.usage.output_tokens, call.sampled_tokens);
  assert.equal(call.delivered, true);
});

check('a stream says the same as a unary reply', async (session) => {
  const client = connect(session);
  // All but what belongs to the one reply.
  const kept = ({ id, usage, parsed_output, stop_details, content, ...message }) => ({
    ...message,
    content: content.map(({ signature, ...block }) => block),
  });
  for (const text of ['Hello', 'Say something in many scripts', 'Think first']) {
    const whole = await create(client, ask(text), false);
    const streamed = await create(client, ask(text), true);
    assert.deepEqual(kept(streamed), kept(whole));
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  }
});

check('the events come in the order of the API', async (session) => {
  const request = ask("What's the weather?", { tools: [WEATHER], stream: true });
  const events = await all(await connect(session).messages.create(request));
  const kinds = events.map((event) => event.type).filter((kind) => kind !== 'ping');
  assert.equal(kinds[0], 'message_start');
  assert.deepEqual(kinds.slice(-2), ['message_delta', 'message_stop']);
  let open = null;
  const blocks = [];
  for (const event of events) {
    if (event.type === 'content_block_start') {
      assert.equal(open, null);
      open = event.index;
      blocks.push(event.content_block.type);
    } else if (event.type.startsWith('content_block')) {
      assert.equal(event.index, open);
      if (event.type === 'content_block_stop') open = null;
    }
  }
  assert.deepEqual(blocks, ['thinking', 'text', 'tool_use']);
});

checkBoth('a tool loop keeps one line of work', async (session, stream) => {
  const client = connect(session);
  const messages = [{ role: 'user', content: 'The weather of Paris, then Rome, please.' }];
  const mark = { type: 'ephemeral' };
  const system = [{ type: 'text', text: 'You are an agent.', cache_control: mark }];
  const inputs = [];
  let message;
  for (;;) {
    const request = { model: 'm', max_tokens: 1000, system, messages, tools: [WEATHER] };
    message = await create(client, request, stream);
    messages.push({ role: 'assistant', content: message.content });
    if (!uses(message).length) break;
    assert.equal(message.stop_reason, 'tool_use');
    const results = uses(message).map(({ id, input }) => {
      inputs.push(input);
      const content = [{ type: 'text', text: `${input.city}: 21 °C` }];
      return { type: 'tool_result', tool_use_id: id, content };
    });
    messages.push({ role: 'user', content: results });
  }
  assert.deepEqual(inputs, [{ city: 'Paris', days: [1, 2], unit: 'é"\\' }, { city: 'Rome' }]);
  assert.deepEqual(texts(message), ['The tool says: Rome: 21 °C']);
  await session.isOneLineOfWork(3);
});

check("the client's own tool loop keeps one line of work", async (session) => {
  const asked = [];
  const tool = {
    ...WEATHER,
    run: ({ city }) => {
      asked.push(city);
      return `${city}: 21 °C`;
    },
    parse: (input) => input,
  };
  const request = ask('The weather of Paris, then Rome, please.', { tools: [tool] });
  const message = await connect(session).beta.messages.toolRunner(request);
  assert.match(texts(message)[0], /Rome: 21 °C/);
  assert.deepEqual(asked, ['Paris', 'Rome']);
  await session.isOneLineOfWork(3);
});

checkBoth('tools called at once come in order with their own ids', async (session, stream) => {
  const request = ask('The weather of Paris and Rome?', { tools: [WEATHER] });
  const called = uses(await create(connect(session), request, stream));
  assert.deepEqual(called.map((block) => block.input.city), ['Paris', 'Rome']);
  assert.equal(new Set(called.map((block) => block.id)).size, 2);
});

check('a failed tool is told to the model', async (session) => {
  const use = { type: 'tool_use', id: 'toolu_1', name: 'get_weather', input: { city: 'X' } };
  const failed = { type: 'tool_result', tool_use_id: 'toolu_1', is_error: true, content: 'no such city' };
  const messages = [
    { role: 'user', content: 'weather' },
    { role: 'assistant', content: [use] },
    { role: 'user', content: [failed, { type: 'text', text: 'Go on.' }] },
  ];
  await create(connect(session), ask('', { messages, tools: [WEATHER] }), false);
  const { messages: sent } = await deployment.lastRequest();
  assert.deepEqual(sent.map((message) => message.role), ['user', 'assistant', 'tool', 'user']);
  assert.match(JSON.stringify(sent[2]), /no such city/);
});

check('the system prompt reaches the model', async (session) => {
  for (const system of ['Talk like a pirate.', [{ type: 'text', text: 'Talk like a pirate.' }]]) {
    const message = await create(connect(session), ask('ahoy', { system }), false);
    assert.deepEqual(texts(message), ['Arr, ahoy']);
  }
});

checkBoth('thinking is a block of its own and can be sent back', async (session, stream) => {
  const client = connect(session);
  const thinking = { type: 'enabled', budget_tokens: 1024 };
  const request = ask('Think first', { thinking, max_tokens: 2000 });
  const message = await create(client, request, stream);
  assert.deepEqual(message.content.map((block) => block.type), ['thinking', 'text']);
  assert.equal(message.content[0].thinking.trim(), 'Six times seven.');
  assert.equal(typeof message.content[0].signature, 'string');
  assert.deepEqual(texts(message), ['42']);
  request.messages.push(
    { role: 'assistant', content: message.content },
    { role: 'user', content: 'Hello' },
  );
  assert.deepEqual(texts(await create(client, request, stream)), ['You said: Hello']);
});

checkBoth('stop sequences end the reply and are named', async (session, stream) => {
  const request = ask('Count to five', { stop_sequences: ['three', 'five'] });
  const message = await create(connect(session), request, stream);
  assert.deepEqual(texts(message), ['one two ']);
  assert.deepEqual([message.stop_reason, message.stop_sequence], ['stop_sequence', 'three']);
});

checkBoth('the token limit ends the reply', async (session, stream) => {
  const message = await create(connect(session), ask('Count to five', { max_tokens: 4 }), stream);
  assert.equal(message.stop_reason, 'max_tokens');
  assert.equal(message.usage.output_tokens, 4);
});

checkBoth('structured output is asked for and parsed', async (session, stream) => {
  const format = zodOutputFormat(z.object({ answer: z.int() }));
  const request = ask('Answer in JSON', { output_config: { format } });
  const { messages } = connect(session);
  const message = stream
    ? await messages.stream(request).finalMessage()
    : await messages.parse(request);
  assert.deepEqual(message.parsed_output, { answer: 42 });
  const { response_format: sent } = await deployment.lastRequest();
  assert.deepEqual(sent.json_schema.schema, format.schema);
});

check('images reach the engine', async (session) => {
  const source = { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' };
  const content = [{ type: 'image', source }, { type: 'text', text: 'What is this?' }];
  await create(connect(session), ask(content), false);
  const [image] = (await deployment.lastRequest()).messages[0].content;
  assert.equal(image.image_url.url, 'data:image/png;base64,iVBORw0KGgo=');
});

check('tokens are counted without a generation', async (session) => {
  const client = connect(session);
  const { max_tokens: _, ...request } = ask('Hello');
  const count = await client.messages.countTokens(request);
  assert.equal((await session.activity()).calls, 0);
  await create(client, ask('Hello'), false);
  const [call] = await session.calls();
  assert.equal(count.input_tokens, call.prompt_tokens);
});

check('models are listed', async (session) => {
  const client = connect(session);
  const models = await all(client.models.list());
  assert.deepEqual(models.map((model) => model.id), [deployment.model]);
  assert.equal((await client.models.retrieve(deployment.model)).id, deployment.model);
  await assert.rejects(client.models.retrieve('other'), Anthropic.NotFoundError);
});

check('bad input is a 400 with a message', async (session) => {
  const client = connect(session);
  for (const body of [
    ask('x', { messages: [] }),
    { model: 'm', max_tokens: 10 },
    ask('x', { max_tokens: undefined }),
    ask(3),
    ask('x', { messages: [{ role: 'wizard', content: 'x' }] }),
    ask('x', { max_tokens: -1 }),
  ]) {
    await assert.rejects(client.post('/v1/messages', { body }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.equal(error.type, 'invalid_request_error');
      assert.ok(error.apiMessage);
      return true;
    });
  }
  assert.deepEqual(await session.calls(), []);
});

checkBoth('an unknown secret is a 401', async (session, stream) => {
  const client = connect(session, { apiKey: 'wrong' });
  for (const asking of [
    () => client.messages.create(ask('Hello', { stream })),
    () => client.models.list(),
    () => client.messages.countTokens({ model: 'm', messages: [{ role: 'user', content: 'x' }] }),
  ]) {
    await assert.rejects(asking, (error) => {
      assert.ok(error instanceof Anthropic.AuthenticationError);
      assert.equal(error.type, 'authentication_error');
      return true;
    });
  }
});

checkBoth("the engine's refusals have the client's classes", async (session, stream) => {
  const { messages } = connect(session);
  for (const [status, kind, type] of [
    // An engine that is busy is told as this API tells it of itself.
    [429, Anthropic.InternalServerError, 'overloaded_error'],
    [500, Anthropic.InternalServerError, 'api_error'],
    [503, Anthropic.InternalServerError, 'api_error'],
    [400, Anthropic.BadRequestError, 'invalid_request_error'],
  ]) {
    const request = ask(`Please fail with ${status}`, { stream });
    await assert.rejects(messages.create(request), (error) => {
      assert.ok(error instanceof kind, `${status}: ${error}`);
      assert.equal(error.type, type, String(status));
      return true;
    });
  }
});

check('the client tries again only where that can help', async (session) => {
  const { messages } = connect(session, { maxRetries: 2 });
  for (const [status, tries] of [[429, 3], [400, 1]]) {
    const before = (await deployment.stats()).requests;
    const request = ask(`Please fail with ${status}`);
    await assert.rejects(messages.create(request), Anthropic.APIError);
    assert.equal((await deployment.stats()).requests, before + tries);
  }
});

check("context overflow is said in Anthropic's words", async (session) => {
  const request = ask('word '.repeat(deployment.contextWindow));
  await assert.rejects(connect(session).messages.create(request), {
    status: 400,
    message: /prompt is too long/,
  });
});

check('a stream that breaks off ends in an error', async (session) => {
  const stream = connect(session).messages.stream(ask('Please break off'));
  let text = '';
  stream.on('text', (more) => (text += more));
  await assert.rejects(stream.finalMessage(), Anthropic.APIError);
  assert.ok(text);
  const [call] = await session.calls();
  assert.equal(call.finish_reason, 'error');
});

check('hanging up is recorded as undelivered', async (session) => {
  const request = ask('Please talk without end', { max_tokens: 6000, stream: true });
  const stream = await connect(session).messages.create(request);
  for await (const event of stream) if (event.type === 'content_block_delta') break;
  await session.untilIdle(1);
  const [call] = await session.calls();
  assert.equal(call.delivered, false);
});

check('many streams at once keep apart', async (session) => {
  const client = connect(session);
  const one = async (number) => {
    const message = await create(client, ask(`I am ${number}`), true);
    assert.deepEqual(texts(message), [`You said: I am ${number}`]);
  };
  await Promise.all(Array.from({ length: 32 }, (_, number) => one(number)));
  assert.equal((await session.close()).traces.length, 32);
});
