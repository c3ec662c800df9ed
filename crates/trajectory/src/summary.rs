//! Calls as lists of them show.

use polar_record::{ENGINE, RecordedSession};
use polar_types::{CallOrigin, CallSummary, Trace};

/// All calls of a session. `origins` says who made each, `trace_of` which trace it went to.
pub(crate) fn summaries<'a>(
    session: &RecordedSession,
    origins: &[CallOrigin],
    trace_of: impl Fn(u32) -> Option<u32>,
    trace: impl Fn(u32) -> &'a Trace,
) -> Vec<CallSummary> {
    let calls = session.calls().iter().zip(origins).zip(0..);
    calls
        .map(|((call, origin), index)| {
            let meta = &call.meta;
            let number = trace_of(index);
            let begun =
                number.map(&trace).filter(|trace| trace.calls.first() == Some(&meta.call_id));
            CallSummary {
                call_id: meta.call_id.clone(),
                dialect: meta.dialect.clone(),
                origin: Some(origin.clone()),
                started_at: rfc3339(meta.started_at_ms),
                seconds: meta.duration_ms as f64 / 1000.0,
                engine: meta.extra.get(ENGINE).and_then(|url| url.as_str()).map(str::to_owned),
                prompt_tokens: call
                    .prompt_end()
                    .map_or(meta.prompt_tokens, |end| end.depth() as u64),
                sampled_tokens: call.sampled_tokens(),
                delivered: call.delivered,
                finish_reason: meta.finish_reason.clone(),
                trace: number,
                fork: begun.map(|trace| trace.lineage.fork.clone()),
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
