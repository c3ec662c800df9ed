"""Google's own client against the gateway."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable

import httpx
import pytest
from google import genai
from google.genai import errors, types

from deployment import Deployment, Session

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "OBJECT",
        "properties": {"city": {"type": "STRING", "nullable": True}},
        "required": ["city"],
    },
}
TOOLS = [{"function_declarations": [WEATHER]}]
IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8Dwn4EIAAAk4QP+AAAAAElFTkSuQmCC"
)


def connect(session: Session, **options: object) -> genai.Client:
    http_options = {"base_url": session.proxy, **options}
    return genai.Client(api_key=session.secret, http_options=http_options)


@pytest.fixture
def client(session: Session) -> genai.Client:
    return connect(session)


def ask(text: str, **config: object) -> dict[str, object]:
    # Functions are called by the tests and not by the client.
    config.setdefault("automatic_function_calling", {"disable": True})
    return {"model": "m", "contents": text, "config": config}


def parts(responses: Iterable[types.GenerateContentResponse]) -> list[types.Part]:
    """All parts, the texts of one kind in a row as one."""
    found: list[types.Part] = []
    for response in responses:
        for part in response.candidates[0].content.parts:
            last = found[-1] if found else types.Part()
            texts = part.text is not None and last.text is not None
            if texts and bool(part.thought) == bool(last.thought):
                last.text += part.text
                last.thought_signature = last.thought_signature or part.thought_signature
            elif part.text != "" or part.thought_signature:
                found.append(part.model_copy())
    return found


def said(responses: Iterable[types.GenerateContentResponse]) -> str:
    """What is said, without the line ends that this model family puts behind its reasoning."""
    return "".join(p.text or "" for p in parts(responses) if not p.thought).strip("\n")


def generate(
    client: genai.Client, request: dict[str, object], stream: bool
) -> list[types.GenerateContentResponse]:
    if stream:
        return list(client.models.generate_content_stream(**request))
    return [client.models.generate_content(**request)]


def test_unary(client: genai.Client, session: Session) -> None:
    response = client.models.generate_content(**ask("Hello"))
    assert said([response]) == "You said: Hello"
    [candidate] = response.candidates
    assert candidate.content.role == "model"
    assert candidate.finish_reason == types.FinishReason.STOP
    assert response.model_version == "m"
    assert response.response_id
    [call] = session.calls()
    usage = response.usage_metadata
    assert usage.prompt_token_count == call["prompt_tokens"]
    sampled = usage.candidates_token_count + (usage.thoughts_token_count or 0)
    assert sampled == call["sampled_tokens"] > 0
    assert usage.total_token_count == call["prompt_tokens"] + call["sampled_tokens"]
    assert call["delivered"] is True
    assert call["dialect"] == "google"


@pytest.mark.parametrize("include_thoughts", [False, True])
def test_streaming_says_the_same_as_unary(client: genai.Client, include_thoughts: bool) -> None:
    for text in ("Hello", "Say something in many scripts", "Think first", "What's the weather?"):
        thinking = {"include_thoughts": include_thoughts}
        request = ask(text, tools=TOOLS, thinking_config=thinking)
        whole, streamed = generate(client, request, False), generate(client, request, True)
        for one, other in zip(parts(whole), parts(streamed), strict=True):
            assert bool(one.thought_signature) == bool(other.thought_signature)
            ignored = {"thought_signature": True, "function_call": {"id"}}
            assert one.model_dump(exclude=ignored) == other.model_dump(exclude=ignored)
        counted = whole[0].usage_metadata.candidates_token_count
        assert streamed[-1].usage_metadata.candidates_token_count == counted
        assert streamed[-1].candidates[0].finish_reason == types.FinishReason.STOP
        assert len({chunk.response_id for chunk in streamed}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_keeps_one_line_of_work(
    client: genai.Client, session: Session, stream: bool
) -> None:
    """As a client without thoughts keeps its history: chunk by chunk, with their signatures."""
    contents = [types.UserContent("The weather of Paris, then Rome, please.")]
    config = ask("", tools=TOOLS, system_instruction="You are an agent.")["config"]
    inputs = []
    while True:
        request = {"model": "m", "contents": contents, "config": config}
        responses = generate(client, request, stream)
        contents.extend(response.candidates[0].content for response in responses)
        assert not any(part.thought for part in parts(responses))
        calls = [part.function_call for part in parts(responses) if part.function_call]
        if not calls:
            break
        inputs.extend(call.args for call in calls)
        results = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"output": f"{call.args['city']}: 21 °C"}
                )
            )
            for call in calls
        ]
        contents.append(types.Content(role="user", parts=results))
    assert inputs == [{"city": "Paris", "days": [1, 2], "unit": 'é"\\'}, {"city": "Rome"}]
    assert said(responses) == "The tool says: Rome: 21 °C"
    # The client sends history back such that the calls are one sequence, token by token.
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert trace["calls"] == [call["call_id"] for call in session.calls()]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_own_chat_keeps_one_line_of_work(
    client: genai.Client, session: Session, stream: bool
) -> None:
    called = []

    def get_weather(city: str, days: list[int] | None = None, unit: str = "") -> str:
        """The weather in a city."""
        called.append((city, days, unit))
        return f"{city}: 21 °C"

    chat = client.chats.create(model="m", config={"tools": [get_weather]})
    text = "The weather of Paris, then Rome, please."
    answer = said(chat.send_message_stream(text) if stream else [chat.send_message(text)])
    assert called == [("Paris", [1, 2], 'é"\\'), ("Rome", None, "")]
    assert "Rome: 21 °C" in answer
    trajectory = session.close()
    [trace] = trajectory["traces"]
    assert len(trace["calls"]) == 3
    assert trajectory["tokens"]["trained"] == trajectory["tokens"]["sampled"]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_called_at_once_come_in_order_with_their_own_ids(
    client: genai.Client, stream: bool
) -> None:
    responses = generate(client, ask("The weather of Paris and Rome?", tools=TOOLS), stream)
    calls = [part.function_call for part in parts(responses) if part.function_call]
    assert [call.args["city"] for call in calls] == ["Paris", "Rome"]
    assert len({call.id for call in calls}) == 2


def test_a_malformed_call_ends_the_stream_as_the_api_says(
    client: genai.Client, session: Session
) -> None:
    """Engines give such a call as text where the reply is unary."""
    responses = generate(client, ask("Make a malformed call", tools=TOOLS), stream=True)
    [candidate] = responses[-1].candidates
    assert candidate.finish_reason == types.FinishReason.MALFORMED_FUNCTION_CALL
    assert not any(part.function_call for part in parts(responses))
    [call] = session.calls()
    assert call["delivered"] is True
    assert call["sampled_tokens"] == session.close()["tokens"]["trained"]


def test_results_without_ids_answer_their_calls(
    client: genai.Client, deployment: Deployment
) -> None:
    def call(city: str) -> types.Part:
        return types.Part.from_function_call(name="get_weather", args={"city": city})

    def result(text: str) -> types.Part:
        return types.Part.from_function_response(name="get_weather", response={"output": text})

    request = ask("", tools=TOOLS)
    request["contents"] = [
        types.UserContent("weather"),
        types.ModelContent([call("Paris"), call("Rome")]),
        types.Content(role="function", parts=[result("rain"), result("sun")]),
    ]
    client.models.generate_content(**request)
    sent = deployment.last_request()["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in sent[2:]] == ids
    assert [message["content"] for message in sent[2:]] == ["rain", "sun"]


def test_the_system_prompt_reaches_the_model(client: genai.Client) -> None:
    for system in ("Talk like a pirate.", [types.Part(text="Talk like a pirate.")]):
        response = client.models.generate_content(**ask("ahoy", system_instruction=system))
        assert said([response]) == "Arr, ahoy"


def test_thoughts_are_shown_only_when_asked_for(client: genai.Client) -> None:
    request = ask("Think first", thinking_config={"include_thoughts": True})
    response = client.models.generate_content(**request)
    thought, text = parts([response])
    assert thought.thought is True
    assert thought.text.strip() == "Six times seven."
    assert text.text.strip() == "42"
    silent = client.models.generate_content(**ask("Think first"))
    assert [bool(part.thought) for part in parts([silent])] == [False]
    for answer in (response, silent):
        request["contents"] = [
            types.UserContent("Think first"),
            answer.candidates[0].content,
            types.UserContent("Hello"),
        ]
        assert said([client.models.generate_content(**request)]) == "You said: Hello"


def test_reasoning_comes_back_by_its_signature(
    client: genai.Client, deployment: Deployment
) -> None:
    """Gemini CLI drops thoughts, and keeps the signatures of calls."""
    request = ask("What's the weather?", tools=TOOLS)
    content = client.models.generate_content(**request).candidates[0].content
    [call] = [part for part in content.parts if part.function_call]
    result = types.Part.from_function_response(name="get_weather", response={"output": "sun"})
    request["contents"] = [
        types.UserContent("What's the weather?"),
        types.ModelContent([call]),
        types.UserContent([result]),
    ]
    client.models.generate_content(**request)
    sent = deployment.last_request()["messages"]
    assert sent[1]["reasoning_content"].strip() == "I look at Paris first."
    # In the spelling in which it was sampled.
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == call.function_call.args


def test_images_reach_the_engine(client: genai.Client, deployment: Deployment) -> None:
    request = ask("")
    request["contents"] = ["Look", types.Part.from_bytes(data=IMAGE, mime_type="image/png")]
    client.models.generate_content(**request)
    [message] = deployment.last_request()["messages"]
    text, image = message["content"]
    assert text == {"type": "text", "text": "Look"}
    data = base64.b64encode(IMAGE).decode()
    assert image["image_url"]["url"] == f"data:image/png;base64,{data}"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_end_the_reply(client: genai.Client, stream: bool) -> None:
    responses = generate(client, ask("Count to five", stop_sequences=["three", "five"]), stream)
    assert said(responses) == "one two "
    assert responses[-1].candidates[0].finish_reason == types.FinishReason.STOP


def test_the_token_limit_ends_the_reply(client: genai.Client) -> None:
    response = client.models.generate_content(**ask("Count to five", max_output_tokens=4))
    assert response.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    usage = response.usage_metadata
    assert usage.candidates_token_count + (usage.thoughts_token_count or 0) == 4


def test_sampling_and_structured_output_reach_the_engine(
    client: genai.Client, deployment: Deployment
) -> None:
    schema = {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}}
    config = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "response_mime_type": "application/json",
        "response_schema": schema,
        "safety_settings": [
            {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"},
        ],
    }
    client.models.generate_content(**ask("Hello", **config))
    sent = deployment.last_request()
    for name in ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"):
        assert sent[name] == config[name]
    assert sent["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }


def test_tool_choice_reaches_the_engine(client: genai.Client, deployment: Deployment) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for calling, sent in (
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "ANY", "allowed_function_names": ["get_weather"]}, named),
    ):
        config = {"function_calling_config": calling}
        client.models.generate_content(**ask("Hello", tools=TOOLS, tool_config=config))
        assert deployment.last_request()["tool_choice"] == sent
    [tool] = deployment.last_request()["tools"]
    assert tool["function"]["parameters"]["properties"]["city"]["type"] == ["string", "null"]
    client.models.generate_content(
        **ask(
            "Hello",
            tools=[
                {
                    "function_declarations": [
                        {"name": "f", "parameters_json_schema": {"type": "object"}}
                    ]
                }
            ],
        )
    )
    [tool] = deployment.last_request()["tools"]
    assert tool["function"] == {"name": "f", "parameters": {"type": "object"}}


def test_tokens_are_counted_without_a_generation(client: genai.Client, session: Session) -> None:
    count = client.models.count_tokens(model="m", contents="Hello")
    assert session.activity()["calls"] == 0
    client.models.generate_content(**ask("Hello"))
    [call] = session.calls()
    assert count.total_tokens == call["prompt_tokens"]


def test_models_are_listed(client: genai.Client, deployment: Deployment) -> None:
    [model] = list(client.models.list())
    assert model.name == f"models/{deployment.model}"
    assert model.input_token_limit == deployment.context_window
    assert client.models.get(model=model.name) == model
    with pytest.raises(errors.ClientError) as caught:
        client.models.get(model="other")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"candidate_count": 2}, "candidateCount"),
        ({"response_logprobs": True}, "responseLogprobs"),
        ({"cached_content": "cachedContents/x"}, "cachedContent"),
        ({"tools": [{"google_search": {}}]}, "googleSearch"),
        ({"tools": [{"code_execution": {}}]}, "codeExecution"),
        ({"response_modalities": ["AUDIO"]}, "responseModalities"),
        ({"max_output_tokens": 0}, "maxOutputTokens"),
    ],
)
def test_what_cannot_be_served_is_a_400_that_names_it(
    client: genai.Client, session: Session, config: dict[str, object], named: str
) -> None:
    for stream in (False, True):
        with pytest.raises(errors.ClientError, match=named) as caught:
            generate(client, ask("Hello", **config), stream)
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert session.calls() == []


def test_unknown_routes_are_404(client: genai.Client, session: Session) -> None:
    with pytest.raises(errors.ClientError) as caught:
        client.models.embed_content(model="m", contents="x")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert session.calls() == []


def test_an_unknown_secret_is_a_401(session: Session) -> None:
    client = genai.Client(api_key="wrong", http_options={"base_url": session.proxy})
    for ask_for in (
        lambda: client.models.generate_content(**ask("Hello")),
        lambda: list(client.models.generate_content_stream(**ask("Hello"))),
        lambda: client.models.count_tokens(model="m", contents="x"),
        lambda: list(client.models.list()),
    ):
        with pytest.raises(errors.ClientError) as caught:
            ask_for()
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")


def test_the_secret_is_taken_from_path_header_or_query(session: Session) -> None:
    by_path = genai.Client(
        api_key="anything", http_options={"base_url": f"{session.proxy}/s/{session.secret}"}
    )
    version_1 = connect(session, api_version="v1")
    for client in (by_path, version_1):
        assert said([client.models.generate_content(**ask("Hello"))]) == "You said: Hello"
    body = {"contents": [{"parts": [{"text": "Hello"}]}]}
    url = f"{session.proxy}/v1beta/models/m:streamGenerateContent?key={session.secret}"
    # Without `alt=sse` a stream is a JSON array.
    answer = httpx.post(url, json=body)
    assert answer.headers["content-type"] == "application/json"
    chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in answer.json()]
    assert said(chunks) == "You said: Hello"
    assert len(chunks) > 2
    assert len(session.calls()) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Please fail with 429", {429, 503}),
        ("Please fail with 500", {500, 503}),
        ("Please fail with 503", {503}),
        ("Please fail with 400", {400}),
    ],
)
def test_the_engines_refusals_have_the_clients_classes(
    client: genai.Client, text: str, status: set[int], stream: bool
) -> None:
    with pytest.raises(errors.APIError) as caught:
        generate(client, ask(text), stream)
    assert caught.value.code in status
    assert isinstance(caught.value, errors.ClientError) == (caught.value.code < 500)


def test_context_overflow_is_said_in_googles_words(
    client: genai.Client, deployment: Deployment
) -> None:
    with pytest.raises(errors.ClientError, match=r"input token count .* exceeds the maximum"):
        client.models.generate_content(**ask("word " * deployment.context_window))


def test_a_stream_that_breaks_off_ends_in_an_error(client: genai.Client, session: Session) -> None:
    text = ""
    with pytest.raises(errors.APIError) as caught:
        for chunk in client.models.generate_content_stream(**ask("Please break off")):
            text += chunk.text or ""
    assert text
    assert caught.value.code in {500, 503}
    with pytest.raises(errors.APIError):
        client.models.generate_content(**ask("Please break off"))
    assert [call["finish_reason"] for call in session.calls()] == ["error", "error"]


def test_hanging_up_cancels_the_engine_and_is_recorded_as_undelivered(
    client: genai.Client, session: Session, deployment: Deployment
) -> None:
    before = deployment.stats()
    request = ask("Please talk without end", max_output_tokens=6000)
    stream = client.models.generate_content_stream(**request)
    for _ in itertools.islice(stream, 20):
        pass
    stream.close()
    client.close()
    deployment.until(lambda now: now["cancelled"] == before["cancelled"] + 1)
    session.until_idle(calls=1)
    [call] = session.calls()
    assert call["delivered"] is False
