// Google's own client against the gateway.

import { all, check, checkBoth, deployment, trimmed } from './check.mjs';
import { ApiError, FinishReason, GoogleGenAI, Type } from '@google/genai';
import assert from 'node:assert/strict';

const WEATHER = {
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: {
    type: Type.OBJECT,
    properties: { city: { type: Type.STRING, nullable: true } },
    required: ['city'],
  },
};
const TOOLS = [{ functionDeclarations: [WEATHER] }];

function connect(session, options = {}, apiKey = session.secret) {
  return new GoogleGenAI({ apiKey, httpOptions: { baseUrl: session.proxy, ...options } });
}

function ask(contents, config = {}) {
  return { model: 'm', contents, config };
}

// The responses to a request: one, or its stream's.
async function generate(client, request, stream) {
  return stream
    ? all(await client.models.generateContentStream(request))
    : [await client.models.generateContent(request)];
}

// All parts, the texts of one kind in a row as one.
function parts(responses) {
  const found = [];
  for (const part of responses.flatMap(({ candidates: [{ content }] }) => content.parts)) {
    const last = found.at(-1);
    const texts = part.text !== undefined && last?.text !== undefined;
    if (texts && Boolean(part.thought) === Boolean(last.thought)) {
      last.text += part.text;
      last.thoughtSignature ??= part.thoughtSignature;
    } else if (part.text !== '' || part.thoughtSignature) {
      found.push({ ...part });
    }
  }
  return found;
}

function said(responses) {
  return trimmed(parts(responses).filter((part) => !part.thought).map((part) => part.text ?? '').join(''));
}

function called(responses) {
  return parts(responses).flatMap((part) => part.functionCall ?? []);
}

check('a unary reply and its usage', async (session) => {
  const response = await connect(session).models.generateContent(ask('Hello'));
  assert.equal(trimmed(response.text), 'You said: Hello');
  const [candidate] = response.candidates;
  assert.equal(candidate.content.role, 'model');
  assert.equal(candidate.finishReason, FinishReason.STOP);
  assert.equal(response.modelVersion, 'm');
  assert.ok(response.responseId);
  const [call] = await session.calls();
  const usage = response.usageMetadata;
  assert.equal(usage.promptTokenCount, call.prompt_tokens);
  assert.equal(usage.candidatesTokenCount + (usage.thoughtsTokenCount ?? 0), call.sampled_tokens);
  assert.equal(usage.totalTokenCount, call.prompt_tokens + call.sampled_tokens);
  assert.equal(call.delivered, true);
});

check('a stream says the same as a unary reply', async (session) => {
  const client = connect(session);
  const kept = (responses) =>
    parts(responses).map(({ thoughtSignature, functionCall, ...part }) => ({
      ...part,
      signed: Boolean(thoughtSignature),
      called: functionCall && { ...functionCall, id: undefined },
    }));
  for (const text of ['Hello', 'Say something in many scripts', 'Think first', "What's the weather?"]) {
    for (const includeThoughts of [false, true]) {
      const request = ask(text, { tools: TOOLS, thinkingConfig: { includeThoughts } });
      const whole = await generate(client, request, false);
      const streamed = await generate(client, request, true);
      assert.deepEqual(kept(streamed), kept(whole));
      const last = streamed.at(-1);
      assert.deepEqual(last.usageMetadata.candidatesTokenCount, whole[0].usageMetadata.candidatesTokenCount);
      assert.equal(last.candidates[0].finishReason, FinishReason.STOP);
      assert.equal(new Set(streamed.map((chunk) => chunk.responseId)).size, 1);
    }
  }
});

checkBoth('a tool loop keeps one line of work', async (session, stream) => {
  const client = connect(session);
  const contents = [{ role: 'user', parts: [{ text: 'The weather of Paris, then Rome, please.' }] }];
  const config = { tools: TOOLS, systemInstruction: 'You are an agent.' };
  const inputs = [];
  let responses;
  for (;;) {
    responses = await generate(client, { model: 'm', contents, config }, stream);
    contents.push(...responses.map((response) => response.candidates[0].content));
    if (!called(responses).length) break;
    const results = called(responses).map(({ id, name, args }) => {
      inputs.push(args);
      return { functionResponse: { id, name, response: { output: `${args.city}: 21 °C` } } };
    });
    contents.push({ role: 'user', parts: results });
  }
  assert.deepEqual(inputs, [{ city: 'Paris', days: [1, 2], unit: 'é"\\' }, { city: 'Rome' }]);
  assert.equal(said(responses), 'The tool says: Rome: 21 °C');
  await session.isOneLineOfWork(3);
});

checkBoth("the client's own chat keeps one line of work", async (session, stream) => {
  const chat = connect(session).chats.create({ model: 'm', config: { tools: TOOLS } });
  const send = async (message) =>
    stream ? all(await chat.sendMessageStream({ message })) : [await chat.sendMessage({ message })];
  let responses = await send('The weather of Paris, then Rome, please.');
  while (called(responses).length) {
    const results = called(responses).map(({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: `${args.city}: 21 °C` } },
    }));
    responses = await send(results);
  }
  assert.equal(said(responses), 'The tool says: Rome: 21 °C');
  await session.isOneLineOfWork(3);
});

checkBoth('tools called at once come in order with their own ids', async (session, stream) => {
  const request = ask('The weather of Paris and Rome?', { tools: TOOLS });
  const calls = called(await generate(connect(session), request, stream));
  assert.deepEqual(calls.map((call) => call.args.city), ['Paris', 'Rome']);
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
});

check('the system prompt reaches the model', async (session) => {
  for (const systemInstruction of ['Talk like a pirate.', [{ text: 'Talk like a pirate.' }]]) {
    const request = ask('ahoy', { systemInstruction });
    assert.equal(said(await generate(connect(session), request, false)), 'Arr, ahoy');
  }
});

checkBoth('thoughts are shown only when asked for', async (session, stream) => {
  const client = connect(session);
  const request = ask('Think first', { thinkingConfig: { includeThoughts: true } });
  const [thought, text] = parts(await generate(client, request, stream));
  assert.equal(thought.thought, true);
  assert.equal(thought.text.trim(), 'Six times seven.');
  assert.equal(text.text.trim(), '42');
  const silent = parts(await generate(client, ask('Think first'), stream));
  assert.deepEqual(silent.map((part) => Boolean(part.thought)), [false]);
});

check('images reach the engine', async (session) => {
  const inlineData = { mimeType: 'image/png', data: 'iVBORw0KGgo=' };
  await connect(session).models.generateContent(ask(['Look', { inlineData }]));
  const [text, image] = (await deployment.lastRequest()).messages[0].content;
  assert.deepEqual(text, { type: 'text', text: 'Look' });
  assert.equal(image.image_url.url, 'data:image/png;base64,iVBORw0KGgo=');
});

checkBoth('stop sequences end the reply', async (session, stream) => {
  const request = ask('Count to five', { stopSequences: ['three', 'five'] });
  const responses = await generate(connect(session), request, stream);
  assert.equal(said(responses), 'one two ');
  assert.equal(responses.at(-1).candidates[0].finishReason, FinishReason.STOP);
});

checkBoth('the token limit ends the reply', async (session, stream) => {
  const request = ask('Count to five', { maxOutputTokens: 4 });
  const last = (await generate(connect(session), request, stream)).at(-1);
  assert.equal(last.candidates[0].finishReason, FinishReason.MAX_TOKENS);
  const { candidatesTokenCount, thoughtsTokenCount } = last.usageMetadata;
  assert.equal(candidatesTokenCount + (thoughtsTokenCount ?? 0), 4);
});

checkBoth('structured output is asked for and parsed', async (session, stream) => {
  const responseSchema = { type: Type.OBJECT, properties: { answer: { type: Type.INTEGER } } };
  const config = { responseMimeType: 'application/json', responseSchema };
  const responses = await generate(connect(session), ask('Answer in JSON', config), stream);
  assert.deepEqual(JSON.parse(responses.map((response) => response.text ?? '').join('')), { answer: 42 });
  assert.deepEqual((await deployment.lastRequest()).response_format.json_schema.schema, {
    type: 'object',
    properties: { answer: { type: 'integer' } },
  });
});

check('tokens are counted without a generation', async (session) => {
  const client = connect(session);
  const count = await client.models.countTokens({ model: 'm', contents: 'Hello' });
  assert.equal((await session.activity()).calls, 0);
  await client.models.generateContent(ask('Hello'));
  const [call] = await session.calls();
  assert.equal(count.totalTokens, call.prompt_tokens);
});

check('models are listed', async (session) => {
  const client = connect(session);
  const models = await all(await client.models.list());
  assert.deepEqual(models.map((model) => model.name), [`models/${deployment.model}`]);
  assert.equal(models[0].inputTokenLimit, deployment.contextWindow);
  assert.deepEqual(await client.models.get({ model: deployment.model }), models[0]);
  await assert.rejects(client.models.get({ model: 'other' }), fails(404, /NOT_FOUND/));
});

// Whether an error is the client's own, with this status and something of the body.
function fails(status, message) {
  return (error) => {
    assert.ok(error instanceof ApiError, String(error));
    assert.equal(error.status, status);
    assert.match(error.message, message);
    return true;
  };
}

checkBoth('what cannot be served is a 400 that names it', async (session, stream) => {
  const client = connect(session);
  for (const [config, named] of [
    [{ candidateCount: 2 }, /candidateCount/],
    [{ cachedContent: 'cachedContents/x' }, /cachedContent/],
    [{ tools: [{ googleSearch: {} }] }, /googleSearch/],
    [{ tools: [{ codeExecution: {} }] }, /codeExecution/],
    [{ responseModalities: ['AUDIO'] }, /responseModalities/],
    [{ maxOutputTokens: 0 }, /maxOutputTokens/],
  ]) {
    await assert.rejects(generate(client, ask('Hello', config), stream), fails(400, named));
  }
  assert.deepEqual(await session.calls(), []);
});

checkBoth('an unknown secret is a 401', async (session, stream) => {
  const client = connect(session, {}, 'wrong');
  const unauthenticated = fails(401, /UNAUTHENTICATED/);
  await assert.rejects(generate(client, ask('Hello'), stream), unauthenticated);
  await assert.rejects(client.models.countTokens({ model: 'm', contents: 'x' }), unauthenticated);
});

checkBoth("the engine's refusals have the client's class and status", async (session, stream) => {
  const client = connect(session);
  for (const [asked, status, named] of [
    [429, 503, /UNAVAILABLE/],
    [500, 503, /UNAVAILABLE/],
    [503, 503, /UNAVAILABLE/],
    [400, 400, /INVALID_ARGUMENT/],
  ]) {
    const request = ask(`Please fail with ${asked}`);
    await assert.rejects(generate(client, request, stream), fails(status, named));
  }
});

check('the client tries again only where that can help', async (session) => {
  const client = connect(session, { retryOptions: { attempts: 3 } });
  for (const [status, tries] of [[429, 3], [400, 1]]) {
    const before = (await deployment.stats()).requests;
    await assert.rejects(client.models.generateContent(ask(`Please fail with ${status}`)));
    assert.equal((await deployment.stats()).requests, before + tries);
  }
});

check("context overflow is said in Google's words", async (session) => {
  const request = ask('word '.repeat(deployment.contextWindow));
  const overflow = fails(400, /input token count .* exceeds the maximum/);
  await assert.rejects(connect(session).models.generateContent(request), overflow);
});

check('a stream that breaks off ends in an error', async (session) => {
  let text = '';
  await assert.rejects(async () => {
    const request = ask('Please break off');
    for await (const chunk of await connect(session).models.generateContentStream(request)) {
      text += chunk.text ?? '';
    }
  }, ApiError);
  assert.ok(text);
  const [call] = await session.calls();
  assert.equal(call.finish_reason, 'error');
});

check('hanging up is recorded as undelivered', async (session) => {
  const abort = new AbortController();
  const config = { maxOutputTokens: 6000, abortSignal: abort.signal };
  const request = ask('Please talk without end', config);
  for await (const chunk of await connect(session).models.generateContentStream(request)) {
    if (chunk.text) break;
  }
  abort.abort();
  await session.untilIdle(1);
  const [call] = await session.calls();
  assert.equal(call.delivered, false);
});

check('many streams at once keep apart', async (session) => {
  const client = connect(session);
  const one = async (number) => {
    assert.equal(said(await generate(client, ask(`I am ${number}`), true)), `You said: I am ${number}`);
  };
  await Promise.all(Array.from({ length: 32 }, (_, number) => one(number)));
  assert.equal((await session.close()).traces.length, 32);
});
