//! `generationConfig`: how to sample, and what form the reply has.

use super::decode::named_value;
use super::schema::json_schema;
use crate::Request;
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::camel_case;
use crate::loss::LossKind;
use polar_wire::json::Node;
use serde_json::{Value, json};

/// Fields that would change what kind of reply there is.
const REFUSED: &[(&str, &str)] = &[
    ("audioTranscriptionConfig", "leave it out; only text is generated"),
    ("imageConfig", "leave it out; only text is generated"),
    ("logprobs", "leave it out: logprobs go into the training record, not to the harness"),
    ("speechConfig", "leave it out; only text is generated"),
];

pub(super) fn generation_config(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    let mut form = ReplyForm::default();
    for (name, value) in at.object(value)? {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        let sampling = &mut request.sampling;
        match camel_case(&name).as_ref() {
            "temperature" => sampling.temperature = Some(at.temperature(&value)?),
            "topP" => sampling.top_p = Some(at.share(&value)?),
            "topK" => sampling.top_k = Some(whole_number(&value, &at)?),
            "maxOutputTokens" => sampling.max_tokens = Some(at.count(&value)?),
            "seed" => sampling.seed = Some(at.integer(&value)?),
            "stopSequences" => sampling.stop = at.stop_strings(value)?,
            "presencePenalty" => carry("presence_penalty", &value, &at, request)?,
            "frequencyPenalty" => carry("frequency_penalty", &value, &at, request)?,
            "candidateCount" => one_candidate(&value, &at)?,
            "responseModalities" => text_only(value, &at)?,
            "responseLogprobs" if !at.bool(&value)? => {}
            "responseLogprobs" => {
                return Err(at.error(
                    "cannot be answered: logprobs go into the training record, not to the harness",
                    "leave it out",
                ));
            }
            "responseMimeType" => form.is_json = Some(is_json(value, &at)?),
            "responseSchema" => form.schema(json_schema(value, &at)?, &at)?,
            "responseJsonSchema" => form.schema(value.into_value(), &at)?,
            "thinkingConfig" => thinking_config(value, &at, request, losses)?,
            camel => {
                if let Some((_, mend)) = REFUSED.iter().find(|(field, _)| *field == camel) {
                    return Err(at.error("is not supported", *mend));
                }
                losses.note(LossKind::UnknownFieldIgnored, &at);
                request.unsent.insert(name.into_owned(), value.into_value());
            }
        }
    }
    if let Some(response_format) = form.response_format(at)? {
        request.rest.insert("response_format".into(), response_format);
    }
    Ok(())
}

/// This API has it as a float.
fn whole_number(value: &Node<'_>, at: &Path<'_>) -> Result<i64, DecodeError> {
    let number = at.number(value)?;
    if number.fract() == 0.0 && number.abs() < f64::from(i32::MAX) {
        return Ok(number as i64);
    }
    Err(at.error(format!("is {value}"), "send a whole number"))
}

fn carry(
    name: &str,
    value: &Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
) -> Result<(), DecodeError> {
    request.rest.insert(name.to_owned(), json!(at.number(value)?));
    Ok(())
}

fn one_candidate(value: &Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
    match at.count(value) {
        Ok(1) => Ok(()),
        _ => Err(at.error(
            format!("is {value}, but a call has one reply"),
            "send 1 or leave it out, and ask for more samples of the task instead",
        )),
    }
}

fn text_only(value: Node<'_>, at: &Path<'_>) -> Result<(), DecodeError> {
    for (i, item) in at.list(value)?.iter().enumerate() {
        if !item.is_text("TEXT") {
            return Err(at.index(i).error(format!("is {item}"), "send [\"TEXT\"] or leave it out"));
        }
    }
    Ok(())
}

fn is_json(value: Node<'_>, at: &Path<'_>) -> Result<bool, DecodeError> {
    match at.string(value)?.as_str() {
        "application/json" => Ok(true),
        "" | "text/plain" => Ok(false),
        other => {
            Err(at.error(format!("is {other:?}"), "send \"application/json\" or \"text/plain\""))
        }
    }
}

/// What the text of the reply has to be.
#[derive(Default)]
struct ReplyForm {
    is_json: Option<bool>,
    schema: Option<Value>,
}

impl ReplyForm {
    fn schema(&mut self, schema: Value, at: &Path<'_>) -> Result<(), DecodeError> {
        match self.schema.replace(schema) {
            None => Ok(()),
            Some(_) => Err(at.error("is a second schema", "send one of them")),
        }
    }

    /// In the words engines know.
    fn response_format(self, at: &Path<'_>) -> Result<Option<Value>, DecodeError> {
        match self {
            Self { is_json: Some(true), schema: None } => Ok(Some(json!({"type": "json_object"}))),
            Self { is_json: Some(true), schema: Some(schema) } => Ok(Some(json!({
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": schema, "strict": true},
            }))),
            Self { schema: Some(_), .. } => Err(at
                .field("responseMimeType")
                .error("does not fit a schema", "send \"application/json\"")),
            Self { schema: None, .. } => Ok(None),
        }
    }
}

fn thinking_config(
    value: Node<'_>,
    at: &Path<'_>,
    request: &mut Request,
    losses: &mut Losses,
) -> Result<(), DecodeError> {
    for (name, value) in at.object(value)? {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        match camel_case(&name).as_ref() {
            "includeThoughts" => request.google.include_thoughts = at.bool(&value)?,
            camel => {
                match camel {
                    "thinkingBudget" => losses.note(LossKind::ThinkingConfigIgnored, &at),
                    "thinkingLevel" => {
                        let Some(level) = named_value(value, &at)? else { continue };
                        losses.note(LossKind::ThinkingConfigIgnored, &at);
                        request.unsent.insert(name.into_owned(), Value::String(level));
                        continue;
                    }
                    _ => losses.note(LossKind::UnknownFieldIgnored, &at),
                }
                request.unsent.insert(name.into_owned(), value.into_value());
            }
        }
    }
    Ok(())
}
