//! Calls as lists of them show.

use polar_record::RecordedSession;
use polar_types::{CallId, CallOrigin, CallSummary, ForkPoint};

/// All calls of a session. `origins` says who made each, `trace_of`
/// which trace it went to; `front` the first call of a
/// trace and why it is a trace of its own.
pub(crate) fn summaries<'a>(
    session: &RecordedSession,
    origins: &[CallOrigin],
    trace_of: &[Option<u32>],
    front: impl Fn(u32) -> (Option<&'a CallId>, &'a ForkPoint),
) -> Vec<CallSummary> {
    let calls = session.calls().iter().zip(origins).zip(trace_of);
    calls
        .map(|((call, origin), trace)| {
            let meta = &call.meta;
            let fork = trace.and_then(|number| {
                let (first, fork) = front(number);
                (first == Some(&meta.call_id)).then(|| fork.clone())
            });
            CallSummary {
                call_id: meta.call_id.clone(),
                dialect: meta.dialect.clone(),
                origin: Some(origin.clone()),
                started_at: rfc3339(meta.started_at_ms),
                seconds: meta.duration_ms as f64 / 1000.0,
                prompt_tokens: call
                    .prompt_end()
                    .map_or(meta.prompt_tokens, |end| end.depth() as u64),
                sampled_tokens: call.sampled_tokens(),
                delivered: call.delivered,
                finish_reason: meta.finish_reason.clone(),
                trace: *trace,
                fork,
                reply: session.reply(call),
                error: meta.error.clone(),
            }
        })
        .collect()
}

/// A time outside what a calendar can show is shown as the beginning of it.
fn rfc3339(unix_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default().to_string()
}
