"""Anthropic's own client against the gateway."""

from __future__ import annotations

import asyncio
import itertools
import json

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from deployment import Deployment, Session

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(session: Session) -> Anthropic:
    return Anthropic(base_url=session.proxy, api_key=session.secret, max_retries=0)


def ask(text: str, **more: object) -> dict[str, object]:
    return {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def texts(message: anthropic.types.Message) -> list[str]:
    """Its texts, without the line ends that this model family puts behind its reasoning."""
    return [block.text.strip("\n") for block in message.content if block.type == "text"]


def test_unary(client: Anthropic, session: Session) -> None:
    message = client.messages.create(**ask("Hello"))
    assert texts(message) == ["You said: Hello"]
    assert (message.role, message.type) == ("assistant", "message")
    assert message.stop_reason == "end_turn"
    assert message.stop_sequence is None
    [call] = session.calls()
    assert (
        message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        == (call["prompt_tokens"])
    )
    assert message.usage.output_tokens == call["sampled_tokens"] > 0
    assert call["delivered"] is True


def test_streaming_says_the_same_as_unary(client: Anthropic) -> None:
    for text in ("Hello", "Say something in many scripts", "Think first"):
        whole = client.messages.create(**ask(text))
        with client.messages.stream(**ask(text)) as stream:
            streamed = stream.get_final_message()
        ignored = {"id", "usage"}
        kept = streamed.model_dump(exclude=ignored, exclude_none=True)
        expected = whole.model_dump(exclude=ignored, exclude_none=True)
        for block in [*kept["content"], *expected["content"]]:
            block.pop("signature", None)  # Belongs to the one reply.
        assert kept == expected
        assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_the_events_come_in_the_order_of_the_api(client: Anthropic) -> None:
    events = list(
        client.messages.create(**ask("What's the weather?", tools=[WEATHER]), stream=True)
    )
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    open_block = None
    for event in events:
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
        elif event.type == "content_block_delta":
            assert event.index == open_block
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
    blocks = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert blocks == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_keeps_one_line_of_work(
    client: Anthropic, session: Session, stream: bool
) -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "The weather of Paris, then Rome, please."}
    ]
    request = {
        "model": "m",
        "max_tokens": 1000,
        "tools": [WEATHER],
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}
        ],
    }
    inputs = []
    while True:
        if stream:
            with client.messages.stream(messages=messages, **request) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **request)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        assert message.stop_reason == "tool_use"
        inputs.extend(call.input for call in calls)
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": [{"type": "text", "text": f"{call.input['city']}: 21 °C"}],
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    assert inputs == [{"city": "Paris", "days": [1, 2], "unit": 'é"\\'}, {"city": "Rome"}]
    assert message.stop_reason == "end_turn"
    assert texts(message) == ["The tool says: Rome: 21 °C"]
    # The client sends history back such that the calls are one sequence, token by token.
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert trace["calls"] == [call["call_id"] for call in session.calls()]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


def test_the_clients_own_tool_loop_keeps_one_line_of_work(
    client: Anthropic, session: Session
) -> None:
    """It asks the server to keep the conversation, and sends the whole where that is refused."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str, days: list[int] | None = None, unit: str = "") -> str:
        """The weather in a city."""
        asked.append((city, days, unit))
        return f"{city}: 21 °C"

    runner = client.beta.messages.tool_runner(
        **ask("The weather of Paris, then Rome, please.", tools=[get_weather])
    )
    message = runner.until_done()
    assert asked == [("Paris", [1, 2], 'é"\\'), ("Rome", None, "")]
    assert [b.text.strip() for b in message.content if b.type == "text"] == [
        "The tool says: Rome: 21 °C"
    ]
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


def test_tools_called_at_once_come_in_order_with_their_own_ids(client: Anthropic) -> None:
    request = ask("The weather of Paris and Rome?", tools=[WEATHER])
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        calls = [block for block in message.content if block.type == "tool_use"]
        assert [call.input["city"] for call in calls] == ["Paris", "Rome"]
        assert len({call.id for call in calls}) == 2


def test_the_system_prompt_reaches_the_model(client: Anthropic) -> None:
    for system in ("Talk like a pirate.", [{"type": "text", "text": "Talk like a pirate."}]):
        message = client.messages.create(**ask("ahoy", system=system))
        assert texts(message) == ["Arr, ahoy"]


def test_thinking_is_a_block_of_its_own_and_can_be_sent_back(client: Anthropic) -> None:
    request = ask("Think first", thinking={"type": "enabled", "budget_tokens": 1024})
    request["max_tokens"] = 2000
    with client.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    thinking, text = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking.strip() == "Six times seven."
    assert isinstance(thinking.signature, str)
    assert text.type == "text"
    assert texts(message) == ["42"]
    assert "thinking" in kinds
    request["messages"] = [
        {"role": "user", "content": "Think first"},
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": "Hello"},
    ]
    assert texts(client.messages.create(**request)) == ["You said: Hello"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_end_the_reply_and_are_named(client: Anthropic, stream: bool) -> None:
    request = ask("Count to five", stop_sequences=["three", "five"])
    if stream:
        with client.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**request)
    assert texts(message) == ["one two "]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "three")


def test_the_token_limit_ends_the_reply(client: Anthropic) -> None:
    message = client.messages.create(**{**ask("Count to five"), "max_tokens": 4})
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 4


def test_tokens_are_counted_without_a_generation(client: Anthropic, session: Session) -> None:
    request = ask("Hello")
    del request["max_tokens"]
    count = client.messages.count_tokens(**request)
    assert session.activity()["calls"] == 0
    message = client.messages.create(**ask("Hello"))
    [call] = session.calls()
    assert count.input_tokens == call["prompt_tokens"]
    assert message.usage.input_tokens <= count.input_tokens


def test_models_are_listed(client: Anthropic, deployment: Deployment) -> None:
    [model] = list(client.models.list())
    assert model.id == deployment.model
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_unknown_routes_are_404(client: Anthropic, session: Session) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    assert caught.value.type == "not_found_error"
    assert session.calls() == []


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "max_tokens": 10, "messages": []},
        {"model": "m", "max_tokens": 10},
        {"model": "m", "messages": [{"role": "user", "content": "x"}]},
        {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": 3}]},
        {"model": "m", "max_tokens": 10, "messages": [{"role": "wizard", "content": "x"}]},
        {"model": "m", "max_tokens": -1, "messages": [{"role": "user", "content": "x"}]},
    ],
)
def test_bad_input_is_a_400_with_a_message(client: Anthropic, body: dict[str, object]) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post("/v1/messages", body=body, cast_to=object)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_secret_is_a_401(session: Session) -> None:
    client = Anthropic(base_url=session.proxy, api_key="wrong", max_retries=0)
    for ask_for in (
        lambda: client.messages.create(**ask("Hello")),
        lambda: client.messages.create(**ask("Hello"), stream=True),
        lambda: client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "x"}]
        ),
        lambda: client.models.list(),
    ):
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask_for()
        assert caught.value.type == "authentication_error"


def test_the_secret_is_taken_from_path_key_token_or_header(session: Session) -> None:
    by_path = Anthropic(base_url=f"{session.proxy}/s/{session.secret}", api_key="anything")
    by_token = Anthropic(base_url=session.proxy, auth_token=session.secret, api_key=None)
    by_header = Anthropic(
        base_url=session.proxy,
        api_key="anything",
        default_headers={"polar-session": session.secret},
    )
    for client in (by_path, by_token, by_header):
        assert texts(client.messages.create(**ask("Hello"))) == ["You said: Hello"]
    assert len(session.calls()) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Please fail with 429", {429, 529}),
        ("Please fail with 500", {500, 503}),
        ("Please fail with 503", {503, 529}),
        ("Please fail with 400", {400}),
    ],
)
def test_the_engines_refusals_have_the_clients_classes(
    client: Anthropic, text: str, status: set[int], stream: bool
) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**ask(text), stream=stream)
    assert caught.value.status_code in status


def test_context_overflow_is_said_in_anthropics_words(
    client: Anthropic, deployment: Deployment
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**ask("word " * deployment.context_window))


def test_a_stream_that_breaks_off_ends_in_an_error(client: Anthropic, session: Session) -> None:
    text = ""
    with (
        pytest.raises(anthropic.APIError),
        client.messages.stream(**ask("Please break off")) as stream,
    ):
        for part in stream.text_stream:
            text += part
    assert text
    with pytest.raises(anthropic.APIStatusError):
        client.messages.create(**ask("Please break off"))
    assert [call["finish_reason"] for call in session.calls()] == ["error", "error"]


def test_hanging_up_cancels_the_engine_and_is_recorded_as_undelivered(
    client: Anthropic, session: Session, deployment: Deployment
) -> None:
    before = deployment.stats()
    with client.messages.stream(**{**ask("Please talk without end"), "max_tokens": 6000}) as stream:
        for _ in itertools.islice(stream, 20):
            pass
    deployment.until(lambda now: now["cancelled"] == before["cancelled"] + 1)
    session.until_idle(calls=1)
    [call] = session.calls()
    assert call["delivered"] is False
    counts = session.close()["tokens"]
    assert counts["trained"] == 0
    assert counts["untrained"] == {"undelivered": call["sampled_tokens"]}


def test_tool_choice_reaches_the_engine(client: Anthropic, deployment: Deployment) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, sent in (
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "get_weather"}, named),
    ):
        client.messages.create(**ask("Hello", tools=[WEATHER], tool_choice=choice))
        assert deployment.last_request()["tool_choice"] == sent
    tools = deployment.last_request()["tools"]
    assert tools[0]["function"]["parameters"] == WEATHER["input_schema"]


def test_the_beta_route_is_the_same_route(client: Anthropic) -> None:
    message = client.beta.messages.create(**ask("Hello"), betas=["context-1m-2025-08-07"])
    assert [b.text.strip() for b in message.content if b.type == "text"] == ["You said: Hello"]


def test_a_prefilled_reply_is_refused_or_continued_but_never_dropped(
    client: Anthropic, deployment: Deployment
) -> None:
    request = ask("Count to five")
    request["messages"] = [
        {"role": "user", "content": "Count to five"},
        {"role": "assistant", "content": "one two"},
    ]
    try:
        client.messages.create(**request)
    except anthropic.BadRequestError:
        return
    assert deployment.last_request()["messages"][-1]["content"] == "one two"


def test_a_failed_tool_is_told_to_the_model(client: Anthropic, deployment: Deployment) -> None:
    request = ask("x", tools=[WEATHER])
    request["messages"] = [
        {"role": "user", "content": "weather"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "X"}}
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": "no such city",
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    client.messages.create(**request)
    sent = deployment.last_request()["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert "no such city" in json.dumps(sent[2])
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


def test_many_streams_at_once_keep_apart(session: Session) -> None:
    async def one(client: AsyncAnthropic, number: int) -> None:
        async with client.messages.stream(**ask(f"I am {number}")) as stream:
            message = await stream.get_final_message()
        assert texts(message) == [f"You said: I am {number}"]

    async def all_of_them() -> None:
        async with AsyncAnthropic(base_url=session.proxy, api_key=session.secret) as client:
            await asyncio.gather(*(one(client, number) for number in range(32)))

    asyncio.run(all_of_them())
    trajectory = session.close()
    assert len(trajectory["traces"]) == 32
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]
