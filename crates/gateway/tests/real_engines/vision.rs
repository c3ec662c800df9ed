//! Token mode with pictures, against the engines that take them beside ids, with a model that is shown
//! them.

use crate::conversations::{ROUNDING, through_gateway};
use crate::engine_under_test::EngineUnderTest;
use polar_engine::{EngineKind, Outcome};
use polar_record::RecordedSession;
use polar_trajectory::{build, verify, verify_fingerprints};
use polar_types::{SamplingPins, Trace, TrajectoryStrategy};
use serde_json::{Value, json};

/// PNGs in base64: stripes of 56 by 56 pixels, and the same upright in 84 by 56.
const STRIPES: &str = "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAWElEQVR42u3WoREAMAwCQMbOiB2rC6SiKhF/h0S8g5ykTz0y1A8oKCjoWmj1qUeG+qCgoKB7oZYJFBQU1B8FBQUF9UdNKCgoqD9qmUBBQf1RywQKCgr63b/8cX7Tb+DzpQAAAABJRU5ErkJggg==";
const UPRIGHT: &str = "iVBORw0KGgoAAAANSUhEUgAAAFQAAAA4CAIAAADsP0i3AAAAXUlEQVR42u3PMQ0AMAwEsQcR/ngKomBKICWQWLrxFqdy+u6nQX/g4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4bfhH+JRUNpkvCUFAAAAAElFTkSuQmCC";
/// All white, as large as the first.
const OTHER: &str = "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAQElEQVR42u3OMQ0AAAwDoPqX3KvHVCwBBaRPRFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRU9Aw38OWO5YMQ3QAAAABJRU5ErkJggg==";

/// A client of Chat that keeps no reasoning and trims text.
struct Client<'a> {
    http: reqwest::Client,
    base: &'a str,
    secret: &'a str,
    stream: bool,
    history: Vec<Value>,
}

fn shown(picture: &str) -> Value {
    let url = format!("data:image/png;base64,{picture}");
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

impl Client<'_> {
    async fn ask(&mut self, content: Value) {
        self.history.push(json!({"role": "user", "content": content}));
        let body = json!({
            "model": "any", "max_tokens": 40, "messages": self.history, "stream": self.stream,
        });
        let url = format!("{}/v1/chat/completions", self.base);
        let sent = self.http.post(url).bearer_auth(self.secret).json(&body).send();
        let answer = sent.await.unwrap();
        let (status, told) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{told}");
        let said: String = match self.stream {
            true => told
                .lines()
                .filter_map(|line| line.strip_prefix("data: "))
                .filter_map(|data| serde_json::from_str::<Value>(data).ok())
                .filter_map(|chunk| {
                    Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())
                })
                .collect(),
            false => {
                let reply: Value = serde_json::from_str(&told).unwrap();
                reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
            }
        };
        self.history.push(json!({"role": "assistant", "content": said.trim()}));
    }
}

async fn conversation(under: &EngineUnderTest, stream: bool) -> RecordedSession {
    let pins = SamplingPins { temperature: Some(1.0), ..SamplingPins::default() };
    through_gateway(under, &pins, async |base, secret| {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut client = Client { http, base, secret, stream, history: Vec::new() };
        client.ask(json!("Hello.")).await;
        client.ask(json!([text("What is it?"), shown(STRIPES)])).await;
        client.ask(json!("Are you sure?")).await;
        client.ask(json!([shown(UPRIGHT), shown(STRIPES), text("And these?")])).await;
        client.ask(json!("Thank you.")).await;
    })
    .await
}

/// What the engine gives each sampled token of a trace, shown these pictures. `mark` stands for one
/// in what is sent.
async fn scores(
    under: &EngineUnderTest,
    trace: &Trace,
    mark: u32,
    pictures: &[&str],
) -> Vec<Option<f64>> {
    let mut sent: Vec<u32> = [&trace.prompt_ids[..], &trace.response_ids[..]].concat();
    let had = sent.clone();
    sent.dedup_by(|next, before| next == before && *next == mark);
    let model = &under.engine.info().model;
    let urls: Vec<String> =
        pictures.iter().map(|picture| format!("data:image/png;base64,{picture}")).collect();
    let from = trace.prompt_ids.len();
    if under.kind == EngineKind::Sglang {
        let body = json!({
            "input_ids": sent, "image_data": urls, "return_prompt_token_ids": true,
            "return_logprob": true, "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        });
        let reply = under.post("/generate", &body).await;
        assert_eq!(reply["prompt_token_ids"], json!(had), "the trace is what it has in context");
        let told = reply["meta_info"]["input_token_logprobs"].as_array().unwrap();
        return told.iter().skip(from).map(|entry| entry[0].as_f64()).collect();
    }
    let parts: Vec<Value> =
        urls.iter().map(|url| json!({"type": "image_url", "url": url})).collect();
    let body = json!({
        "model": model, "token_ids": sent, "return_token_ids": true, "content_parts": parts,
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0},
    });
    let reply = under.post("/inference/v1/generate", &body).await;
    assert_eq!(reply["prompt_token_ids"], json!(had), "the trace is what it has in context");
    let told = reply["prompt_logprobs"].as_array().unwrap();
    let told = had.iter().zip(told).skip(from);
    told.map(|(id, entry)| entry[id.to_string()]["logprob"].as_f64()).collect()
}

/// The prompt that the engine makes of messages.
async fn rendered(under: &EngineUnderTest, messages: Vec<Value>) -> Vec<u32> {
    let mut body = json!({"model": under.engine.info().model, "messages": messages});
    let ids = match under.kind {
        EngineKind::Sglang => {
            body["max_tokens"] = 1.into();
            body["return_token_ids"] = true.into();
            let reply = under.post("/v1/chat/completions", &body).await;
            reply["choices"][0]["prompt_token_ids"].clone()
        }
        _ => under.post("/v1/chat/completions/render", &body).await["token_ids"].clone(),
    };
    serde_json::from_value(ids).unwrap()
}

fn largest_difference(trace: &Trace, scores: &[Option<f64>]) -> f64 {
    let recorded = trace.response_logprobs.iter().zip(&trace.loss_mask).zip(scores);
    let of_sampled = recorded.filter(|((_, mask), _)| **mask == 1);
    let difference = |((logprob, _), again): ((&Option<f32>, _), &Option<f64>)| {
        (f64::from(logprob.unwrap()) - again.unwrap()).abs()
    };
    of_sampled.map(difference).fold(0.0, f64::max)
}

#[tokio::test]
async fn promise_3_a_start_finds_out_that_pictures_can_be_shown() {
    let under = EngineUnderTest::that_sees().await;
    for check in &under.report.checks {
        println!("{:?} {}: {}", check.outcome, check.name, check.detail);
    }
    assert!(under.report.checks.iter().all(|check| check.outcome == Outcome::Passed));
    let pictures = under.report.checks.iter().find(|check| check.name == "pictures").unwrap();
    assert!(pictures.detail.contains("<|image_pad|>"), "{pictures:?}");
}

#[tokio::test]
async fn promise_2_a_conversation_with_pictures_is_one_trace() {
    let under = EngineUnderTest::that_sees().await;
    for stream in [false, true] {
        let session = conversation(&under, stream).await;
        let notes: Vec<&Value> =
            session.calls().iter().map(|call| &call.meta.extra["prompt"]).collect();
        println!("{notes:?}");
        assert!(notes.iter().all(|note| note["mode"] == "token"), "{notes:?}");
        let counts: Vec<Option<u64>> = notes.iter().map(|note| note["pictures"].as_u64()).collect();
        assert_eq!(counts, [None, Some(1), Some(1), Some(3), Some(3)]);
        let hashes = verify_fingerprints(&session).unwrap();
        assert_eq!(hashes.checked, 5);
        let trajectory = build(&session, TrajectoryStrategy::PrefixMerging, None).trajectory;
        verify(&trajectory, &session).unwrap();
        assert_eq!(trajectory.tokens.trained, trajectory.tokens.sampled);
        let [trace] = trajectory.traces.as_slice() else { panic!("{:?}", trajectory.forks) };
        let mark = mark(&under);
        let own = scores(&under, trace, mark, &[STRIPES, UPRIGHT, STRIPES]).await;
        let (own, others) = (largest_difference(trace, &own), {
            let others = scores(&under, trace, mark, &[STRIPES, UPRIGHT, OTHER]).await;
            largest_difference(trace, &others)
        });
        println!("scored again: {own:.1e}, with another picture: {others:.1e}");
        let rounding = f64::from(ROUNDING);
        assert!(own < rounding, "{own}");
        assert!(others > 10.0 * rounding, "the picture was in context: {others}");
    }
}

/// Claude Code shows pictures as results of its tools.
#[tokio::test]
async fn promise_2_a_result_that_is_a_picture_stays_in_the_trace() {
    let under = EngineUnderTest::that_sees().await;
    let pins = SamplingPins { temperature: Some(1.0), ..SamplingPins::default() };
    let source = |data: &str| json!({"type": "base64", "media_type": "image/png", "data": data});
    let result = |id: &str, picture: &str| {
        let content = json!([text("Seen:"), {"type": "image", "source": source(picture)}]);
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": content},
        ]})
    };
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "look", "input": {}});
    let session = through_gateway(&under, &pins, async |base, secret| {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut history = vec![
            json!({"role": "user", "content": "Look."}),
            json!({"role": "assistant", "content": [call("1")]}),
            result("1", STRIPES),
        ];
        for turn in 0..2 {
            let body = json!({"model": "any", "max_tokens": 40, "messages": history});
            let sent = http.post(format!("{base}/v1/messages")).bearer_auth(secret).json(&body);
            let reply: Value = sent.send().await.unwrap().json().await.unwrap();
            let mut content = reply["content"].as_array().unwrap().clone();
            content.retain(|block| block["type"] == "text");
            history.push(json!({"role": "assistant", "content": content}));
            history.push(json!({"role": "user", "content": format!("Again {turn}.")}));
        }
    })
    .await;
    let call = &session.calls()[0];
    let theirs = rendered(&under, session.messages(call, 0)).await;
    assert_eq!(theirs, session.prompt_ids(call).unwrap());
    let trajectory = build(&session, TrajectoryStrategy::PrefixMerging, None).trajectory;
    verify(&trajectory, &session).unwrap();
    let [trace] = trajectory.traces.as_slice() else { panic!("{:?}", trajectory.forks) };
    let own = scores(&under, trace, mark(&under), &[STRIPES]).await;
    assert!(largest_difference(trace, &own) < f64::from(ROUNDING));
}

/// The prompt that the engine makes of the same messages is the one that was sampled behind.
#[tokio::test]
async fn promise_2_a_picture_stands_where_the_engine_puts_it() {
    let under = EngineUnderTest::that_sees().await;
    let session = conversation(&under, false).await;
    let call = &session.calls()[1];
    let theirs = rendered(&under, session.messages(call, 0)).await;
    let first = &session.calls()[0];
    let before = [session.prompt_ids(first).unwrap(), session.sampled_ids(first).unwrap()].concat();
    let ours = session.prompt_ids(call).unwrap();
    let tail = &ours[before.len()..];
    assert!(theirs.ends_with(tail), "{theirs:?} {tail:?}");
}

/// What stands for a picture, as a start finds it out.
fn mark(under: &EngineUnderTest) -> u32 {
    let prompts = under.engine.token_mode().unwrap().prompts();
    let [mark] = prompts.tokenizer().encode("<|image_pad|>").unwrap()[..] else { panic!() };
    mark
}
