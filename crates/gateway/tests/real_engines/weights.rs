//! New weights under 64 calls of a real engine. Its own word on which weights sampled which token is
//! held against what those weights, loaded again, make of the same tokens.

use crate::client::Harness;
use crate::conversations::{ROUNDING, Spread, through_gateway};
use crate::engine_under_test::{EngineUnderTest, model_folder};
use crate::faults::{until_busy, until_running};
use futures_util::future::join_all;
use polar_convo::Dialect;
use polar_engine::{CONTINUED, EngineKind};
use polar_record::{RecordedCall, RecordedSession};
use polar_types::{
    SamplingPins, UpdateMode, WeightSource, WeightSpan, WeightState, WeightUpdateRequest,
};
use serde_json::Value;
use std::fs;
use std::path::Path;

const CALLS: usize = 64;
/// Enough for the first of them to be under way when weights come.
const TOKENS: u64 = 400;
/// Calls of two versions whose tokens are all scored again.
const SCORED: usize = 6;

pub(crate) async fn change_under_calls(kind: EngineKind, mode: UpdateMode) {
    let under = EngineUnderTest::in_token_mode(kind).await;
    let first = format!("{}-first", mode.as_str());
    let (other, second) = (tempfile::tempdir().unwrap(), format!("{}-second", mode.as_str()));
    with_another_head(other.path());
    bring(&under, &first, &model_folder(), UpdateMode::Drain).await;
    until_running(&under, 0).await;
    let pins = SamplingPins { temperature: Some(1.0), ..SamplingPins::default() };
    let session = through_gateway(&under, &pins, async |base, secret| {
        let calls = (0..CALLS).map(|number| async move {
            let mut harness = Harness::new(base, secret, Dialect::Chat, number % 2 == 0);
            harness.limit = TOKENS;
            harness.rest.insert("ignore_eos".to_owned(), true.into());
            assert!(harness.turn(&format!("Say hello to {number}.")).await, "a call failed");
        });
        let change = async {
            until_busy(&under).await;
            bring(&under, &second, other.path(), mode).await;
        };
        futures_util::join!(join_all(calls), change);
    });
    let session = session.await;
    let mut told = under.engine.weights().unwrap().told();
    let told = told.borrow_and_update().engine.clone();
    let calls: Vec<&RecordedCall> = session.calls().iter().collect();
    assert_eq!(calls.len(), CALLS);
    for call in &calls {
        assert_eq!(call.meta.error, None);
        assert_eq!(call.meta.finish_reason, "length");
        let spans = &call.meta.weight_versions;
        assert_eq!(spans.last().unwrap().end, TOKENS, "{spans:?}");
        let known = |span: &WeightSpan| {
            let version = span.version.as_deref();
            version == Some(&first) || version == Some(&second)
        };
        assert!(spans.iter().all(known), "{spans:?}");
    }
    let mixed: Vec<&RecordedCall> =
        calls.iter().copied().filter(|call| call.meta.weight_versions.len() > 1).collect();
    let continued = calls.iter().filter(|call| call.meta.extra.contains_key(CONTINUED)).count();
    println!(
        "{} {}: calls held up for {:.2} s, {} of {CALLS} under way, {} by both weights, \
         {continued} sampled on, {} tokens wasted",
        kind.name(),
        mode.as_str(),
        told.held_seconds.unwrap(),
        told.calls.in_flight,
        mixed.len(),
        told.calls.tokens_wasted,
    );
    assert_eq!(told.calls.tokens_wasted, 0);
    match mode {
        UpdateMode::Drain => assert!(mixed.is_empty()),
        UpdateMode::Pause => assert!(!mixed.is_empty() && continued == 0),
        UpdateMode::Continue => assert!(!mixed.is_empty() && continued >= mixed.len()),
    }
    let scored = &mixed[..mixed.len().min(SCORED)];
    let by_second = scores(&under, &session, scored, &second).await;
    bring(&under, &format!("{first}-again"), &model_folder(), UpdateMode::Drain).await;
    let by_first = scores(&under, &session, scored, &first).await;
    let wrong = scores(&under, &session, scored, &second).await;
    println!(
        "  |Δlogprob| of its own weights: {:.2e} before, {:.2e} behind; of the others: {:.2e}",
        by_first.most, by_second.most, wrong.most
    );
    if !scored.is_empty() {
        assert!(wrong.most > 100.0 * ROUNDING, "the check sees no other weights");
        // In another order of additions: a reply was sampled beside others.
        assert!(by_first.most < 10.0 * ROUNDING && by_second.most < 10.0 * ROUNDING);
    }
    // As the other tests know it.
    bring(&under, "default", &model_folder(), UpdateMode::Drain).await;
}

async fn bring(under: &EngineUnderTest, version: &str, folder: &Path, mode: UpdateMode) {
    let weights = under.engine.weights().unwrap();
    let update = WeightUpdateRequest {
        version: version.to_owned(),
        source: WeightSource::Disk { path: folder.display().to_string() },
        mode,
        deadline_seconds: 250.0,
    };
    weights.bring_to(&update, false).await;
    let told = weights.told().borrow().engine.clone();
    assert_eq!(told.state, WeightState::Current, "{:?}", told.reason);
}

/// How far the tokens of one version are from what the weights now loaded make of them.
async fn scores(
    under: &EngineUnderTest,
    session: &RecordedSession,
    calls: &[&RecordedCall],
    version: &str,
) -> Spread {
    let mut spread = Spread::default();
    for call in calls {
        let prompt = session.prompt_ids(call).unwrap();
        let ids = [prompt.as_slice(), &session.sampled_ids(call).unwrap()].concat();
        let logprobs = session.record(call).logprobs;
        let scored = under.scores(&ids, prompt.len()).await;
        let spans = call.meta.weight_versions.iter();
        for span in spans.filter(|span| span.version.as_deref() == Some(version)) {
            let place = span.start as usize..span.end as usize;
            let numbers = |all: &[Option<f32>]| -> Vec<f32> {
                all[place.clone()].iter().map(|logprob| logprob.unwrap()).collect()
            };
            spread.add(&numbers(&logprobs), &numbers(&scored));
        }
    }
    spread
}

/// The same model with the rows of its head one place further: a file of tensors begins with the
/// length of a table, then has the table.
fn with_another_head(folder: &Path) {
    for entry in fs::read_dir(model_folder()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|end| end == "json" || end == "jinja") {
            fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
    }
    let mut bytes = fs::read(model_folder().join("model.safetensors")).unwrap();
    let table = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + table]).unwrap();
    let head = &tensors["lm_head.weight"];
    let place = |index: usize| head["data_offsets"][index].as_u64().unwrap() as usize + 8 + table;
    let rows = head["shape"][0].as_u64().unwrap() as usize;
    let all = &mut bytes[place(0)..place(1)];
    all.rotate_right(all.len() / rows);
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}
