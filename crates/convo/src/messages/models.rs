//! The model list in the shape of Anthropic's API.

use crate::models::ModelInfo;
use polar_wire::messages::{Model, ModelList};
use polar_wire::sse::write_json;

pub(crate) fn write_list(models: &[ModelInfo], out: &mut Vec<u8>) {
    let list = ModelList {
        data: models.iter().map(model).collect(),
        has_more: false,
        first_id: models.first().map(|model| model.id.as_str()),
        last_id: models.last().map(|model| model.id.as_str()),
    };
    write_json(out, &list);
}

pub(crate) fn write_one(info: &ModelInfo, out: &mut Vec<u8>) {
    write_json(out, &model(info));
}

fn model(info: &ModelInfo) -> Model<'_> {
    Model {
        kind: "model",
        id: &info.id,
        display_name: &info.id,
        created_at: "1970-01-01T00:00:00Z",
        max_input_tokens: info.context_window,
    }
}
