//! A call while it runs: what has been sampled so far, and its record in the end.

use crate::bodies::Held;
use crate::outage::Patience;
use crate::pool::Left;
use crate::prompt::Prompt;
use jiff::Timestamp;
use polar_convo::{
    ApiError, Dialect, Loss, Reply, ReplyEvent, Request, ToolChoice, chat_tool_choice,
    reply_message,
};
use polar_engine::{EngineEnd, EngineInfo};
use polar_record::{CallMeta, CallRecord, ENGINE};
use polar_types::CallId;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Where the record of a call says that it had to wait for its engine.
pub const ENGINE_OUTAGE: &str = "engine_outage";
/// Where it says which engines its session left for it, and why.
pub const ENGINE_MOVES: &str = "engine_moves";

/// Everything known of a call that has not ended.
pub(crate) struct OpenCall {
    dialect: Dialect,
    stream: bool,
    model: String,
    started_at: Timestamp,
    started: Instant,
    messages: Vec<Value>,
    tools: Option<Value>,
    sampling: Value,
    /// Most tokens the request or its pins ask for.
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    logprob_mode: String,
    extra: Map<String, Value>,
    headers: BTreeMap<String, String>,
    /// How the prompt was made, in token mode.
    planned: Arc<OnceLock<Prompt>>,
    prompt_ids: Option<Vec<u32>>,
    sampled_ids: Vec<u32>,
    logprobs: Vec<Option<f32>>,
    pub(crate) reply: Reply,
    /// Counts what was sent for it as held until it ends.
    held: Option<Held>,
}

impl OpenCall {
    /// `messages` and `tools` are the request's in Chat's terms. `headers` says who made the call,
    /// `normalised` how often which rule found something.
    pub(crate) fn new(
        request: &Request,
        messages: Vec<Value>,
        tools: Vec<Value>,
        engine: &EngineInfo,
        headers: BTreeMap<String, String>,
        normalised: &BTreeMap<String, u64>,
    ) -> Self {
        let mut extra = Map::new();
        if !request.losses.is_empty() {
            extra.insert("losses".to_owned(), json!(request.losses));
        }
        for (name, done) in [
            ("restored", json!(request.history.restored)),
            ("edited", json!(request.history.edited)),
        ] {
            if done.as_object().is_some_and(|done| !done.is_empty()) {
                extra.insert(name.to_owned(), done);
            }
        }
        if !normalised.is_empty() {
            extra.insert("normalised".to_owned(), json!(normalised));
        }
        // A forced choice constrains what is sampled, which the logprobs may not show.
        if let Some(choice) = request.tool_choice.as_ref().filter(|c| **c != ToolChoice::Auto) {
            extra.insert("tool_choice".to_owned(), chat_tool_choice(choice));
        }
        // What else the engine was told, and what it was not told.
        for (name, fields) in [("carried", &request.rest), ("unsent", &request.unsent)] {
            if !fields.is_empty() {
                extra.insert(name.to_owned(), json!(fields));
            }
        }
        Self {
            dialect: request.dialect,
            stream: request.stream,
            model: request.model.clone(),
            started_at: Timestamp::now(),
            started: Instant::now(),
            messages,
            tools: (!tools.is_empty()).then_some(Value::Array(tools)),
            sampling: serde_json::to_value(&request.sampling).unwrap_or_default(),
            max_tokens: request.sampling.max_tokens,
            context_window: engine.context_window,
            logprob_mode: engine.logprob_mode.clone(),
            extra,
            headers,
            planned: Arc::default(),
            prompt_ids: None,
            sampled_ids: Vec::new(),
            logprobs: Vec::new(),
            reply: Reply::default(),
            held: None,
        }
    }

    /// Notes the id by which the engine knows the request, as its own logs show it.
    pub(crate) fn asked_as(mut self, request_id: &str) -> Self {
        self.extra.insert("engine_request_id".to_owned(), request_id.into());
        self
    }

    /// Keeps what its body counts for.
    pub(crate) fn holding(mut self, held: Held) -> Self {
        self.held = Some(held);
        self
    }

    pub(crate) fn prompt(&mut self, ids: Vec<u32>) {
        self.prompt_ids = Some(ids);
    }

    /// Notes how the prompt was made.
    pub(crate) fn prompted_by(&mut self, planned: &Arc<OnceLock<Prompt>>) {
        if let Some(prompt) = planned.get() {
            self.extra.insert("prompt".to_owned(), prompt.note());
        }
        self.planned = Arc::clone(planned);
    }

    /// The prompt of a call that ended before the engine told it, if it was made here. With pictures
    /// it would have been longer.
    fn note_planned(&mut self) {
        if let (None, Some(Prompt::Ids { plan, pictures })) = (&self.prompt_ids, self.planned.get())
            && pictures.is_empty()
        {
            self.prompt_ids = Some(plan.ids.clone());
        }
    }

    /// Notes which engine it is asked of.
    pub(crate) fn asked_of(&mut self, engine: &EngineInfo) {
        self.context_window = engine.context_window;
        self.logprob_mode.clone_from(&engine.logprob_mode);
        self.extra.insert(ENGINE.to_owned(), engine.url.as_str().into());
    }

    /// Notes that its session left an engine.
    pub(crate) fn moved(&mut self, left: &Left) {
        let moves = self.extra.entry(ENGINE_MOVES).or_insert_with(|| json!([]));
        if let Some(moves) = moves.as_array_mut() {
            moves.push(json!({"from": left.url, "why": left.why}));
        }
    }

    /// Notes that it waits for the engine, or has waited. Left open, it waited until its end.
    pub(crate) fn waited_for_engine(&mut self, patience: &Patience, is_over: bool) {
        let (Some((since, waited)), Some(outage)) = (patience.waited, &patience.outage) else {
            return;
        };
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let note = json!({
            "since_ms": since.as_millisecond(), "waited_ms": waited_ms, "is_over": is_over,
            "reason": outage.to_string(),
        });
        self.extra.insert(ENGINE_OUTAGE.to_owned(), note);
    }

    pub(crate) fn chunk(&mut self, events: &[ReplyEvent], ids: &[u32], logprobs: &[Option<f32>]) {
        for event in events {
            self.reply.push(event);
        }
        self.sampled_ids.extend_from_slice(ids);
        self.logprobs.extend_from_slice(logprobs);
    }

    /// The record of a call that the engine ended.
    pub(crate) fn into_record(self, end: &EngineEnd) -> CallRecord {
        let counted = end.usage.completion_tokens;
        let sampled = (self.sampled_ids.len() as u64, counted);
        let limits = (self.max_tokens, self.context_window);
        let mut record = self.into_unended_record();
        // Fewer or more ids than the engine counted means that the sequence is not the
        // sampled one. Training on it would be a guess, so the ids count as missing.
        if sampled.0 != sampled.1 {
            leave_out_sampled(&mut record, "id_count_mismatch", sampled);
        }
        // And neither is a prompt of another length the context they were sampled in. It has at
        // least one token, so that 0 is no count.
        let prompt = record.prompt_ids.as_ref().map_or(0, |ids| ids.len() as u64);
        let prompt = (prompt, end.usage.prompt_tokens);
        if prompt.0 != prompt.1 && prompt.0 != 0 && prompt.1 != 0 {
            record.prompt_ids = None;
            leave_out_sampled(&mut record, "prompt_id_count_mismatch", prompt);
        }
        record.meta.sampled_tokens = counted;
        record.meta.prompt_tokens = end.usage.prompt_tokens;
        record.meta.cached_tokens = end.usage.cached_tokens;
        end.finish.as_str().clone_into(&mut record.meta.finish_reason);
        record.meta.engine_finish.clone_from(&end.engine_finish);
        record.meta.weight_versions.clone_from(&end.weight_versions);
        record.meta.extra.extend(end.extra.clone());
        if !end.arrays.is_empty() {
            record.meta.extra.insert("arrays".to_owned(), json!(end.arrays));
        }
        note_lowered_limit(&mut record.meta, limits);
        record
    }

    /// The record of a call that ended because nobody waits for it any more.
    pub(crate) fn into_cancelled_record(mut self, why: &str) -> CallRecord {
        self.note_planned();
        let mut record = self.into_unended_record();
        "cancelled".clone_into(&mut record.meta.finish_reason);
        record.meta.error = Some(why.to_owned());
        record
    }

    /// The record of a call that failed.
    pub(crate) fn into_failed_record(mut self, error: &ApiError) -> CallRecord {
        // An engine that refused the call had no such prompt.
        if !self.sampled_ids.is_empty() {
            self.note_planned();
        }
        let mut record = self.into_unended_record();
        "error".clone_into(&mut record.meta.finish_reason);
        record.meta.error = Some(error.message.clone());
        if let Some(kind) = error.loss {
            let losses = record.meta.extra.entry("losses").or_insert_with(|| json!([]));
            if let Some(losses) = losses.as_array_mut() {
                losses.push(json!(Loss { kind, field: String::new(), count: 1 }));
            }
        }
        // Tells a prompt that was rightly refused from an engine that failed.
        record.meta.extra.insert("error_class".to_owned(), json!(error.class.label()));
        record
    }

    fn into_unended_record(mut self) -> CallRecord {
        let malformed = self.reply.malformed_calls();
        if !malformed.is_empty() {
            self.extra.insert("malformed_calls".to_owned(), json!(malformed));
        }
        CallRecord {
            meta: CallMeta {
                // The journal numbers its calls; this is replaced when it is appended.
                call_id: CallId::of_index(0),
                dialect: self.dialect.as_str().to_owned(),
                stream: self.stream,
                model: self.model,
                started_at_ms: self.started_at.as_millisecond(),
                duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
                sampled_tokens: self.sampled_ids.len() as u64,
                prompt_tokens: self.prompt_ids.as_ref().map_or(0, |ids| ids.len() as u64),
                cached_tokens: None,
                finish_reason: String::new(),
                engine_finish: String::new(),
                weight_versions: Vec::new(),
                sampling: self.sampling,
                logprob_mode: self.logprob_mode,
                extra: self.extra,
                error: None,
                headers: self.headers,
                fingerprint: None,
            },
            messages: self.messages,
            tools: self.tools,
            reply: reply_message(&self.reply),
            // An empty reply of a call whose engine gives ids is an empty list, not a
            // missing one.
            sampled_ids: self.prompt_ids.is_some().then_some(self.sampled_ids),
            logprobs: if self.prompt_ids.is_some() { self.logprobs } else { Vec::new() },
            prompt_ids: self.prompt_ids,
        }
    }
}

/// Takes out ids that are not what was sampled, and notes by what it was found out.
fn leave_out_sampled(record: &mut CallRecord, why: &str, (ids, counted): (u64, u64)) {
    record.sampled_ids = None;
    record.logprobs = Vec::new();
    record.meta.extra.insert(why.to_owned(), json!({"ids": ids, "counted": counted}));
}

/// Puts the limit that was in force in the place of one that does not fit beside the
/// prompt. The engine, or the adapter before it, has lowered it to what is left.
fn note_lowered_limit(meta: &mut CallMeta, limits: (Option<u64>, Option<u64>)) {
    let (Some(asked), Some(window)) = limits else { return };
    let room = window.saturating_sub(meta.prompt_tokens);
    if meta.prompt_tokens == 0 || asked <= room {
        return;
    }
    if let Value::Object(sampling) = &mut meta.sampling {
        sampling.insert("max_tokens".to_owned(), room.into());
        meta.extra.insert("max_tokens_asked".to_owned(), asked.into());
    }
}
