"""OpenAI's own client against the gateway."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from deployment import Deployment, Session

Client = Callable[..., OpenAI]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def client(session: Session) -> OpenAI:
    return OpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret, max_retries=0)


def said(content: str | None) -> str:
    """A reply without the line ends that this model family puts behind its reasoning."""
    return (content or "").strip("\n")


def ask(text: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_unary(client: OpenAI, session: Session) -> None:
    reply = client.chat.completions.create(**ask("Hello"))
    [choice] = reply.choices
    assert said(choice.message.content) == "You said: Hello"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert reply.object == "chat.completion"
    assert reply.usage is not None
    [call] = session.calls()
    assert reply.usage.prompt_tokens == call["prompt_tokens"] > 0
    assert reply.usage.completion_tokens == call["sampled_tokens"] > 0
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert call["delivered"] is True


def test_streaming_says_the_same_as_unary(client: OpenAI) -> None:
    for text in ("Hello", "Say something in many scripts"):
        whole = client.chat.completions.create(**ask(text))
        chunks = list(
            client.chat.completions.create(
                **ask(text), stream=True, stream_options={"include_usage": True}
            )
        )
        assert len({chunk.id for chunk in chunks}) == 1
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert parts[0].delta.role == "assistant"
        streamed = "".join(part.delta.content or "" for part in parts)
        assert streamed == whole.choices[0].message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == ["stop"]
        [usage] = [chunk.usage for chunk in chunks if chunk.usage]
        assert usage == whole.usage
        assert len([part for part in parts if part.delta.content]) > 1


def test_usage_is_only_streamed_when_asked_for(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ask("Hello"), stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_streaming_helper_accumulates_content_and_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(**ask("What's the weather?"), tools=[WEATHER]) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert said(message.content) == "Let me look."
    [call] = message.tool_calls or []
    assert json.loads(call.function.arguments) == {
        "city": "Paris",
        "days": [1, 2],
        "unit": 'é"\\',
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_keeps_one_line_of_work(client: OpenAI, session: Session, stream: bool) -> None:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a helpful agent."},
        {"role": "user", "content": "The weather of Paris, then Rome, please."},
    ]
    cities = []
    while True:
        if stream:
            with client.chat.completions.stream(
                model="m", messages=messages, tools=[WEATHER]
            ) as events:
                events.until_done()
                choice = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(
                model="m", messages=messages, tools=[WEATHER]
            ).choices[0]
        answer = choice.message
        messages.append(answer.model_dump(exclude_none=True, exclude={"parsed"}))
        if not answer.tool_calls:
            break
        assert choice.finish_reason == "tool_calls"
        for call in answer.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            cities.append(city)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{city}: 21 °C"})
    assert cities == ["Paris", "Rome"]
    assert choice.finish_reason == "stop"
    assert said(answer.content) == "The tool says: Rome: 21 °C"
    # The client sends history back such that the calls are one sequence, token by token.
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert trace["calls"] == [call["call_id"] for call in session.calls()]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


def test_tools_called_at_once_come_in_order_with_their_own_ids(client: OpenAI) -> None:
    request = ask("The weather of Paris and Rome?", tools=[WEATHER])
    whole = client.chat.completions.create(**request).choices[0].message.tool_calls or []
    with client.chat.completions.stream(**request) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0].message.tool_calls or []
    for calls in (whole, streamed):
        assert [json.loads(c.function.arguments)["city"] for c in calls] == ["Paris", "Rome"]
        assert len({c.id for c in calls}) == 2


def test_the_system_prompt_reaches_the_model(client: OpenAI) -> None:
    for role in ("system", "developer"):
        reply = client.chat.completions.create(
            model="m",
            messages=[
                {"role": role, "content": "Talk like a pirate."},
                {"role": "user", "content": [{"type": "text", "text": "ahoy"}]},
            ],
        )
        assert said(reply.choices[0].message.content) == "Arr, ahoy"


def test_reasoning_is_apart_from_the_text(client: OpenAI) -> None:
    message = client.chat.completions.create(**ask("Think first")).choices[0].message
    assert said(message.content) == "42"
    assert (message.model_extra or {}).get("reasoning_content", "").strip() == "Six times seven."
    deltas = [
        chunk.choices[0].delta
        for chunk in client.chat.completions.create(**ask("Think first"), stream=True)
    ]
    reasoning = "".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas)
    assert reasoning.strip() == "Six times seven."
    assert said("".join(delta.content or "" for delta in deltas)) == "42"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_end_the_reply(client: OpenAI, stream: bool) -> None:
    request = ask("Count to five", stop=["three", "five"])
    if stream:
        parts = [c.choices[0] for c in client.chat.completions.create(**request, stream=True)]
        text = "".join(part.delta.content or "" for part in parts)
        finish = parts[-1].finish_reason
    else:
        choice = client.chat.completions.create(**request).choices[0]
        text, finish = choice.message.content or "", choice.finish_reason
    assert said(text) == "one two "
    assert finish == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_token_limit_ends_the_reply(client: OpenAI, name: str) -> None:
    reply = client.chat.completions.create(**ask("Count to five", **{name: 4}))
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4


def test_models_are_listed(client: OpenAI, deployment: Deployment) -> None:
    [model] = client.models.list().data
    assert model.id == deployment.model
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_nothing_but_generations_is_recorded(client: OpenAI, session: Session) -> None:
    client.models.list()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="m", input="text")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ask("Hello", n=2))
    assert session.calls() == []


def test_several_choices_are_refused_and_say_why(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask("Hello", n=2))
    assert caught.value.param == "n"
    assert caught.value.type == "invalid_request_error"
    assert client.chat.completions.create(**ask("Hello", n=1)).choices


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": []},
        {"model": "m"},
        {"model": "m", "messages": [{"role": "user", "content": 3}]},
        {"model": "m", "messages": [{"role": "wizard", "content": "x"}]},
        {"model": "m", "messages": "hello"},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
    ],
)
def test_bad_input_is_a_400_with_a_message(client: OpenAI, body: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body is not None


@pytest.mark.parametrize("secret", ["wrong", ""])
def test_an_unknown_secret_is_a_401(session: Session, secret: str) -> None:
    client = OpenAI(
        base_url=f"{session.proxy}/v1",
        api_key=secret or "x",
        default_headers={} if secret else {"authorization": ""},
        max_retries=0,
    )
    for ask_for in (
        lambda: client.chat.completions.create(**ask("Hello")),
        lambda: client.chat.completions.create(**ask("Hello"), stream=True),
        lambda: client.models.list(),
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            ask_for()
        assert caught.value.code == "invalid_api_key"


def test_a_closed_session_is_a_401(client: OpenAI, session: Session) -> None:
    assert client.chat.completions.create(**ask("Hello")).choices
    session.close()
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(**ask("Hello"))


def test_the_secret_is_taken_from_path_key_or_header(session: Session) -> None:
    by_path = OpenAI(base_url=f"{session.proxy}/s/{session.secret}/v1", api_key="anything")
    by_header = OpenAI(
        base_url=f"{session.proxy}/v1",
        api_key="anything",
        default_headers={"polar-session": session.secret},
    )
    for client in (by_path, by_header):
        assert client.chat.completions.create(**ask("Hello")).choices
    assert len(session.calls()) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Please fail with 429", openai.RateLimitError),
        ("Please fail with 500", openai.InternalServerError),
        ("Please fail with 503", openai.InternalServerError),
        ("Please fail with 400", openai.BadRequestError),
    ],
)
def test_the_engines_refusals_have_the_clients_classes(
    client: OpenAI, text: str, kind: type[openai.APIStatusError], stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**ask(text), stream=stream)
    if kind is openai.RateLimitError:
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_context_overflow_is_said_in_openais_words(client: OpenAI, deployment: Deployment) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask("word " * deployment.context_window))
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length" in caught.value.message


def test_a_stream_that_breaks_off_ends_in_an_error(client: OpenAI, session: Session) -> None:
    text = ""
    with pytest.raises(openai.APIError):
        for chunk in client.chat.completions.create(**ask("Please break off"), stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**ask("Please break off"))
    assert [call["finish_reason"] for call in session.calls()] == ["error", "error"]


def test_hanging_up_cancels_the_engine_and_is_recorded_as_undelivered(
    client: OpenAI, session: Session, deployment: Deployment
) -> None:
    before = deployment.stats()
    stream = client.chat.completions.create(**ask("Please talk without end"), stream=True)
    for _ in itertools.islice(stream, 20):
        pass
    stream.close()
    deployment.until(lambda now: now["cancelled"] == before["cancelled"] + 1)
    session.until_idle(calls=1)
    [call] = session.calls()
    assert call["delivered"] is False
    assert 0 < call["sampled_tokens"] < 4000
    counts = session.close()["tokens"]
    assert counts["trained"] == 0
    assert counts["untrained"] == {"undelivered": call["sampled_tokens"]}


@pytest.mark.parametrize("stream", [False, True])
def test_pinned_sampling_replaces_what_the_client_sends(
    deployment: Deployment, stream: bool
) -> None:
    session = deployment.open_session(temperature=0.25, max_tokens=4, stop=["never"])
    client = OpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret, max_retries=0)
    reply = client.chat.completions.create(
        **ask("Count to five", temperature=1.5, top_p=0.5, max_tokens=100, stop="one"),
        stream=stream,
    )
    assert reply
    if stream:
        assert list(reply)[-1].choices[0].finish_reason == "length"
    sent = deployment.last_request()
    assert (sent["temperature"], sent["top_p"], sent["stop"]) == (0.25, 0.5, ["never"])
    assert 4 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
    [call] = session.calls()
    assert call["sampled_tokens"] == 4


def test_tool_choice_and_output_formats_reach_the_engine(
    client: OpenAI, deployment: Deployment
) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for choice in ("auto", "none", "required", named):
        client.chat.completions.create(**ask("Hello", tools=[WEATHER], tool_choice=choice))
        assert deployment.last_request()["tool_choice"] == choice
    client.chat.completions.create(**ask("Hello", response_format=form))
    assert deployment.last_request()["response_format"] == form


@pytest.mark.parametrize(
    ("text", "tries"), [("Please fail with 429", 3), ("Please fail with 400", 1)]
)
def test_the_client_tries_again_only_where_that_can_help(
    client: OpenAI, deployment: Deployment, text: str, tries: int
) -> None:
    before = deployment.stats()["requests"]
    with pytest.raises(openai.APIStatusError):
        client.with_options(max_retries=2).chat.completions.create(**ask(text))
    assert deployment.stats()["requests"] == before + tries


def test_an_aborted_reply_is_an_error_and_is_not_trained(client: OpenAI, session: Session) -> None:
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(**ask("Please abort yourself"), stream=True))
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(**ask("Please abort yourself"))
    counts = session.close()["tokens"]
    assert counts["trained"] == 0
    assert counts["sampled"] == 10
    assert counts["untrained"] == {"engine_aborted": 10}
    assert len(session.calls()) == 2


def test_many_streams_at_once_keep_apart(session: Session) -> None:
    async def one(client: AsyncOpenAI, number: int) -> None:
        stream = await client.chat.completions.create(**ask(f"I am {number}"), stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert said("".join(parts)) == f"You said: I am {number}"

    async def all_of_them() -> None:
        async with AsyncOpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret) as client:
            await asyncio.gather(*(one(client, number) for number in range(32)))

    asyncio.run(all_of_them())
    trajectory = session.close()
    assert len(trajectory["traces"]) == 32
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_told_to_a_client_that_asks_for_them(
    client: OpenAI, session: Session, stream: bool
) -> None:
    request = ask("Count to five", logprobs=True)
    if stream:
        with client.chat.completions.stream(**request) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**request).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    told = [token.logprob for token in choice.logprobs.content]
    ids = [int(token.token.removeprefix("token_id:")) for token in choice.logprobs.content]
    [trace] = session.close()["traces"]
    assert told == pytest.approx(trace["response_logprobs"])
    assert ids == trace["response_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_in_their_older_form(
    client: OpenAI, session: Session, stream: bool
) -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "The weather in Paris, then Rome"}
    ]
    offered = {"model": "m", "functions": [WEATHER["function"]]}
    cities = []
    for _ in range(2):
        name, arguments = "", ""
        if stream:
            for chunk in client.chat.completions.create(messages=messages, stream=True, **offered):
                call = chunk.choices[0].delta.function_call
                if call is not None:
                    name += call.name or ""
                    arguments += call.arguments or ""
                assert not chunk.choices[0].delta.tool_calls
                finish = chunk.choices[0].finish_reason or ""
        else:
            [choice] = client.chat.completions.create(messages=messages, **offered).choices
            assert choice.message.function_call is not None
            assert not choice.message.tool_calls
            name = choice.message.function_call.name
            arguments = choice.message.function_call.arguments
            finish = choice.finish_reason
        assert (name, finish) == ("get_weather", "function_call")
        cities.append(json.loads(arguments)["city"])
        messages += [
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": name, "arguments": arguments},
            },
            {"role": "function", "name": name, "content": f"rain in {cities[-1]}"},
        ]
    assert cities == ["Paris", "Rome"]
    last = client.chat.completions.create(messages=messages, **offered).choices[0]
    assert said(last.message.content) == "The tool says: rain in Rome"
    assert len(session.calls()) == 3


@pytest.mark.parametrize(
    ("history", "traces", "restored"),
    [("sampled", 1, {"arguments": 1, "reasoning": 1}), ("as_sent", 2, {"arguments": 1})],
)
def test_reasoning_that_a_client_drops_is_in_the_next_prompt_unless_told_otherwise(
    deployment: Deployment, history: str, traces: int, restored: dict[str, int]
) -> None:
    session = deployment.open_session(history=history)
    client = OpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret, max_retries=0)
    request = ask("The weather in Paris, then Rome", tools=[WEATHER])
    message = client.chat.completions.create(**request).choices[0].message
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert message.tool_calls is not None
    [call] = message.tool_calls
    # Without its reasoning, and with the arguments in another spelling.
    arguments = json.dumps(json.loads(call.function.arguments), indent=1, sort_keys=True)
    kept = {
        "role": "assistant",
        "content": message.content,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": arguments},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    request["messages"] += [kept, result]  # type: ignore[operator]
    client.chat.completions.create(**request)
    trajectory = session.close()
    assert len(trajectory["traces"]) == traces
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]
    assert trajectory["translation"]["restored"] == restored


def test_what_is_not_served_says_what_to_do(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="chat/completions"):
        client.completions.create(model="m", prompt="text")
    with pytest.raises(openai.NotFoundError, match="another base URL"):
        client.embeddings.create(model="m", input="text")


def test_an_image_is_refused_or_carried_but_never_dropped(
    client: OpenAI, deployment: Deployment
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "What is this?"}, image]
    request = {"model": "m", "messages": [{"role": "user", "content": content}]}
    try:
        client.chat.completions.create(**request)
    except openai.BadRequestError:
        return
    assert "iVBORw0KGgo=" in json.dumps(deployment.last_request())
