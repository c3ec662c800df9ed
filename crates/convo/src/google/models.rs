//! The model list and counts in the shape of Google's API.

use crate::models::ModelInfo;
use polar_wire::google::{Model, ModelList, TokenCount};
use polar_wire::sse::write_json;

pub(crate) fn write_list(models: &[ModelInfo], out: &mut Vec<u8>) {
    write_json(out, &ModelList { models: models.iter().map(model).collect() });
}

pub(crate) fn write_one(info: &ModelInfo, out: &mut Vec<u8>) {
    write_json(out, &model(info));
}

pub(crate) fn write_count(total_tokens: u64, out: &mut Vec<u8>) {
    write_json(out, &TokenCount { total_tokens });
}

fn model(info: &ModelInfo) -> Model<'_> {
    Model {
        name: format!("models/{}", info.id),
        version: "unknown",
        display_name: &info.id,
        input_token_limit: info.context_window,
        supported_generation_methods: &["generateContent", "countTokens"],
    }
}
