//! Reasoning items of the history.
//!
//! A reply's reasoning carries its text once more in the field that clients must send back
//! unread. So it comes back as it was sampled also from clients who keep only that field, or
//! who trim what they show.

use crate::Block;
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::ObjectFields;
use crate::loss::LossKind;
use polar_wire::json::Node;

/// Begins the opaque field of reasoning that Polar has told; the reasoning follows.
const OURS: &str = "polar-reasoning:";

/// The opaque field for some reasoning.
pub(super) fn sealed(text: &str) -> String {
    format!("{OURS}{text}")
}

/// Reads a reasoning item. None when it says nothing.
pub(super) fn block(
    fields: &mut ObjectFields<'_, '_>,
    losses: &mut Losses,
) -> Result<Option<Block>, DecodeError> {
    let at = fields.at;
    let content_at = at.field("content");
    let content = match fields.remove("content") {
        Some(parts) => text(parts, "reasoning_text", &content_at, losses)?,
        None => None,
    };
    let summary_at = at.field("summary");
    let summary = match fields.remove("summary") {
        Some(parts) => text(parts, "summary_text", &summary_at, losses)?,
        None => None,
    };
    let sealed = fields.optional_string("encrypted_content")?.filter(|text| !text.is_empty());
    if let Some(sampled) = sealed.as_deref().and_then(|sealed| sealed.strip_prefix(OURS)) {
        for (shown, at) in [(&content, &content_at), (&summary, &summary_at)] {
            if shown.as_deref().is_some_and(|shown| shown != sampled) {
                losses.note(LossKind::ReasoningEditIgnored, at);
            }
        }
        return Ok(Some(Block::Reasoning { text: sampled.to_owned(), signature: None }));
    }
    if content.is_some() && summary.is_some() && content != summary {
        losses.note(LossKind::ReasoningSummaryDropped, &summary_at);
    }
    let shown = content.or(summary);
    if sealed.is_some() && shown.is_none() {
        losses.note(LossKind::EncryptedReasoningDropped, &at.field("encrypted_content"));
        return Ok(None);
    }
    Ok(shown.map(|text| Block::Reasoning { text, signature: sealed }))
}

/// The text of all parts, as one.
fn text(
    parts: Node<'_>,
    kind: &str,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Option<String>, DecodeError> {
    if parts.is_null() {
        return Ok(None);
    }
    let mut texts = Vec::new();
    for (i, part) in at.list(parts)?.into_iter().enumerate() {
        let at = at.index(i);
        let mut fields = at.fields(part)?;
        let said = fields.string("type")?;
        if said != kind && said != "text" {
            let at = at.field("type");
            return Err(at.error(format!("is {said:?}"), format!("send {kind:?}")));
        }
        texts.push(fields.string("text")?);
        fields.note_unread(losses);
    }
    if texts.len() > 1 {
        losses.note(LossKind::TextBlocksJoined, at);
    }
    Ok(Some(texts.join("\n\n")).filter(|text| !text.is_empty()))
}
