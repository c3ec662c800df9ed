//! Families that write each argument as bare text, typed by the tool's schema.
//!
//! Formats: Qwen3-Coder by the template and `qwen3coder_tool_parser.py` of
//! Qwen/Qwen3-Coder-480B-A35B-Instruct; GLM by the templates of zai-org/GLM-4.5, GLM-4.6 and GLM-4.7.

use crate::folding::{Fixture, call, family, malformed, nameless, reasoning, text as says};
use polar_tokens::parse::{Fault, ReasoningFormat as R, ReplyStart, ToolFormat as T};

pub(crate) fn fixtures() -> Vec<Fixture> {
    let mut all = qwen_coder();
    all.extend(glm());
    all
}

fn qwen_coder() -> Vec<Fixture> {
    let coder = family(T::Qwen3Coder, R::None);
    let make =
        |name, text, parts| Fixture { name, family: coder, start: ReplyStart::Fresh, text, parts };
    vec![
        make(
            "qwen coder: types of the schema",
            "On it.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n\"Oslo\"\n\n3\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=factor>\n1.50\n</parameter>\n<parameter=where>\n{\"lat\":  59.9}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=tags>\n[\"a\" ,1]\n</parameter>\n<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>",
            vec![
                says("On it.\n"),
                call(
                    "get_weather",
                    "{\"city\": \"\\\"Oslo\\\"\\n\\n3\", \"days\": 3, \"exact\": true, \"factor\": 1.50, \
                     \"where\": {\"lat\":  59.9}, \"note\": null, \"tags\": [\"a\" ,1], \"more\": \"7\"}",
                ),
            ],
        ),
        make(
            "qwen coder: parallel, without arguments, without the outer tag",
            "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<function=get_weather>\n<parameter=city>\n漢字 <b> & </x>\n</parameter>\n</function>",
            vec![call("now", "{}"), call("get_weather", "{\"city\": \"漢字 <b> & </x>\"}")],
        ),
        make(
            "qwen coder: a value of another type",
            "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n<parameter=where>\n{'lat': 1}\n</parameter>\n</function>\n</tool_call>",
            vec![
                call("get_weather", "{\"days\": \"three\", \"where\": \"{'lat': 1}\"}"),
                malformed(
                    0,
                    "get_weather",
                    Fault::WrongType,
                    "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n<parameter=where>\n{'lat': 1}\n</parameter>\n</function>\n</tool_call>",
                ),
            ],
        ),
        make(
            "qwen coder: values that are not closed",
            "<function=get_weather><parameter=city>\nOslo\n<parameter=days>3</function>",
            vec![
                call("get_weather", "{\"city\": \"Oslo\", \"days\": 3}"),
                malformed(
                    0,
                    "get_weather",
                    Fault::Unclosed,
                    "<function=get_weather><parameter=city>\nOslo\n<parameter=days>3</function>",
                ),
            ],
        ),
        make(
            "qwen coder: cut inside of a value",
            "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nOs",
            vec![
                call("get_weather", "{\"days\": 3"),
                malformed(
                    0,
                    "get_weather",
                    Fault::Unfinished,
                    "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nOs",
                ),
            ],
        ),
        make(
            "qwen coder: JSON in the tags, and a cut name",
            "<tool_call>\n{\"name\": \"now\"}\n</tool_call><tool_call><function=no",
            vec![
                says("<tool_call>\n{\"name\": \"now\"}\n</tool_call>"),
                nameless(Fault::Unexpected, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>"),
                says("<tool_call><function=no"),
                nameless(Fault::Unfinished, "<tool_call><function=no"),
            ],
        ),
        Fixture {
            name: "qwen3.5: calls in reasoning are none",
            family: family(T::Qwen3Coder, R::Qwen3),
            start: ReplyStart::InReasoning,
            text: "\nA <function=now></function>.\n</think>\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            parts: vec![reasoning("\nA <function=now></function>.\n"), call("now", "{}")],
        },
    ]
}

fn glm() -> Vec<Fixture> {
    let glm = family(T::Glm45, R::Glm45);
    let make = |name, start, text, parts| Fixture { name, family: glm, start, text, parts };
    vec![
        make(
            "glm 4.5: reasoning, parallel calls, types",
            ReplyStart::Fresh,
            "\n<think>Is <tool_call>now</tool_call> it?</think>\nBoth.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>42</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>where</arg_key>\n<arg_value>{\"lat\": 1.0}</arg_value>\n<arg_key>other</arg_key>\n<arg_value>{\"a\":1}</arg_value>\n<arg_key>more</arg_key>\n<arg_value> é\n</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
            vec![
                reasoning("Is <tool_call>now</tool_call> it?"),
                says("\nBoth.\n"),
                call(
                    "get_weather",
                    "{\"city\": \"42\", \"days\": 2, \"where\": {\"lat\": 1.0}, \"other\": {\"a\":1}, \"more\": \" é\\n\"}",
                ),
                call("now", "{}"),
            ],
        ),
        make(
            "glm 4.7: without line breaks, the prompt opened the reasoning",
            ReplyStart::InReasoning,
            "Hm.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>東京</arg_value></tool_call><tool_call>now</tool_call>",
            vec![reasoning("Hm."), call("get_weather", "{\"city\": \"東京\"}"), call("now", "{}")],
        ),
        make(
            "glm: cut inside of a value",
            ReplyStart::Fresh,
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os",
            vec![
                call("get_weather", ""),
                malformed(
                    0,
                    "get_weather",
                    Fault::Unfinished,
                    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os",
                ),
            ],
        ),
        make(
            "glm: a key without a value, and no name",
            ReplyStart::Fresh,
            "<tool_call>now<arg_key>a</arg_key></tool_call><tool_call></tool_call>",
            vec![
                call("now", ""),
                malformed(
                    0,
                    "now",
                    Fault::Unclosed,
                    "<tool_call>now<arg_key>a</arg_key></tool_call>",
                ),
                says("<tool_call></tool_call>"),
                nameless(Fault::NoName, "<tool_call></tool_call>"),
            ],
        ),
    ]
}
