//! Counts what did not reach the engine as it was sent, from what the records say of each call.

use polar_record::RecordedSession;
use polar_types::TranslationCounts;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Calls by what happened to them. A history is sent again with every call, so that counting
/// fields instead of calls would grow with the square of the turns.
pub(crate) fn counts(session: &RecordedSession) -> TranslationCounts {
    let mut counts = TranslationCounts::default();
    for call in session.calls() {
        let said = |name: &str| call.meta.extra.get(name);
        let losses = said("losses").and_then(Value::as_array).into_iter().flatten();
        let kinds: BTreeSet<_> = losses.filter_map(|loss| loss["kind"].as_str()).collect();
        count(&mut counts.losses, kinds);
        for (counts, name) in [
            (&mut counts.restored, "restored"),
            (&mut counts.edited, "edited"),
            (&mut counts.normalised, "normalised"),
        ] {
            let parts = said(name).and_then(Value::as_object).into_iter().flatten();
            count(counts, parts.map(|(part, _)| part.as_str()));
        }
    }
    counts
}

fn count<'a>(counts: &mut BTreeMap<String, u32>, names: impl IntoIterator<Item = &'a str>) {
    for name in names {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
}
