//! The same text gives the same parts, however it is cut.

use crate::fixtures;
use crate::folding::{family, fold};
use polar_tokens::parse::{ParserFamily, ReasoningFormat as R, ReplyStart, ToolFormat as T};
use proptest::prelude::*;

/// Cuts at the given places, moved back to where characters begin.
fn cut<'a>(text: &'a str, places: &[usize]) -> Vec<&'a str> {
    let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let mut places: Vec<usize> = places.iter().filter_map(|at| boundary(*at)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

#[test]
fn every_fixture_character_by_character_and_cut_anywhere() {
    for fixture in fixtures::all() {
        let characters: Vec<usize> = (0..fixture.text.len()).collect();
        assert_eq!(
            fixture.parse(cut(fixture.text, &characters)),
            fixture.parts,
            "{}",
            fixture.name
        );
        for at in 0..fixture.text.len() {
            let parts = fixture.parse(cut(fixture.text, &[at]));
            assert_eq!(parts, fixture.parts, "{} cut at {at}", fixture.name);
        }
    }
}

const FAMILIES: &[ParserFamily] = &[
    ParserFamily { tools: T::Hermes, reasoning: R::Qwen3 },
    ParserFamily { tools: T::Qwen3Coder, reasoning: R::Qwen3 },
    ParserFamily { tools: T::Glm45, reasoning: R::Glm45 },
    ParserFamily { tools: T::DeepseekV3, reasoning: R::DeepseekR1 },
    ParserFamily { tools: T::DeepseekV31, reasoning: R::DeepseekV3 },
    ParserFamily { tools: T::KimiK2, reasoning: R::KimiK2 },
    ParserFamily { tools: T::Openai, reasoning: R::GptOss },
    ParserFamily { tools: T::Llama3Json, reasoning: R::None },
    ParserFamily { tools: T::Mistral, reasoning: R::Mistral },
];

/// Shreds of all formats, whole and damaged, in any order.
const SHREDS: &[&str] = &[
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "now>",
    "</function>",
    "<parameter=",
    "city>",
    "</parameter>",
    "get_weather",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.now:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|channel|>",
    "analysis",
    "commentary to=functions.now",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|start|>assistant",
    "<|python_tag|>",
    ";",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[",
    "]",
    ",",
    "{\"name\": \"now\", \"arguments\": ",
    "\"parameters\": ",
    "{\"a\": \"ü\\\"\"}",
    "{\"name\": ",
    "\"now\"",
    "{",
    "}",
    "\"",
    "\n",
    " ",
    "```json",
    "```",
    "<",
    "｜",
    "漢",
    "x",
    "1",
];

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(SHREDS), 0..24).prop_map(|shreds| shreds.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text_of_any_family_cut_anywhere(
        text in text(),
        family in prop::sample::select(FAMILIES),
        start in prop::sample::select(&[ReplyStart::Fresh, ReplyStart::InReasoning, ReplyStart::Usual]),
        places in prop::collection::vec(0_usize..256, 0..12),
    ) {
        let whole = fold(family, start, [text.as_str()]);
        prop_assert_eq!(&fold(family, start, cut(&text, &places)), &whole);
        let characters: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(&fold(family, start, cut(&text, &characters)), &whole);
    }

    #[test]
    fn json_arguments_come_back_byte_for_byte(
        key in "[a-zé\\\\\"/ ]{0,6}", value in "\\PC{0,40}", blank in "[ \n]{0,3}", places in prop::collection::vec(0_usize..256, 0..8),
    ) {
        let (key, value) = (serde_json::json!(key), serde_json::json!(value));
        let arguments = format!("{{{blank}{key}:{blank}{value}{blank},\"n\":[1e3,{{}},{value}]}}");
        let called = |name: &str, id: Option<&str>| vec![crate::folding::Part::Call {
            name: name.to_owned(), id: id.map(str::to_owned), arguments: arguments.clone(),
        }];
        let check = |tools: T, text: String, id: Option<&str>| {
            let parts = fold(family(tools, R::None), ReplyStart::Fresh, cut(&text, &places));
            assert_eq!(parts, called("now", id), "{text}");
        };
        check(T::Hermes, format!("<tool_call>\n{{\"name\": \"now\", \"arguments\": {arguments}}}\n</tool_call>"), None);
        check(T::Hermes, format!("<tool_call>{{\"arguments\":{arguments},\"name\":\"now\"}}</tool_call>"), None);
        check(T::DeepseekV3, format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"), None);
        check(T::DeepseekV31, format!("<｜tool▁call▁begin｜>now<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"), None);
        check(T::KimiK2, format!("<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"), Some("functions.now:0"));
        check(T::Openai, format!("<|channel|>commentary to=functions.now <|constrain|>json<|message|>{arguments}<|call|>"), None);
        check(T::Llama3Json, format!("{{\"name\": \"now\", \"parameters\": {arguments}}}"), None);
        check(T::Mistral, format!("[TOOL_CALLS][{{\"name\": \"now\", \"arguments\": {arguments}}}]"), None);
        check(T::Mistral, format!("[TOOL_CALLS]now[ARGS]{arguments}"), None);
    }
}
