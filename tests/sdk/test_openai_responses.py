"""OpenAI's own client against the gateway, over Responses."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from deployment import Deployment, Session

# Of values that the client's types do not expect, and of what will not work for long.
pytestmark = pytest.mark.filterwarnings("error:Pydantic", "error::DeprecationWarning")

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}


@pytest.fixture
def client(session: Session) -> OpenAI:
    return OpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret, max_retries=0)


def said(reply: Response) -> str:
    """Its text, without the line ends that this model family puts behind its reasoning."""
    return reply.output_text.strip("\n")


def calls(reply: Response) -> list[Any]:
    return [item for item in reply.output if item.type.endswith("_call")]


def ask(client: OpenAI, stream: bool, **request: Any) -> Response:
    """A reply, whole or put together from its events."""
    if not stream:
        return client.responses.create(model="m", **request)
    with client.responses.stream(model="m", **request) as events:
        events.until_done()
        return events.get_final_response()


def test_unary(client: OpenAI, session: Session) -> None:
    reply = client.responses.create(model="m", input="Hello", metadata={"run": "7"})
    assert said(reply) == "You said: Hello"
    assert (reply.object, reply.status, reply.error) == ("response", "completed", None)
    assert reply.metadata == {"run": "7"}
    assert reply.id.startswith("resp_")
    assert reply.usage is not None
    reply.model_dump()
    [call] = session.calls()
    assert reply.usage.input_tokens == call["prompt_tokens"] > 0
    assert reply.usage.output_tokens == call["sampled_tokens"] > 0
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert call["delivered"] is True


def test_streaming_says_the_same_as_unary(client: OpenAI) -> None:
    for text in ("Hello", "Say something in many scripts", "Think first"):
        whole = client.responses.create(model="m", input=text)
        streamed = ask(client, True, input=text)
        assert said(streamed) == said(whole)
        assert streamed.usage is not None
        assert whole.usage is not None
        assert streamed.usage.output_tokens == whole.usage.output_tokens

        def kept(reply: Response) -> dict[str, Any]:
            kept: dict[str, Any] = reply.model_dump(exclude={"id", "created_at", "usage"})
            for item in kept["output"]:
                del item["id"]
                for part in item.get("content") or []:
                    part.pop("parsed", None)
            return kept

        assert kept(streamed) == kept(whole)


def test_the_events_come_in_the_order_of_the_api(client: OpenAI) -> None:
    events = list(
        client.responses.create(
            model="m", input="What's the weather?", tools=[WEATHER], stream=True
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.in_progress"]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    for event in events:
        event.model_dump()
    items: list[str] = []
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(items)
            items.append(event.item.type)
        elif hasattr(event, "output_index"):
            assert event.output_index == len(items) - 1
    assert items == ["reasoning", "message", "function_call"]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text.strip() == "Let me look."
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    [done] = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["input", "previous_response_id", "item_reference"])
def test_a_tool_loop_keeps_one_line_of_work(
    client: OpenAI, session: Session, by: str, stream: bool
) -> None:
    history: list[Any] = [
        {"role": "developer", "content": "You are a helpful agent."},
        {"role": "user", "content": "The weather of Paris, then Rome, please."},
    ]
    request: dict[str, Any] = {"input": history, "tools": [WEATHER], "store": by != "input"}
    cities = []
    while True:
        reply = ask(client, stream, **request)
        reply.model_dump()
        if not calls(reply):
            break
        results = []
        for call in calls(reply):
            city = json.loads(call.arguments)["city"]
            cities.append(city)
            output = f"{city}: 21 °C"
            results.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )
        if by == "previous_response_id":
            request |= {"previous_response_id": reply.id, "input": results}
        elif by == "item_reference":
            history += [{"type": "item_reference", "id": item.id} for item in reply.output]
            history += results
        else:
            history += [item.model_dump(exclude={"parsed_arguments"}) for item in reply.output]
            history += results
    assert cities == ["Paris", "Rome"]
    assert said(reply) == "The tool says: Rome: 21 °C"
    # However the history came back, the calls are one sequence, token by token.
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert trace["calls"] == [call["call_id"] for call in session.calls()]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_called_at_once_come_in_order_with_their_own_ids(
    client: OpenAI, stream: bool
) -> None:
    reply = ask(client, stream, input="The weather of Paris and Rome?", tools=[WEATHER])
    assert [json.loads(call.arguments)["city"] for call in calls(reply)] == ["Paris", "Rome"]
    assert len({call.call_id for call in calls(reply)}) == 2
    assert len({call.id for call in calls(reply)}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_freeform_tool_gets_text_and_its_call_keeps_one_line_of_work(
    client: OpenAI, session: Session, deployment: Deployment, stream: bool
) -> None:
    question = {"role": "user", "content": "Patch the file"}
    request: dict[str, Any] = {"tools": [PATCH], "store": False}
    reply = ask(client, stream, input=[question], **request)
    [call] = calls(reply)
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", '*** Begin Patch\n+"ü"\n')
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done"}
    told = [item.model_dump(exclude={"parsed_arguments"}) for item in reply.output]
    reply = ask(client, stream, input=[question, *told, result], **request)
    assert said(reply) == "The tool says: Done"
    [tool] = deployment.last_request()["tools"]
    assert PATCH["format"]["definition"] in tool["function"]["description"]
    [trace] = session.close()["traces"]
    assert len(trace["calls"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_shell_and_namespaces_are_told_in_the_clients_terms(client: OpenAI, stream: bool) -> None:
    reply = ask(client, stream, input="List the files", tools=[{"type": "local_shell"}])
    [call] = calls(reply)
    assert call.type == "local_shell_call"
    assert (call.action.command, call.action.timeout_ms) == (["ls", "-l"], 500)
    find = {"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False}
    crm = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [find]}
    [call] = calls(ask(client, stream, input="Find the customer", tools=[crm]))
    assert (call.type, call.name, call.namespace) == ("function_call", "find", "crm")


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_an_item_of_its_own(client: OpenAI, stream: bool) -> None:
    reply = ask(client, stream, input="Think first", store=False)
    reasoning, message = reply.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert reasoning.content[0].text.strip() == "Six times seven."
    assert reasoning.encrypted_content
    assert said(reply) == "42"
    summed = ask(client, stream, input="Think first", reasoning={"summary": "auto"}).output[0]
    assert summed.type == "reasoning"
    assert summed.summary[0].text.strip() == "Six times seven."


@pytest.mark.parametrize("stream", [False, True])
def test_instructions_go_for_one_request(client: OpenAI, stream: bool) -> None:
    first = ask(client, stream, input="ahoy", instructions="Talk like a pirate.")
    assert said(first) == "Arr, ahoy"
    next_ = ask(client, stream, input="Hello", previous_response_id=first.id)
    assert said(next_) == "You said: Hello"
    assert next_.previous_response_id == first.id


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_is_asked_for_and_parsed(
    client: OpenAI, deployment: Deployment, stream: bool
) -> None:
    class Answer(pydantic.BaseModel):
        answer: int

    if stream:
        with client.responses.stream(
            model="m", input="Answer in JSON", text_format=Answer
        ) as events:
            reply = events.get_final_response()
    else:
        reply = client.responses.parse(model="m", input="Answer in JSON", text_format=Answer)
    assert reply.output_parsed == Answer(answer=42)
    form = deployment.last_request()["response_format"]
    assert form["json_schema"]["schema"]["properties"]["answer"]["type"] == "integer"


def test_choices_and_sampling_reach_the_engine(client: OpenAI, deployment: Deployment) -> None:
    named = {"type": "function", "name": "get_weather"}
    for choice, sent in (
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (named, {"type": "function", "function": {"name": "get_weather"}}),
    ):
        client.responses.create(model="m", input="Hello", tools=[WEATHER], tool_choice=choice)
        assert deployment.last_request()["tool_choice"] == sent
    client.responses.create(
        model="m",
        input="Hello",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=77,
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
    )
    sent = deployment.last_request()
    assert (sent["temperature"], sent["top_p"], sent["parallel_tool_calls"]) == (0.5, 0.25, False)
    assert sent["reasoning_effort"] == "low"
    assert 77 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))


@pytest.mark.parametrize("stream", [False, True])
def test_the_token_limit_makes_a_reply_incomplete(client: OpenAI, stream: bool) -> None:
    request = {"model": "m", "input": "Count to five", "max_output_tokens": 4}
    if stream:
        last = list(client.responses.create(**request, stream=True))[-1]
        assert last.type == "response.incomplete"
        reply = last.response
    else:
        reply = client.responses.create(**request)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.usage is not None
    assert reply.usage.output_tokens == 4


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m"},
        {"input": "x"},
        {"model": "m", "input": []},
        {"model": "m", "input": 3},
        {"model": "m", "input": [{"role": "wizard", "content": "x"}]},
        {"model": "m", "input": [{"type": "computer_call", "call_id": "c"}]},
        {"model": "m", "input": "x", "tools": [{"type": "code_interpreter"}]},
        {"model": "m", "input": "x", "background": True},
        {"model": "m", "input": "x", "temperature": "hot"},
    ],
)
def test_bad_input_is_a_400_with_a_message(
    client: OpenAI, session: Session, body: dict[str, object]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/responses", body=body, cast_to=object)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param
    assert session.calls() == []


def test_an_unknown_earlier_reply_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="Hello", previous_response_id="resp_0")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def test_tokens_are_counted_without_a_generation(client: OpenAI, session: Session) -> None:
    first = client.responses.create(model="m", input="Hello")
    later = {"model": "m", "input": "Hello", "previous_response_id": first.id}
    count = client.responses.input_tokens.count(**later)
    assert session.activity()["calls"] == 1
    reply = client.responses.create(**later)
    assert reply.usage is not None
    assert count.input_tokens == reply.usage.input_tokens


def test_told_replies_are_not_told_again(client: OpenAI) -> None:
    reply = client.responses.create(model="m", input="Hello")
    for ask_for in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            ask_for(reply.id)


def test_a_websocket_is_refused_with_426(session: Session) -> None:
    request = urllib.request.Request(
        f"{session.proxy}/v1/responses",
        headers={
            "authorization": f"Bearer {session.secret}",
            "connection": "Upgrade",
            "upgrade": "websocket",
            "openai-beta": "responses_websockets=2026-02-06",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 426
    caught.value.close()


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
        client.responses.create(model="m", input=text, stream=stream)
    if kind is openai.RateLimitError:
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_context_overflow_is_said_in_openais_words(client: OpenAI, deployment: Deployment) -> None:
    text = "word " * deployment.context_window
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input=text)
    assert caught.value.code == "context_length_exceeded"
    # Within a stream, where alone Codex takes it for what it is.
    last = list(client.responses.create(model="m", input=text, stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "context_length_exceeded"
    assert "exceeds the context window" in last.response.error.message


@pytest.mark.parametrize("text", ["Please break off", "Please abort yourself"])
def test_a_reply_that_does_not_end_well_fails(client: OpenAI, session: Session, text: str) -> None:
    events = list(client.responses.create(model="m", input=text, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert any(event.type == "response.output_text.delta" for event in events)
    with pytest.raises(openai.APIStatusError):
        client.responses.create(model="m", input=text)
    assert session.close()["tokens"]["trained"] == 0


def test_an_image_is_refused_or_carried_but_never_dropped(
    client: OpenAI, deployment: Deployment
) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    content = [{"type": "input_text", "text": "What is this?"}, image]
    try:
        client.responses.create(model="m", input=[{"role": "user", "content": content}])
    except openai.BadRequestError:
        return
    assert "iVBORw0KGgo=" in json.dumps(deployment.last_request())


def test_many_streams_at_once_keep_apart(session: Session) -> None:
    async def one(client: AsyncOpenAI, number: int) -> None:
        async with client.responses.stream(model="m", input=f"I am {number}") as events:
            assert said(await events.get_final_response()) == f"You said: I am {number}"

    async def all_of_them() -> None:
        async with AsyncOpenAI(base_url=f"{session.proxy}/v1", api_key=session.secret) as client:
            await asyncio.gather(*(one(client, number) for number in range(32)))

    asyncio.run(all_of_them())
    trajectory = session.close()
    assert len(trajectory["traces"]) == 32
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]
