//! Works out again the hashes that records carry.

use super::Violation;
use polar_record::{CallFingerprint, ChainHash, RecordedCall, RecordedSession};
use polar_types::CallId;
use std::collections::HashMap;

/// How many calls carry hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FingerprintCounts {
    /// Calls whose hash is that of their ids.
    pub checked: u64,
    /// Calls with a hash whose ids were not kept, so that nothing can be worked out.
    pub unchecked: u64,
    /// Calls without one.
    pub absent: u64,
}

/// Checks the hashes of a session's records against their ids. Independent of the gateway that
/// made them, but for the definition of a step.
pub fn verify_fingerprints(session: &RecordedSession) -> Result<FingerprintCounts, Violation> {
    let mut counts = FingerprintCounts::default();
    let mut earlier: HashMap<&CallId, &RecordedCall> = HashMap::new();
    for call in session.calls() {
        match &call.meta.fingerprint {
            None => counts.absent += 1,
            Some(fingerprint) => match worked_out(session, &earlier, call, fingerprint)? {
                None => counts.unchecked += 1,
                Some(chain) if chain == fingerprint.chain => counts.checked += 1,
                Some(_) => return Err(Violation::Chain { call: call.meta.call_id.clone() }),
            },
        }
        earlier.insert(&call.meta.call_id, call);
    }
    Ok(counts)
}

/// The chain of a call by its ids; nothing where they are not all there.
fn worked_out(
    session: &RecordedSession,
    earlier: &HashMap<&CallId, &RecordedCall>,
    call: &RecordedCall,
    fingerprint: &CallFingerprint,
) -> Result<Option<ChainHash>, Violation> {
    let tokens = session.tokens();
    let (Some(prompt), Some(end)) = (call.prompt_end(), call.sequence_end()) else {
        return Ok(None);
    };
    let sampled = tokens.path(end, prompt.depth());
    let Some(extends) = &fingerprint.extends else {
        return Ok(Some(ChainHash::step(None, &tokens.path(prompt, 0), &sampled)));
    };
    let wrong = || Violation::Extends { call: call.meta.call_id.clone(), extends: extends.clone() };
    let parent = earlier.get(extends).ok_or_else(wrong)?;
    let before = parent.meta.fingerprint.as_ref().ok_or_else(wrong)?;
    let Some(from) = parent.sequence_end() else { return Ok(None) };
    let is_extended = tokens.shared_depth(from, prompt) == from.depth();
    if !is_extended || before.tokenizer != fingerprint.tokenizer {
        return Err(wrong());
    }
    let tail = tokens.path(prompt, from.depth());
    Ok(Some(ChainHash::step(Some(&before.chain), &tail, &sampled)))
}
