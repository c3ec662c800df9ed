//! Engines that give raw text, with parsers in Polar.

use crate::fake_engine::{Answer, Asked, FakeEngine, fixture, generate, request, with_tool};
use polar_convo::{FinishReason, ReplyEvent, Request, ToolChoice};
use polar_engine::{
    EngineOptions, Outcome, ParserChoice, ParserOptions, ProbeError, ProbeReport, ReasoningFormat,
    ToolFormat,
};
use serde_json::{Value, json};

const OPEN: u32 = 7;
const CLOSE: u32 = 8;

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Oslo\" }}\n</tool_call>";

fn parsers(tools: Option<ToolFormat>, reasoning: Option<ReasoningFormat>) -> EngineOptions {
    let parsers = ParserOptions {
        tools: tools.map(ParserChoice::Format),
        reasoning: reasoning.map(ParserChoice::Format),
    };
    EngineOptions { parsers, ..EngineOptions::default() }
}

fn auto() -> EngineOptions {
    let parsers =
        ParserOptions { tools: Some(ParserChoice::Auto), reasoning: Some(ParserChoice::Auto) };
    EngineOptions { parsers, ..EngineOptions::default() }
}

/// An engine whose model says one text, and whose template shows `rendered` and ends prompts so.
struct RawEngine {
    owner: &'static str,
    model: &'static str,
    rendered: &'static str,
    says: &'static str,
}

impl RawEngine {
    async fn start(self) -> FakeEngine {
        FakeEngine::start(move |asked| self.answer(asked)).await
    }

    fn answer(&self, asked: &Asked) -> Answer {
        let body = &asked.body;
        match asked.path.as_str() {
            "/v1/models" => Answer::json(json!({"data": [
                {"id": self.model, "owned_by": self.owner, "max_model_len": 16384},
            ]})),
            "/tokenize" if body["prompt"] == "<think>" => tokens(&[OPEN]),
            "/tokenize" if body["prompt"] == "</think>" => tokens(&[CLOSE]),
            "/tokenize" if body["return_token_strs"] == true => Answer::json(json!({
                "tokens": [1], "token_strs": (self.owner == "vllm").then_some([self.rendered]),
            })),
            "/tokenize" => tokens(&prompt(body)),
            "/detokenize" => Answer::json(json!({"text": self.rendered})),
            "/model_info" if self.owner == "sglang" => Answer::json(json!({})),
            "/v1/chat/completions" if body["logit_bias"].get("-1").is_some() => {
                Answer::Json(400, fixture("vllm/no_such_id.json"))
            }
            "/v1/chat/completions" if asked.streams() => Answer::Stream(self.stream(body)),
            "/v1/chat/completions" => Answer::json(self.reply(body)),
            _ => Answer::missing(),
        }
    }

    fn reply(&self, body: &Value) -> Value {
        let prompt = prompt(body);
        let logprobs = json!({"content": [{"logprob": -0.5}, {"logprob": -0.25}]});
        json!({
            "choices": [{
                "message": {"content": self.says}, "finish_reason": "stop", "logprobs": logprobs,
                "token_ids": [11, 12], "response_token_ids": [11, 12], "prompt_token_ids": prompt,
            }],
            "prompt_token_ids": prompt,
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": 2},
        })
    }

    /// The text in two pieces, the first of which ends inside a mark.
    fn stream(&self, body: &Value) -> String {
        let prompt = prompt(body);
        let middle = self.says.find("_call").unwrap_or(self.says.len());
        let (first, second) = self.says.split_at(middle);
        let chunk = |text: &str, id: u32, finish: Option<&str>| {
            json!({"choices": [{
                "delta": {"content": text}, "finish_reason": finish, "token_ids": [id],
                "logprobs": {"content": [{"logprob": -0.5}]},
            }]})
        };
        let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": 2});
        let mut chunks = vec![chunk(first, 11, None), chunk(second, 12, Some("stop"))];
        chunks.insert(0, json!({"choices": [], "prompt_token_ids": prompt}));
        chunks.push(json!({"choices": [], "usage": usage}));
        let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        events + "data: [DONE]\n\n"
    }
}

/// Reasoning is open at the end of the prompt unless it was switched off.
fn prompt(body: &Value) -> Vec<u32> {
    match body["chat_template_kwargs"]["enable_thinking"] == false {
        true => vec![1, OPEN, 2, CLOSE, 2],
        false => vec![1, OPEN, 2],
    }
}

fn tokens(ids: &[u32]) -> Answer {
    Answer::json(json!({"count": ids.len(), "tokens": ids}))
}

fn vllm(says: &'static str) -> RawEngine {
    RawEngine { owner: "vllm", model: "m", rendered: "", says }
}

fn without_thinking(mut request: Request) -> Request {
    request.rest.insert("chat_template_kwargs".into(), json!({"enable_thinking": false}));
    request
}

#[tokio::test]
async fn text_is_parsed_by_where_the_prompt_ends_and_keeps_its_ids() {
    let says = "Hm.</think>\n\nI look. <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Oslo\" }}\n</tool_call>";
    for owner in ["vllm", "sglang"] {
        let server = RawEngine { owner, ..vllm(says) }.start().await;
        let options = parsers(Some(ToolFormat::Hermes), Some(ReasoningFormat::Qwen3));
        let engine = polar_engine::connect(&server.url, options).await.unwrap();
        for stream in [false, true] {
            let reply = generate(&engine, with_tool(request(stream))).await.unwrap();
            assert_eq!(reply.events[0], ReplyEvent::Reasoning("Hm.".to_owned()), "{owner}");
            assert_eq!(reply.text(), "\n\nI look. ", "{owner}");
            let arguments = "{\"city\":\"Oslo\" }".to_owned();
            assert_eq!(reply.calls(), [("get_weather".to_owned(), arguments)], "{owner}");
            assert_eq!(reply.ids, [11, 12]);
            assert!(reply.logprobs.iter().all(Option::is_some), "{owner}");
            assert_eq!(reply.end().finish, FinishReason::ToolCalls);
            let parsed_by = &reply.end().extra["parsers"];
            assert_eq!(*parsed_by, json!({"tools": "hermes", "reasoning": "qwen3"}));
            // vLLM shows the tools without a choice, SGLang with one.
            let chat = server.last_chat().body;
            assert!(chat["tools"].is_array());
            let choice = if owner == "vllm" { json!("none") } else { Value::Null };
            assert_eq!(chat["tool_choice"], choice);
            // SGLang's streams lose logprobs while it has no parsers.
            assert_eq!(chat["stream"], stream && owner == "vllm");
            assert_eq!(chat["skip_special_tokens"], Value::Null);

            let asked = without_thinking(with_tool(request(stream)));
            let reply = generate(&engine, asked).await.unwrap();
            assert_eq!(reply.text(), "Hm.</think>\n\nI look. ", "{owner}");
        }
    }
}

#[tokio::test]
async fn a_choice_that_is_not_free_is_left_to_the_engine() {
    let server = vllm("Fine.").start().await;
    let options = parsers(Some(ToolFormat::Mistral), None);
    let engine = polar_engine::connect(&server.url, options).await.unwrap();
    for (choice, sent) in [
        (None, "none"),
        (Some(ToolChoice::Auto), "none"),
        (Some(ToolChoice::None), "none"),
        (Some(ToolChoice::Required), "required"),
    ] {
        let mut asked = with_tool(request(false));
        asked.tool_choice = choice;
        generate(&engine, asked).await.unwrap();
        let chat = server.last_chat().body;
        assert_eq!(chat["tool_choice"], sent);
        // Mistral's marks are special tokens.
        assert_eq!(chat["skip_special_tokens"], false);
    }
}

#[tokio::test]
async fn without_the_right_to_call_a_call_is_text() {
    let server = vllm(CALL).start().await;
    let options = parsers(Some(ToolFormat::Hermes), None);
    let engine = polar_engine::connect(&server.url, options).await.unwrap();
    let mut forbidden = with_tool(request(true));
    forbidden.tool_choice = Some(ToolChoice::None);
    for asked in [request(true), forbidden] {
        let reply = generate(&engine, asked).await.unwrap();
        assert_eq!(reply.text(), CALL);
        assert_eq!(reply.end().finish, FinishReason::Stop);
    }
}

fn detail<'a>(report: &'a ProbeReport, name: &str) -> (&'a str, Option<&'a str>, Outcome) {
    let check = report.checks.iter().find(|check| check.name == name).unwrap();
    (check.detail.as_str(), check.advice.as_deref(), check.outcome)
}

#[tokio::test]
async fn the_family_is_found_by_the_template_before_the_name() {
    for (owner, model, rendered, tools) in [
        ("vllm", "Qwen3-8B", "<|assistant|><think></think><tool_call>f<arg_key>", "glm45"),
        ("sglang", "m", "[TOOL_CALLS]get_time[ARGS]{}", "mistral"),
        ("vllm", "Qwen/Qwen3-Coder-30B", "no marks", "qwen3_coder"),
    ] {
        let server = RawEngine { owner, model, rendered, says: "Fine." }.start().await;
        let (_, report) = polar_engine::probe(&server.url, auto()).await.unwrap();
        let (said, _, outcome) = detail(&report, "tools");
        assert!(said.contains(&format!("as {tools}, found by the model's")), "{said}");
        assert_eq!(said.contains("name"), rendered == "no marks", "{said}");
        assert_eq!(outcome, Outcome::Passed);
    }
}

#[tokio::test]
async fn what_cannot_be_parsed_is_refused_with_what_to_say() {
    let server = vllm("Fine.").start().await;
    let error = polar_engine::probe(&server.url, auto()).await.err().unwrap();
    assert!(matches!(error, ProbeError::NoParserFound { .. }));
    assert!(error.to_string().contains("--tool-parser"), "{error}");
    let server = RawEngine { owner: "llamacpp", ..vllm("Fine.") }.start().await;
    let error = polar_engine::probe(&server.url, auto()).await.err().unwrap();
    assert!(error.to_string().contains("parses tool calls and reasoning itself"), "{error}");
}

#[tokio::test]
async fn raw_text_without_a_parser_is_told_with_the_option_to_set() {
    let server = RawEngine { owner: "sglang", ..vllm("Hm.</think>Fine.") }.start().await;
    let (_, report) = polar_engine::probe(&server.url, EngineOptions::default()).await.unwrap();
    let (said, advice, outcome) = detail(&report, "tools");
    assert_eq!((said, outcome), ("calls come back as text", Outcome::Warning));
    assert!(advice.unwrap().contains("--tool-parser auto"), "{advice:?}");
    let (said, advice, outcome) = detail(&report, "reasoning");
    assert_eq!((said, outcome), ("comes back as text", Outcome::Warning));
    assert!(advice.unwrap().contains("--reasoning-parser auto"), "{advice:?}");

    let options = parsers(Some(ToolFormat::Hermes), Some(ReasoningFormat::Qwen3));
    let (_, report) = polar_engine::probe(&server.url, options).await.unwrap();
    assert!(report.checks.iter().all(|check| check.outcome != Outcome::Failed));
    assert!(report.checks.iter().all(|check| check.name != "reasoning"));
}
