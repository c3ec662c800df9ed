//! Families that write arguments as JSON: the arguments come back byte for byte.
//!
//! Formats: Hermes by NousResearch/Hermes-Function-Calling and the templates of Hermes-3, Qwen2.5 and
//! Qwen3; DeepSeek by the model cards and templates of DeepSeek-V3-0324, R1-0528 and V3.1; Kimi by
//! `docs/tool_call_guidance.md` of moonshotai/Kimi-K2-Instruct; harmony by openai/harmony's `docs/format.md`;
//! Llama by Meta's "Model cards and prompt formats" of Llama 3.1; Mistral by mistral-common's
//! tokenizers v3, v11 and v13.

use crate::folding::{
    Fixture, call, call_with_id, family, malformed, nameless, reasoning, text as says,
};
use polar_tokens::parse::{Fault, ReasoningFormat as R, ReplyStart, ToolFormat as T};

pub(crate) fn fixtures() -> Vec<Fixture> {
    let mut all = hermes();
    all.extend(deepseek());
    all.extend(kimi());
    all.extend(harmony());
    all.extend(llama());
    all.extend(mistral());
    all
}

fn hermes() -> Vec<Fixture> {
    let hermes = family(T::Hermes, R::None);
    let qwen3 = family(T::Hermes, R::Qwen3);
    let make = |name, family, start, text, parts| Fixture { name, family, start, text, parts };
    let fresh = ReplyStart::Fresh;
    vec![
        make(
            "hermes: the model's spelling is kept",
            hermes,
            fresh,
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Oslo\" ,\n \"x\": 1.0, \"u\": \"ü\\u00e9\\/\"}}\n</tool_call>",
            vec![call("get_weather", "{\"city\":\"Oslo\" ,\n \"x\": 1.0, \"u\": \"ü\\u00e9\\/\"}")],
        ),
        make(
            "hermes: arguments before the name, text around, parallel",
            hermes,
            fresh,
            "Let me see.\n\n<tool_call>{\"arguments\": {\"a\": {\"b\": [1, {\"c\": \"}\"}]}}, \"name\": \"now\"}</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>\nAnd then.",
            vec![
                says("Let me see.\n\n"),
                call("now", "{\"a\": {\"b\": [1, {\"c\": \"}\"}]}}"),
                call("get_weather", "{}"),
                says("\nAnd then."),
            ],
        ),
        make(
            "hermes: a mark in a string is a part of it",
            hermes,
            fresh,
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"q\": \"is </tool_call> or <tool_call> \\\" it?\"}}\n</tool_call>",
            vec![call("now", "{\"q\": \"is </tool_call> or <tool_call> \\\" it?\"}")],
        ),
        make(
            "qwen3: a call in reasoning is none",
            qwen3,
            ReplyStart::Usual,
            "<think>\nMaybe <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>?\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            vec![
                reasoning(
                    "\nMaybe <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>?\n",
                ),
                call("now", "{}"),
            ],
        ),
        make(
            "qwen3 thinking: the prompt opened the reasoning",
            qwen3,
            ReplyStart::InReasoning,
            "Hm, 漢字 <thi.\n</think>\n\nFine: </think> ends.",
            vec![reasoning("Hm, 漢字 <thi.\n"), says("\n\nFine: </think> ends.")],
        ),
        make(
            "qwen3 without thinking",
            qwen3,
            fresh,
            "Fine, and <think> is a word.",
            vec![says("Fine, and <think> is a word.")],
        ),
        make(
            "qwen3: cut inside of the reasoning",
            qwen3,
            ReplyStart::InReasoning,
            "Hm, but </thi",
            vec![reasoning("Hm, but </thi")],
        ),
        make(
            "hermes: cut inside of the arguments",
            hermes,
            fresh,
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os",
            vec![
                call("get_weather", "{\"city\": \"Os"),
                malformed(
                    0,
                    "get_weather",
                    Fault::Unfinished,
                    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os",
                ),
            ],
        ),
        make(
            "hermes: cut before the name",
            hermes,
            fresh,
            "Well. <tool_call>\n{\"na",
            vec![
                says("Well. <tool_call>\n{\"na"),
                nameless(Fault::Unfinished, "<tool_call>\n{\"na"),
            ],
        ),
        make(
            "hermes: no JSON",
            hermes,
            fresh,
            "<tool_call>\n{'name': 'now'}\n</tool_call>ok<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": }}</tool_call>",
            vec![
                says("<tool_call>\n{'name': 'now'}\n</tool_call>"),
                nameless(Fault::Unexpected, "<tool_call>\n{'name': 'now'}\n</tool_call>"),
                says("ok"),
                call("now", "{\"a\": }"),
                malformed(
                    0,
                    "now",
                    Fault::NotJson,
                    "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": }}</tool_call>",
                ),
            ],
        ),
        make(
            "hermes: an open string with a line break ends at the mark",
            hermes,
            fresh,
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"x}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            vec![
                call("now", "{\"a\": \"x}}\n"),
                malformed(
                    0,
                    "now",
                    Fault::NotJson,
                    "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"x}}\n</tool_call>",
                ),
                call("now", "{}"),
            ],
        ),
        make(
            "hermes: an end mark is missing",
            hermes,
            fresh,
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"now\", \"arguments\": \"{}\"}\n</tool_call>",
            vec![
                call("now", "{}"),
                malformed(
                    0,
                    "now",
                    Fault::Unclosed,
                    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n",
                ),
                call("now", "\"{}\""),
                malformed(
                    1,
                    "now",
                    Fault::NotAnObject,
                    "<tool_call>\n{\"name\": \"now\", \"arguments\": \"{}\"}\n</tool_call>",
                ),
            ],
        ),
        make(
            "hermes: no arguments",
            hermes,
            fresh,
            "<tool_call>{\"name\": \"now\"}</tool_call>",
            vec![
                call("now", ""),
                malformed(
                    0,
                    "now",
                    Fault::NoArguments,
                    "<tool_call>{\"name\": \"now\"}</tool_call>",
                ),
            ],
        ),
    ]
}

fn deepseek() -> Vec<Fixture> {
    let make = |name, family, start, text, parts| Fixture { name, family, start, text, parts };
    let v3 = family(T::DeepseekV3, R::DeepseekR1);
    let v31 = family(T::DeepseekV31, R::DeepseekV3);
    vec![
        make(
            "deepseek r1: reasoning, text, parallel calls",
            v3,
            ReplyStart::InReasoning,
            "Two.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"東京\",  \"q\": \"a`b\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![
                reasoning("Two."),
                says("I look."),
                call("get_weather", "{\"city\": \"東京\",  \"q\": \"a`b\"}"),
                call("now", "{}"),
            ],
        ),
        make(
            "deepseek v3.1: parallel calls",
            v31,
            ReplyStart::Fresh,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\":\"Oslo\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{ }<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![call("get_weather", "{\"city\":\"Oslo\"}"), call("now", "{ }")],
        ),
        make(
            "deepseek v3.1: cut, after a call that has no end",
            v31,
            ReplyStart::Fresh,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"ci",
            vec![
                call("now", "{}"),
                malformed(0, "now", Fault::Unclosed, "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"),
                call("get_weather", "{\"ci"),
                malformed(
                    1,
                    "get_weather",
                    Fault::Unfinished,
                    "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"ci",
                ),
            ],
        ),
        make(
            "deepseek v3.1: cut inside of the header",
            v31,
            ReplyStart::Fresh,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no",
            vec![
                says("<｜tool▁call▁begin｜>no"),
                nameless(Fault::Unfinished, "<｜tool▁call▁begin｜>no"),
            ],
        ),
    ]
}

fn kimi() -> Vec<Fixture> {
    let kimi = family(T::KimiK2, R::KimiK2);
    let make = |name, start, text, parts| Fixture { name, family: kimi, start, text, parts };
    vec![
        make(
            "kimi: ids are given, calls in reasoning are none",
            ReplyStart::Fresh,
            "<think>As <|tool_call_begin|>functions.x:0?</think>Both.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{\"city\":  \"Zürich\"}<|tool_call_end|><|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            vec![
                reasoning("As <|tool_call_begin|>functions.x:0?"),
                says("Both."),
                call_with_id("functions.get_weather:3", "get_weather", "{\"city\":  \"Zürich\"}"),
                call_with_id("functions.now:4", "now", "{}"),
            ],
        ),
        make(
            "kimi: no name, and no JSON",
            ReplyStart::Fresh,
            "<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_end|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>none<|tool_call_end|><|tool_calls_section_end|>",
            vec![
                says("<|tool_call_begin|>now<|tool_call_end|>"),
                nameless(Fault::NoName, "<|tool_call_begin|>now<|tool_call_end|>"),
                call_with_id("functions.now:0", "now", "none"),
                malformed(
                    0,
                    "now",
                    Fault::NotJson,
                    "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>none<|tool_call_end|>",
                ),
            ],
        ),
    ]
}

fn harmony() -> Vec<Fixture> {
    let openai = family(T::Openai, R::GptOss);
    let make =
        |name, text, parts| Fixture { name, family: openai, start: ReplyStart::Fresh, text, parts };
    vec![
        make(
            "harmony: reasoning, preamble, call",
            "<|channel|>analysis<|message|>Need `functions.now`.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":  \"São Paulo\"}",
            vec![
                reasoning("Need `functions.now`."),
                says("I look."),
                call("get_weather", "{\"city\":  \"São Paulo\"}"),
            ],
        ),
        make(
            "harmony: the recipient in the role, two calls, final text",
            "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|><|start|>assistant to=functions.now<|channel|>analysis json<|message|>{\"a\": 1}<|call|><|start|>assistant<|channel|>final<|message|>Done: 1 < 2.<|return|>",
            vec![call("now", "{}"), call("now", "{\"a\": 1}"), says("Done: 1 < 2.")],
        ),
        make(
            "harmony: cut inside of a call",
            "<|channel|>commentary to=functions.now<|message|>{\"a\":",
            vec![
                call("now", "{\"a\":"),
                malformed(
                    0,
                    "now",
                    Fault::Unfinished,
                    "<|channel|>commentary to=functions.now<|message|>{\"a\":",
                ),
            ],
        ),
        make("harmony: text without a header", "Plain.", vec![says("Plain.")]),
        make(
            "harmony: cut inside of the reasoning",
            "<|channel|>analysis<|message|>We <|",
            vec![reasoning("We <|")],
        ),
    ]
}

fn llama() -> Vec<Fixture> {
    let llama = family(T::Llama3Json, R::None);
    let make =
        |name, text, parts| Fixture { name, family: llama, start: ReplyStart::Fresh, text, parts };
    vec![
        make(
            "llama: one call",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Málaga\", \"days\": \"2\"}}",
            vec![call("get_weather", "{\"city\": \"Málaga\", \"days\": \"2\"}")],
        ),
        make(
            "llama: behind the tag, two calls",
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"now\", \"parameters\": { }}",
            vec![call("now", "{}"), call("now", "{ }")],
        ),
        make(
            "llama: JSON that is no call",
            "{\"name\": \"Ann\", \"age\": 3}\nThat is all.",
            vec![says("{\"name\": \"Ann\", \"age\": 3}\nThat is all.")],
        ),
        make(
            "llama: code of a built-in tool",
            "<|python_tag|>brave_search.call(query=\"x\")",
            vec![
                says("<|python_tag|>brave_search.call(query=\"x\")"),
                nameless(Fault::NoName, "<|python_tag|>brave_search.call(query=\"x\")"),
            ],
        ),
        make(
            "llama: cut",
            "{\"name\": \"now\", \"parameters\": {\"a\"",
            vec![
                call("now", "{\"a\""),
                malformed(
                    0,
                    "now",
                    Fault::Unfinished,
                    "{\"name\": \"now\", \"parameters\": {\"a\"",
                ),
            ],
        ),
        make("llama: text", "Well {\"name\": 1}.", vec![says("Well {\"name\": 1}.")]),
    ]
}

fn mistral() -> Vec<Fixture> {
    let plain = family(T::Mistral, R::None);
    let make =
        |name, text, parts| Fixture { name, family: plain, start: ReplyStart::Fresh, text, parts };
    vec![
        make(
            "mistral v3: a list",
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Nîmes\", \"l\": [\"]\"]}}, {\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}]",
            vec![call("get_weather", "{\"city\": \"Nîmes\", \"l\": [\"]\"]}"), call("now", "{}")],
        ),
        make(
            "mistral v13: names, parallel",
            "Fine.[TOOL_CALLS]get_weather[ARGS]{\"city\":\"[TOOL_CALLS]\"}[TOOL_CALLS]now[ARGS]{ }",
            vec![
                says("Fine."),
                call("get_weather", "{\"city\":\"[TOOL_CALLS]\"}"),
                call("now", "{ }"),
            ],
        ),
        make(
            "mistral v11: with an id",
            "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
            vec![call_with_id("abcdefghi", "now", "{}")],
        ),
        make(
            "mistral: cut in the list",
            "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"no",
            vec![
                call("now", "{}"),
                says(" {\"name\": \"no"),
                nameless(Fault::Unfinished, " {\"name\": \"no"),
            ],
        ),
        make(
            "mistral: cut in the arguments, and in the name",
            "[TOOL_CALLS]now[ARGS]{\"a\": [TOOL_CALLS]n",
            vec![
                call("now", "{\"a\": "),
                malformed(0, "now", Fault::Unclosed, "[TOOL_CALLS]now[ARGS]{\"a\": "),
                says("[TOOL_CALLS]n"),
                nameless(Fault::Unfinished, "[TOOL_CALLS]n"),
            ],
        ),
        Fixture {
            name: "magistral: reasoning",
            family: family(T::Mistral, R::Mistral),
            start: ReplyStart::Fresh,
            text: "[THINK]As [TOOL_CALLS]now[ARGS]{}?[/THINK]Yes.[TOOL_CALLS]now[ARGS]{}",
            parts: vec![reasoning("As [TOOL_CALLS]now[ARGS]{}?"), says("Yes."), call("now", "{}")],
        },
    ]
}
