//! Which family a model is of.

use crate::folding::family;
use polar_tokens::parse::{
    ParsedEvent, ParserFamily, ReasoningFormat as R, ReplyParser, ReplyStart, ToolFormat as T,
    ToolSchemas,
};

#[test]
fn names_are_those_of_the_engines() {
    for (name, format) in [
        ("hermes", T::Hermes),
        ("qwen3_coder", T::Qwen3Coder),
        ("glm45", T::Glm45),
        ("deepseek_v3", T::DeepseekV3),
        ("deepseek_v31", T::DeepseekV31),
        ("kimi_k2", T::KimiK2),
        ("openai", T::Openai),
        ("llama3_json", T::Llama3Json),
        ("mistral", T::Mistral),
    ] {
        assert_eq!(name.parse::<T>(), Ok(format));
        assert_eq!(format.to_string(), name);
    }
    // SGLang's spellings.
    assert_eq!("deepseek-r1".parse::<R>(), Ok(R::DeepseekR1));
    assert_eq!("gpt-oss".parse::<T>(), Ok(T::Openai));
    assert_eq!("qwen25".parse::<T>(), Ok(T::Hermes));
}

#[test]
fn an_unknown_name_is_told_what_there_is() {
    let error = "herms".parse::<T>().unwrap_err().to_string();
    assert!(error.contains("no tool parser `herms`"), "{error}");
    assert!(error.contains("hermes, qwen3_coder, glm45"), "{error}");
    let error = "x".parse::<R>().unwrap_err().to_string();
    assert!(error.contains("qwen3, deepseek_r1"), "{error}");
}

#[test]
fn model_names_tell_the_family() {
    for (name, tools, reasoning) in [
        ("Qwen/Qwen3-8B", T::Hermes, R::Qwen3),
        ("Qwen/Qwen3-4B-Thinking-2507", T::Hermes, R::DeepseekR1),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", T::Qwen3Coder, R::None),
        ("/models/Qwen2.5-7B-Instruct", T::Hermes, R::None),
        ("zai-org/GLM-4.6-FP8", T::Glm45, R::Glm45),
        ("deepseek-ai/DeepSeek-V3.1", T::DeepseekV31, R::DeepseekV3),
        ("deepseek-ai/DeepSeek-R1-0528", T::DeepseekV3, R::DeepseekR1),
        ("moonshotai/Kimi-K2-Thinking", T::KimiK2, R::KimiK2),
        ("openai/gpt-oss-20b", T::Openai, R::GptOss),
        ("meta-llama/Llama-3.1-8B-Instruct", T::Llama3Json, R::None),
        ("mistralai/Magistral-Small-2509", T::Mistral, R::Mistral),
    ] {
        assert_eq!(ParserFamily::from_model_name(name), Some(family(tools, reasoning)), "{name}");
    }
    assert_eq!(ParserFamily::from_model_name("default"), None);
    assert_eq!(ParserFamily::from_template("{{ messages }}"), None);
}

#[test]
fn without_tools_there_are_no_calls() {
    for (family, text) in [
        (family(T::Hermes, R::None), "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>"),
        (family(T::Llama3Json, R::None), "{\"name\": \"a\", \"parameters\": {}}"),
    ] {
        let mut parser = ReplyParser::new(family, ReplyStart::Fresh, ToolSchemas::default());
        let mut events = parser.push(text);
        events.extend(parser.finish());
        assert_eq!(events, [ParsedEvent::Text(text.to_owned())]);
    }
}

#[test]
fn ids_of_calls_are_such_as_the_models_template_takes() {
    let id =
        |tools, request, index| ParserFamily { tools, reasoning: R::None }.call_id(request, index);
    assert_eq!(id(T::Hermes, "polar-1", 2), "call_polar-1_2");
    let ids = [("polar-1", 0), ("polar-1", 1), ("polar-2", 0)];
    let ids = ids.map(|(request, index)| id(T::Mistral, request, index));
    for id in &ids {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
}
