//! Replies: one piece and stream agree, ids are exact, scores repeat.

use crate::support::{fold, ids, start, start_with, weather_tool, with};
use polar_simulator::{SimulatorConfig, Vocabulary};
use serde_json::{Value, json};

const POLICY: &str = r#"
name: t
rules:
  - name: call
    when: {tools: [get_weather], last_role: user}
    reply:
      reasoning: The user wants the weather. Let me look it up.
      text: One moment, grüß dich 🎉.
      tool_calls:
        - {name: get_weather, arguments: {city: "Malmö \"x\"", days: 2, f: 1.0e-7}}
        - {name: get_weather, arguments: {city: Oslo}}
  - name: answer
    when: {last_role: tool}
    reply: {reasoning: Sunny., text: "It is {{ tool_result }}."}
  - name: variants
    when: {last: vary}
    alternatives: [{text: red}, {text: green}, {text: blue}, {text: yellow}]
default: {reasoning: Easy., text: "one two three four five {{ last }}"}
"#;

fn question() -> Value {
    json!({
        "model": "simulated",
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": weather_tool(),
        "return_token_ids": true,
        "logprobs": true,
        "top_logprobs": 2,
    })
}

#[tokio::test]
async fn a_stream_folds_to_the_reply_in_one_piece() {
    let client = start_with(POLICY).await;
    let plain = json!({"messages": [{"role": "user", "content": "hi"}], "return_token_ids": true, "logprobs": true});
    let bodies = [
        question(),
        with(&question(), &json!({"max_tokens": 30})),
        with(&question(), &json!({"tool_choice": "none"})),
        with(&question(), &json!({"chat_template_kwargs": {"enable_thinking": false}})),
        with(&question(), &json!({"parallel_tool_calls": false})),
        with(&plain, &json!({"stop": ["ee fo"], "n": 2})),
        with(&plain, &json!({"max_completion_tokens": 3})),
        with(&plain, &json!({"min_tokens": 80, "return_tokens_as_token_ids": true})),
        plain,
    ];
    for body in bodies {
        for interval in [1, 2, 7, 1000] {
            let whole = client.chat(&body).await;
            let streamed = client.stream(&with(&body, &json!({"stream_interval": interval}))).await;
            assert_eq!(streamed[0]["prompt_token_ids"], whole["prompt_token_ids"]);
            for choice in whole["choices"].as_array().unwrap() {
                let folded = fold(&streamed, choice["index"].as_u64().unwrap());
                same_choice(&folded, choice);
            }
        }
    }
}

/// Holds a folded stream against a whole choice, with vLLM's own differences.
fn same_choice(folded: &Value, whole: &Value) {
    for key in ["token_ids", "stop_reason"] {
        assert_eq!(folded[key], whole[key]);
    }
    assert_eq!(folded["logprobs"], whole["logprobs"]["content"]);
    let (streamed, message) = (&folded["message"], &whole["message"]);
    let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
    assert_eq!(calls(streamed), calls(message));
    let parse = |call: &Value| -> Value {
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
    };
    for (one, other) in streamed["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(message["tool_calls"].as_array().into_iter().flatten())
    {
        assert_eq!(one["function"]["name"], other["function"]["name"]);
        assert_eq!(parse(one), parse(other));
    }
    if calls(message) == 0 {
        assert_eq!(folded["finish_reason"], whole["finish_reason"]);
        // Blank text is null in one piece only when calls follow it.
        // The first chunk of a stream has empty text where one piece has null.
        let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        assert_eq!(text(streamed), text(message));
    }
    assert_eq!(streamed["reasoning"], message["reasoning"]);
}

#[tokio::test]
async fn ids_are_the_sampled_text_and_its_end() {
    let client = start_with(POLICY).await;
    let reply = client.chat(&question()).await;
    let choice = &reply["choices"][0];
    let vocabulary = Vocabulary::load().unwrap();
    let text = vocabulary.decode(&ids(&choice["token_ids"]), true);
    assert_eq!(
        text,
        "<think>\nThe user wants the weather. Let me look it up.\n</think>\n\nOne moment, grüß dich 🎉.\n\
         <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Malmö \\\"x\\\"\", \"days\": 2, \"f\": 1e-07}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>"
    );
    let message = &choice["message"];
    assert_eq!(message["content"], "\n\nOne moment, grüß dich 🎉.\n");
    assert_eq!(message["reasoning"], "\nThe user wants the weather. Let me look it up.\n");
    assert_eq!(message["tool_calls"][1]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    let logprobs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), ids(&choice["token_ids"]).len());
    assert_eq!(logprobs.last().unwrap()["token"], "<|im_end|>");
    let spelled: String = logprobs.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(spelled, text);
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], logprobs.len());
    assert_eq!(usage["prompt_tokens"], ids(&reply["prompt_token_ids"]).len());
    let prompt = client.post("/tokenize", &question()).await.1;
    assert_eq!(prompt["tokens"], reply["prompt_token_ids"]);
    let text = client.post("/detokenize", &json!({"tokens": prompt["tokens"]})).await.1;
    assert!(
        text["prompt"].as_str().unwrap().ends_with("Weather?<|im_end|>\n<|im_start|>assistant\n")
    );
}

#[tokio::test]
async fn scoring_again_gives_the_same_bits_and_a_wrong_context_others() {
    let client = start_with(POLICY).await;
    let reply = client.chat(&question()).await;
    let prompt = ids(&reply["prompt_token_ids"]);
    let sampled = ids(&reply["choices"][0]["token_ids"]);
    let sampled_logprobs: Vec<f64> = reply["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["logprob"].as_f64().unwrap())
        .collect();
    assert!(sampled_logprobs.iter().all(|value| (-8.01..0.0).contains(value)));

    let rescore = async |sequence: Vec<u32>| -> Vec<f64> {
        let body = json!({"prompt": sequence, "max_tokens": 1, "prompt_logprobs": 0});
        let (status, scored) = client.post("/v1/completions", &body).await;
        assert_eq!(status, 200, "{scored}");
        let entries = scored["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
        assert_eq!(entries.len(), sequence.len());
        assert!(entries[0].is_null());
        let score =
            |(entry, id): (&Value, &u32)| entry[id.to_string()]["logprob"].as_f64().unwrap();
        entries[prompt.len()..].iter().zip(&sequence[prompt.len()..]).map(score).collect()
    };
    let right = [prompt.clone(), sampled.clone()].concat();
    assert_eq!(rescore(right.clone()).await, sampled_logprobs);
    let mut wrong = right;
    wrong[3] ^= 1;
    let scores = rescore(wrong).await;
    let same = scores.iter().zip(&sampled_logprobs).filter(|(a, b)| a == b).count();
    assert_eq!(same, 0, "every score must notice the changed prompt");

    let new = json!({"new_version": "step-1"});
    assert_eq!(client.post("/update_weight_version", &new).await.1["success"], true);
    assert_eq!(client.get("/weight_info").await["weight_version"], "step-1");
    assert_ne!(rescore([prompt.clone(), sampled.clone()].concat()).await, sampled_logprobs);
}

#[tokio::test]
async fn the_same_request_gets_the_same_reply() {
    let (one, other) = (start_with(POLICY).await, start_with(POLICY).await);
    let take = |reply: &Value| {
        let choice = &reply["choices"][0];
        (reply["prompt_token_ids"].clone(), choice["token_ids"].clone(), choice["logprobs"].clone())
    };
    let first = take(&one.chat(&question()).await);
    assert_eq!(first, take(&one.chat(&question()).await));
    assert_eq!(first, take(&other.chat(&question()).await));

    let vary = |seed: u64| json!({"messages": [{"role": "user", "content": "vary"}], "seed": seed});
    let mut said = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let text = one.chat(&vary(seed)).await["choices"][0]["message"]["content"].clone();
        assert_eq!(text, other.chat(&vary(seed)).await["choices"][0]["message"]["content"]);
        said.insert(text.to_string());
    }
    assert_eq!(said.len(), 4, "{said:?}");
    let eight = one.chat(&with(&vary(1), &json!({"n": 8}))).await;
    let texts: std::collections::BTreeSet<String> = eight["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].to_string())
        .collect();
    assert!(texts.len() > 1, "choices of one request differ: {texts:?}");
}

#[tokio::test]
async fn a_turn_extends_the_prompt_and_reply_before_it() {
    let client = start_with(POLICY).await;
    let first = client.chat(&question()).await;
    let mut messages = question()["messages"].as_array().unwrap().clone();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "tool", "content": "sunny"}));
    messages.push(json!({"role": "tool", "content": "grey"}));
    let second = client.chat(&with(&question(), &json!({"messages": messages}))).await;
    assert_eq!(second["choices"][0]["message"]["content"], "\n\nIt is grey.");
    let before = [ids(&first["prompt_token_ids"]), ids(&first["choices"][0]["token_ids"])].concat();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&before));
    let cached = |reply: &Value| reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&first), Some(0));
    assert_eq!(cached(&second), Some((ids(&first["prompt_token_ids"]).len() / 128 * 128) as u64));
}

#[tokio::test]
async fn reasoning_comes_back_under_either_name() {
    let client = start_with(POLICY).await;
    let mut prompts = Vec::new();
    for name in ["reasoning", "reasoning_content"] {
        let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", name: "why"}]);
        let body =
            json!({"messages": messages, "return_token_ids": true, "return_prompt_text": true});
        let reply = client.chat(&body).await;
        assert!(
            reply["prompt_text"]
                .as_str()
                .unwrap()
                .contains("<think>\nwhy\n</think>\n\na<|im_end|>")
        );
        prompts.push(reply["prompt_token_ids"].clone());
        let tokenized = client.post("/tokenize", &body).await.1["tokens"].clone();
        assert_eq!(tokenized == prompts[0], name == "reasoning", "/tokenize knows one name");
    }
    assert_eq!(prompts[0], prompts[1]);
}

#[tokio::test]
async fn own_ids_replace_the_rendered_prompt() {
    let client = start_with(POLICY).await;
    let own = Vocabulary::load().unwrap().encode("<|im_start|>user\nown<|im_end|>\n").unwrap();
    let body = with(&question(), &json!({"kv_transfer_params": {"prompt_token_ids": own}}));
    let reply = client.chat(&body).await;
    assert_eq!(ids(&reply["prompt_token_ids"]), own);
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn completions_read_the_conversation_from_ids() {
    let client = start_with(POLICY).await;
    let prompt = client.post("/tokenize", &question()).await.1["tokens"].clone();
    let body =
        json!({"prompt": prompt, "max_tokens": 500, "return_token_ids": true, "logprobs": 0});
    let (status, reply) = client.post("/v1/completions", &body).await;
    assert_eq!(status, 200, "{reply}");
    let choice = &reply["choices"][0];
    let chat = client.chat(&question()).await;
    assert_eq!(choice["token_ids"], chat["choices"][0]["token_ids"]);
    assert_eq!(choice["prompt_token_ids"], chat["prompt_token_ids"]);
    assert_eq!(choice["finish_reason"], "stop");
    let scores: Vec<Value> = chat["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["logprob"].clone())
        .collect();
    assert_eq!(choice["logprobs"]["token_logprobs"], Value::Array(scores));

    let several = json!({"prompt": [[1, 2], [3]], "max_tokens": 2, "return_token_ids": true});
    let reply = client.post("/v1/completions", &several).await.1;
    assert_eq!(reply["choices"][1]["prompt_token_ids"], json!([3]));
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    assert_eq!(reply["usage"]["total_tokens"], 7);
}

#[tokio::test]
async fn a_forced_tool_is_called() {
    let client = start(SimulatorConfig::default()).await;
    let forced = with(&question(), &json!({"tool_choice": "required"}));
    let reply = client.chat(&forced).await;
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], "{\"city\": \"simulated\"}");
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}});
    let reply = client.chat(&with(&question(), &named)).await;
    assert_eq!(reply["choices"][0]["message"]["content"], "");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn hidden_reasoning_hides_ids_too_as_in_vllm() {
    let client = start_with(POLICY).await;
    let reply = client.chat(&with(&question(), &json!({"include_reasoning": false}))).await;
    let choice = &reply["choices"][0];
    assert!(choice["token_ids"].is_null() && choice["logprobs"].is_null());
    assert!(choice["message"]["reasoning"].is_null());
}

#[tokio::test]
async fn a_bytewise_spelling_reads_the_same_and_has_other_ids() {
    let client =
        start_with("name: t\ndefault: {text: hello there friend, spelling: bytewise}").await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "return_token_ids": true});
    let reply = client.chat(&body).await;
    assert_eq!(reply["choices"][0]["message"]["content"], "\n\nhello there friend");
    let vocabulary = Vocabulary::load().unwrap();
    let sampled = ids(&reply["choices"][0]["token_ids"]);
    assert_ne!(vocabulary.encode(&vocabulary.decode(&sampled, true)).unwrap(), sampled);
}
