//! The model list in the shape of OpenAI's API.

use crate::models::ModelInfo;
use polar_wire::chat::{Model, ModelList};
use polar_wire::sse::write_json;

pub(crate) fn write_list(models: &[ModelInfo], out: &mut Vec<u8>) {
    write_json(out, &ModelList { object: "list", data: models.iter().map(model).collect() });
}

pub(crate) fn write_one(info: &ModelInfo, out: &mut Vec<u8>) {
    write_json(out, &model(info));
}

fn model(info: &ModelInfo) -> Model<'_> {
    Model {
        id: &info.id,
        object: "model",
        // Unknown; the epoch is what fits the field's type.
        created: 0,
        owned_by: "polar",
        max_model_len: info.context_window,
    }
}
