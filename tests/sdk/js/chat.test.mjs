// OpenAI's own client against the gateway, over Chat Completions.

import { all, check, checkBoth, deployment, trimmed } from './check.mjs';
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city.',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string' } },
      required: ['city'],
    },
  },
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

function ask(text, more = {}) {
  return { model: 'm', messages: [{ role: 'user', content: text }], ...more };
}

// The first choice of a reply, whole or put together by the client from its chunks.
async function choice(client, request, stream) {
  const reply = stream
    ? await client.chat.completions.stream(request).finalChatCompletion()
    : await client.chat.completions.create(request);
  assert.equal(reply.choices.length, 1);
  return reply.choices[0];
}

check('a unary reply and its usage', async (session) => {
  const reply = await connect(session).chat.completions.create(ask('Hello'));
  const [{ message, finish_reason: finish }] = reply.choices;
  assert.equal(trimmed(message.content), 'You said: Hello');
  assert.deepEqual([message.role, finish, reply.object], ['assistant', 'stop', 'chat.completion']);
  const [call] = await session.calls();
  assert.equal(reply.usage.prompt_tokens, call.prompt_tokens);
  assert.equal(reply.usage.completion_tokens, call.sampled_tokens);
  assert.equal(reply.usage.total_tokens, call.prompt_tokens + call.sampled_tokens);
  assert.equal(call.delivered, true);
});

check('a stream says the same as a unary reply', async (session) => {
  const client = connect(session);
  for (const text of ['Hello', 'Say something in many scripts']) {
    const whole = await client.chat.completions.create(ask(text));
    const usage = { stream: true, stream_options: { include_usage: true } };
    const chunks = await all(await client.chat.completions.create(ask(text, usage)));
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
    const parts = chunks.flatMap((chunk) => chunk.choices);
    assert.equal(parts[0].delta.role, 'assistant');
    const streamed = parts.map((part) => part.delta.content ?? '').join('');
    assert.equal(streamed, whole.choices[0].message.content);
    assert.ok(parts.filter((part) => part.delta.content).length > 1);
    assert.deepEqual(parts.map((part) => part.finish_reason).filter(Boolean), ['stop']);
    assert.deepEqual(chunks.map((chunk) => chunk.usage).filter(Boolean), [whole.usage]);
  }
});

checkBoth('a tool loop keeps one line of work', async (session, stream) => {
  const client = connect(session);
  const messages = [
    { role: 'system', content: 'You are a helpful agent.' },
    { role: 'user', content: 'The weather of Paris, then Rome, please.' },
  ];
  const inputs = [];
  let answer;
  for (;;) {
    answer = await choice(client, { model: 'm', messages, tools: [WEATHER] }, stream);
    messages.push(answer.message);
    if (!answer.message.tool_calls?.length) break;
    assert.equal(answer.finish_reason, 'tool_calls');
    for (const call of answer.message.tool_calls) {
      const input = JSON.parse(call.function.arguments);
      inputs.push(input);
      const content = `${input.city}: 21 °C`;
      messages.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
  assert.deepEqual(inputs, [{ city: 'Paris', days: [1, 2], unit: 'é"\\' }, { city: 'Rome' }]);
  assert.equal(trimmed(answer.message.content), 'The tool says: Rome: 21 °C');
  await session.isOneLineOfWork(3);
});

check("the client's own tool loop keeps one line of work", async (session) => {
  const asked = [];
  const tool = {
    type: 'function',
    function: {
      ...WEATHER.function,
      parse: JSON.parse,
      function: ({ city }) => {
        asked.push(city);
        return `${city}: 21 °C`;
      },
    },
  };
  const request = ask('The weather of Paris, then Rome, please.', { tools: [tool] });
  const runner = connect(session).chat.completions.runTools({ ...request, stream: true });
  assert.match(await runner.finalContent(), /Rome: 21 °C/);
  assert.deepEqual(asked, ['Paris', 'Rome']);
  await session.isOneLineOfWork(3);
});

checkBoth('tools called at once come in order with their own ids', async (session, stream) => {
  const request = ask('The weather of Paris and Rome?', { tools: [WEATHER] });
  const { tool_calls: calls } = (await choice(connect(session), request, stream)).message;
  assert.deepEqual(
    calls.map((call) => JSON.parse(call.function.arguments).city),
    ['Paris', 'Rome'],
  );
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
});

check('system and developer prompts reach the model', async (session) => {
  for (const role of ['system', 'developer']) {
    const messages = [
      { role, content: 'Talk like a pirate.' },
      { role: 'user', content: [{ type: 'text', text: 'ahoy' }] },
    ];
    const { message } = await choice(connect(session), { model: 'm', messages }, false);
    assert.equal(trimmed(message.content), 'Arr, ahoy');
  }
});

checkBoth('reasoning is apart from the text', async (session, stream) => {
  const client = connect(session);
  let [content, reasoning] = ['', ''];
  const reply = await client.chat.completions.create(ask('Think first', { stream }));
  for (const part of stream ? await all(reply) : [reply]) {
    for (const { message, delta = message } of part.choices) {
      content += delta.content ?? '';
      reasoning += delta.reasoning_content ?? '';
    }
  }
  assert.equal(trimmed(content), '42');
  assert.equal(reasoning.trim(), 'Six times seven.');
});

checkBoth('stop sequences end the reply', async (session, stream) => {
  const request = ask('Count to five', { stop: ['three', 'five'] });
  const { message, finish_reason: finish } = await choice(connect(session), request, stream);
  assert.equal(trimmed(message.content), 'one two ');
  assert.equal(finish, 'stop');
});

check('the token limit ends the reply', async (session) => {
  for (const name of ['max_tokens', 'max_completion_tokens']) {
    const request = ask('Count to five', { [name]: 4 });
    const reply = await connect(session).chat.completions.create(request);
    assert.equal(reply.choices[0].finish_reason, 'length');
    assert.equal(reply.usage.completion_tokens, 4);
  }
});

checkBoth('structured output is asked for and parsed', async (session, stream) => {
  const format = zodResponseFormat(z.object({ answer: z.int() }), 'answer');
  const request = ask('Answer in JSON', { response_format: format });
  const { completions } = connect(session).chat;
  const reply = stream
    ? await completions.stream(request).finalChatCompletion()
    : await completions.parse(request);
  assert.deepEqual(reply.choices[0].message.parsed, { answer: 42 });
  const { response_format: sent } = await deployment.lastRequest();
  assert.deepEqual(sent.json_schema.schema, format.json_schema.schema);
});

check('images reach the engine', async (session) => {
  const image = { type: 'image_url', image_url: { url: IMAGE } };
  const content = [{ type: 'text', text: 'What is this?' }, image];
  const messages = [{ role: 'user', content }];
  await connect(session).chat.completions.create({ model: 'm', messages });
  assert.equal((await deployment.lastRequest()).messages[0].content[1].image_url.url, IMAGE);
});

check('models are listed', async (session) => {
  const client = connect(session);
  const models = await all(client.models.list());
  assert.deepEqual(models.map((model) => model.id), [deployment.model]);
  assert.equal((await client.models.retrieve(deployment.model)).id, deployment.model);
  await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
});

check('bad input is a 400 with a message', async (session) => {
  const client = connect(session);
  for (const body of [
    { model: 'm', messages: [] },
    { model: 'm' },
    { model: 'm', messages: [{ role: 'user', content: 3 }] },
    { model: 'm', messages: [{ role: 'wizard', content: 'x' }] },
    ask('x', { temperature: 'hot' }),
    ask('x', { n: 2 }),
  ]) {
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.type, 'invalid_request_error');
      assert.ok(error.param);
      return true;
    });
  }
  assert.deepEqual(await session.calls(), []);
});

checkBoth('an unknown secret is a 401', async (session, stream) => {
  const client = connect(session, { apiKey: 'wrong' });
  for (const asking of [
    () => client.chat.completions.create(ask('Hello', { stream })),
    () => client.models.list(),
  ]) {
    await assert.rejects(asking, (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError);
      assert.equal(error.code, 'invalid_api_key');
      return true;
    });
  }
});

checkBoth("the engine's refusals have the client's classes", async (session, stream) => {
  const client = connect(session);
  for (const [status, kind] of [
    [429, OpenAI.RateLimitError],
    [500, OpenAI.InternalServerError],
    [503, OpenAI.InternalServerError],
    [400, OpenAI.BadRequestError],
  ]) {
    const request = ask(`Please fail with ${status}`, { stream });
    await assert.rejects(client.chat.completions.create(request), (error) => {
      assert.ok(error instanceof kind, `${status}: ${error}`);
      if (status === 429) assert.ok(Number(error.headers.get('retry-after')) >= 1);
      return true;
    });
  }
});

check('the client tries again only where that can help', async (session) => {
  const client = connect(session, { maxRetries: 2 });
  for (const [status, tries] of [[429, 3], [400, 1]]) {
    const before = (await deployment.stats()).requests;
    const request = ask(`Please fail with ${status}`);
    await assert.rejects(client.chat.completions.create(request), OpenAI.APIError);
    assert.equal((await deployment.stats()).requests, before + tries);
  }
});

check("context overflow is said in OpenAI's words", async (session) => {
  const request = ask('word '.repeat(deployment.contextWindow));
  await assert.rejects(connect(session).chat.completions.create(request), {
    status: 400,
    code: 'context_length_exceeded',
    message: /maximum context length/,
  });
});

check('a stream that breaks off ends in an error', async (session) => {
  const request = ask('Please break off', { stream: true });
  let text = '';
  await assert.rejects(async () => {
    for await (const chunk of await connect(session).chat.completions.create(request)) {
      text += chunk.choices[0]?.delta.content ?? '';
    }
  }, OpenAI.APIError);
  assert.ok(text);
  const [call] = await session.calls();
  assert.equal(call.finish_reason, 'error');
});

check('hanging up is recorded as undelivered', async (session) => {
  const request = ask('Please talk without end', { stream: true });
  const stream = await connect(session).chat.completions.create(request);
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  await session.untilIdle(1);
  const [call] = await session.calls();
  assert.equal(call.delivered, false);
});

check('many streams at once keep apart', async (session) => {
  const client = connect(session);
  const one = async (number) => {
    const { message } = await choice(client, ask(`I am ${number}`), true);
    assert.equal(trimmed(message.content), `You said: I am ${number}`);
  };
  await Promise.all(Array.from({ length: 32 }, (_, number) => one(number)));
  assert.equal((await session.close()).traces.length, 32);
});
