"""What a list of messages can hold: the conversations that templates are rendered with."""

from typing import Any

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.\nNow, or later.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'Name <of> the city & "more"'},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            },
            "required": ["city"],
        },
    },
}
EVERY_TYPE: Json = {
    "type": "function",
    "function": {
        "name": "every_type",
        "description": "Takes all — 漢字 🎉 \u2028.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "whole": {"type": "integer", "minimum": -3, "maximum": 18446744073709551615},
                "number": {"type": "number", "default": 1e-7, "multipleOf": 0.5},
                "flag": {"type": "boolean", "default": False},
                "nothing": {"type": "null", "default": None},
                "list": {"type": "array", "items": {"type": "integer"}, "default": [1, 2]},
                "bare_list": {"type": "array"},
                "lists": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                "objects": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"a": {"type": "string"}}},
                },
                "object": {
                    "type": "object",
                    "properties": {"inner": {"type": "number", "description": "deep"}},
                    "required": ["inner"],
                    "additionalProperties": False,
                },
                "bare_object": {"type": "object"},
                "either": {"type": ["string", "null"], "description": "nullable"},
                "any": {"anyOf": [{"type": "string"}, {"type": "number"}], "nullable": True},
                "one": {"oneOf": [{"type": "string"}, {"type": "integer", "description": "n"}]},
                "choice": {"enum": ["a", 1, None, True, 2.5]},
                "items": {"type": "string", "description": "named as a method"},
                "untyped": {},
            },
            "required": ["text", "items"],
            "$defs": {"x": {"type": "string"}},
        },
        "strict": True,
    },
}
NO_PARAMETERS: Json = {"type": "function", "function": {"name": "now", "description": "The time."}}
EMPTY_PARAMETERS: Json = {
    "type": "function",
    "function": {
        "name": "list_all",
        "description": "Lists.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = [WEATHER, EVERY_TYPE, NO_PARAMETERS, EMPTY_PARAMETERS]

HARD_TEXT = (
    "Grüße 漢字 🎉👩\u200d👧 \u0000\u0001\u001c\u007f\u0085\u00a0\u2028\ufeff \t\r\n"
    " '\"\\ {{ x }} {% y %} <|im_end|> </think>"
)
HARD_ARGUMENTS: Json = {
    "floats": [
        0.1,
        1.0,
        -0.0,
        1e-7,
        1.5e-9,
        1e16,
        1e22,
        123456789012345.6,
        5e-324,
        1.7976931348623157e308,
    ],
    "whole": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1],
    "deep": {"a": {"b": [{"c": None}, [], {}, [[True, False]]]}, "": "empty key"},
    "items": {"keys": ["values"], "get": 1},
    "text": HARD_TEXT,
    "flag": True,
    "nothing": None,
    "small": 1e-7,
    "é": "ü",
}


def system(text: Any = "Be brief.") -> Json:
    return {"role": "system", "content": text}


def user(text: Any = "What is the weather in Oslo?") -> Json:
    return {"role": "user", "content": text}


def assistant(content: Any = None, *calls: Json, **more: Any) -> Json:
    message: Json = {"role": "assistant", "content": content, **more}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(name: str = "get_weather", arguments: Any = None, number: int = 0) -> Json:
    arguments = {"city": "Oslo"} if arguments is None else arguments
    function = {"name": name, "arguments": arguments}
    return {"id": f"functions.{name}:{number}", "type": "function", "function": function}


def short(number: int) -> Json:
    """A call with an id of nine letters and digits, as Mistral's templates ask for."""
    return {**call(arguments={"city": "Oslo", "unit": "c"}), "id": f"abcdefgh{number}"}


def result(text: Any = "4 °C", of: Json | None = None) -> Json:
    of = of or call()
    return {
        "role": "tool",
        "tool_call_id": of["id"],
        "name": of["function"]["name"],
        "content": text,
    }


def parts(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


def reasoned(content: Any, reasoning: str, *calls: Json) -> Json:
    return assistant(content, *calls, reasoning_content=reasoning)


ONE, TWO = call(number=0), call("now", {}, 1)
S_ONE, S_TWO = short(1), short(2)
AFTER_CALL = [user(), assistant("", ONE), result()]
AFTER_SHORT = [user(), assistant("", S_ONE), result(of=S_ONE)]

CONVERSATIONS: dict[str, list[Json]] = {
    "user": [user()],
    "system": [system(), user()],
    "developer": [{"role": "developer", "content": "Be kind."}, user()],
    "system and developer": [system(), {"role": "developer", "content": "Be kind."}, user()],
    "system alone": [system()],
    "system in the middle": [user(), assistant("a"), system("New rules."), user("b")],
    "system at the end": [user(), assistant("a"), user("b"), system("New rules.")],
    "turns": [system(), user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "ends with the assistant": [user("a"), assistant("b")],
    "two of the user": [user("a"), user("b")],
    "two of the assistant": [user("a"), assistant("b"), assistant("c"), user("d")],
    "begins with the assistant": [assistant("a"), user("b")],
    "blanks": [system("  \n s \n"), user("\n u \t"), assistant("\n\n a \n"), user(" v")],
    "empty content": [system(""), user(""), assistant(""), user("")],
    "null content": [user(), assistant(None), user("b")],
    "no content": [user(), {"role": "assistant"}, user("b")],
    "null of the user": [user(None)],
    "no messages": [],
    "hard text": [system(HARD_TEXT), user(HARD_TEXT), assistant(HARD_TEXT), user(HARD_TEXT)],
    "parts": [
        system(parts("s")),
        user(parts("a", "b")),
        assistant(parts("c", "d")),
        user(parts("e")),
    ],
    "parts of a result": [user(), assistant("", ONE), result(parts("4", "°C"))],
    "no parts": [user([]), assistant([]), user("b")],
    "unknown role": [user(), {"role": "critic", "content": "No."}, user("b")],
    "named": [{"role": "user", "name": "ann", "content": "a"}],
    "one call": [user(), assistant(None, ONE)],
    "call and text": [user(), assistant("I look.", ONE), result(), user("Thanks")],
    "result": AFTER_CALL,
    "result and answer": [*AFTER_CALL, assistant("4 °C."), user("And now?")],
    "calls one after another": [*AFTER_CALL, assistant("", TWO), result("noon", TWO)],
    "parallel calls": [user(), assistant("", ONE, TWO), result(of=ONE), result("noon", TWO)],
    "parallel calls, then text": [
        user(),
        assistant("x", ONE, TWO),
        result(of=ONE),
        result("noon", TWO),
        assistant("y"),
        user("z"),
    ],
    "a result, then words": [*AFTER_SHORT, user("And now?")],
    "results, then words": [
        system(),
        user(),
        assistant("I look.", S_ONE, S_TWO),
        result(of=S_ONE),
        result("5 °C", S_TWO),
        user("Go on."),
    ],
    "a result, then new rules": [*AFTER_SHORT, system("New rules.")],
    "new rules, then words": [system(), user(), assistant("a"), system("New rules."), user("b")],
    "results out of order": [user(), assistant("", ONE, TWO), result("noon", TWO), result(of=ONE)],
    "failing result": [user(), assistant("", ONE), {**result("Error: no city"), "is_error": True}],
    "empty result": [user(), assistant("", ONE), result("")],
    "result that is JSON": [user(), assistant("", ONE), result('{"t": 4.0, "é": [1, null]}')],
    "result without a call": [user(), result()],
    "result without a name": [user(), assistant("", ONE), {"role": "tool", "content": "4"}],
    "no arguments": [user(), assistant("", TWO), result("noon", TWO)],
    "hard arguments": [user(), assistant("", call("every_type", HARD_ARGUMENTS)), result()],
    "arguments as text": [
        user(),
        assistant("", call(arguments='{"city":"Oslo" , "x": 1e-7}')),
        result(),
    ],
    "arguments that are broken": [user(), assistant("", call(arguments='{"city":'))],
    "no list of calls": [user(), assistant("a", tool_calls=[]), user("b")],
    "calls are null": [user(), assistant("a", tool_calls=None), user("b")],
    "short ids": AFTER_SHORT,
    "short ids in parallel": [
        user(),
        assistant("", S_ONE, S_TWO),
        result(of=S_ONE),
        result("5 °C", S_TWO),
        assistant("a"),
        user("b"),
    ],
    "hard arguments with a short id": [
        user(),
        assistant("", {**S_ONE, "function": {"name": "every_type", "arguments": HARD_ARGUMENTS}}),
        result(HARD_TEXT, of=S_ONE),
    ],
    "reasoning at the end": [user("a"), reasoned("b", "hm")],
    "reasoning in the past": [user("a"), reasoned("b", "hm\n\nso"), user("c")],
    "reasoning in many turns": [
        user("a"),
        reasoned("b", "one"),
        user("c"),
        reasoned("d", "two"),
        user("e"),
        reasoned("f", "three"),
    ],
    "reasoning and a call": [user("a"), reasoned("", "hm", ONE), result()],
    "reasoning and calls": [
        user("a"),
        reasoned("x", "one", ONE, TWO),
        result(of=ONE),
        result("noon", TWO),
        reasoned("", "two", ONE),
        result(),
    ],
    "reasoning of a past call": [
        user("a"),
        reasoned("", "one", ONE),
        result(),
        reasoned("b", "two"),
        user("c"),
        reasoned("", "three", TWO),
        result("noon", TWO),
    ],
    "reasoning before words behind a result": [
        user("a"),
        reasoned("", "one", S_ONE),
        result(of=S_ONE),
        user("b"),
    ],
    "reasoning of a past call, with short ids": [
        user("a"),
        reasoned("", "one", S_ONE),
        result(of=S_ONE),
        reasoned("b", "two"),
        user("c"),
    ],
    "reasoning in the text": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")],
    "reasoning in the text, with a call": [
        user("a"),
        assistant("<think>hm</think>b", ONE),
        result(),
    ],
    "reasoning left open": [user("a"), assistant("<think>\nhm"), user("c")],
    "empty reasoning": [user("a"), reasoned("b", ""), user("c"), reasoned("d", "\n")],
    "reasoning by its other names": [
        user("a"),
        assistant("b", reasoning="one", thinking="two"),
        user("c"),
        assistant("d", thinking="three"),
    ],
}

# Variables that requests give by `chat_template_kwargs`.
OPTIONS: list[Json] = [
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
    {"reasoning_effort": "high"},
    {"clear_thinking": False, "preserve_thinking": True, "keep_reasoning": True},
    {
        "builtin_tools": ["browser", "python"],
        "model_identity": "You are Polar.",
        "tools_in_user_message": False,
    },
    {"custom_tools": [], "documents": [{"title": "t", "text": "x"}], "date_string": "01 Jan 2026"},
]
# The conversations that are tried with every option.
WITH_OPTIONS = [
    "system",
    "turns",
    "result and answer",
    "short ids in parallel",
    "reasoning in the past",
    "reasoning of a past call",
]


def cases() -> list[Json]:
    """Every conversation with and without tools, some with every option."""
    found: list[Json] = []

    def add(name: str, tools: list[Json] | None, options: Json, *, prompt: bool) -> None:
        found.append(
            {
                "name": name,
                "messages": CONVERSATIONS[name],
                "tools": tools,
                "options": options,
                "add_generation_prompt": prompt,
            }
        )

    for name in CONVERSATIONS:
        for tools in (None, TOOLS):
            for prompt in (True, False):
                add(name, tools, {}, prompt=prompt)
    for name in WITH_OPTIONS:
        for tools in (None, [WEATHER]):
            for options in OPTIONS[1:]:
                for prompt in (True, False):
                    add(name, tools, options, prompt=prompt)
    for tool in TOOLS:
        add("user", [tool], {}, prompt=True)
    add("user", [], {}, prompt=True)
    return found
