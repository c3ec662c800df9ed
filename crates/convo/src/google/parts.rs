//! The parts of a content, each read apart from what stands around it.

use super::signature::{decode_base64, encode_base64};
use crate::ImageSource;
use crate::decode::{DecodeError, Losses, Path};
use crate::fields::{ObjectFields, camel_case};
use crate::loss::LossKind;
use polar_wire::json::{Fields, Node};

/// A part as it was sent.
pub(super) struct Part<'n> {
    pub(super) data: Option<Data<'n>>,
    pub(super) thought: bool,
    pub(super) signature: Option<String>,
}

pub(super) enum Data<'n> {
    Text(String),
    Image(ImageSource),
    Call { id: Option<String>, name: String, args: Node<'n> },
    Response(Response),
}

/// The result of a call.
pub(super) struct Response {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) output: String,
    pub(super) images: Vec<ImageSource>,
    pub(super) is_error: bool,
}

pub(super) fn part<'n>(
    fields: Fields<'n>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Part<'n>, DecodeError> {
    let mut part = Part { data: None, thought: false, signature: None };
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        let at = at.field(&name);
        let data = match camel_case(&name).as_ref() {
            "text" => Data::Text(at.string(value)?),
            "inlineData" => Data::Image(inline_image(value, &at, losses)?),
            "fileData" => Data::Image(linked_image(value, &at, losses)?),
            "functionCall" => function_call(value, &at, losses)?,
            "functionResponse" => Data::Response(function_response(value, &at, losses)?),
            "thought" => {
                part.thought = at.bool(&value)?;
                continue;
            }
            "thoughtSignature" => {
                part.signature = Some(at.string(value)?);
                continue;
            }
            "executableCode" | "codeExecutionResult" | "toolCall" | "toolResponse" => {
                return Err(at.error(
                    "is of a tool that Google's servers run, and cannot be shown to this model",
                    "send text, inlineData, functionCall or functionResponse parts",
                ));
            }
            _ => {
                losses.note(LossKind::UnknownFieldIgnored, &at);
                continue;
            }
        };
        if part.data.replace(data).is_some() {
            return Err(at.error("is a second kind of data in one part", "send a part for each"));
        }
    }
    Ok(part)
}

/// Bytes within the request: an image, or what cannot be shown.
fn inline_image(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ImageSource, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let media_type = fields.required("mimeType", image_type)?;
    let data = fields.required("data", |data, at| standard_base64(at.string(data)?, at))?;
    fields.note_unread(losses);
    Ok(ImageSource::Base64 { media_type, data })
}

/// Clients write base64 in either alphabet; engines read one of them.
fn standard_base64(text: String, at: &Path<'_>) -> Result<String, DecodeError> {
    if !text.contains(['-', '_']) {
        return Ok(text);
    }
    let bytes = decode_base64(&text).ok_or_else(|| at.error("is not base64", "send base64"))?;
    Ok(encode_base64(&bytes))
}

fn linked_image(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<ImageSource, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let note_type = |value: Node<'_>, at: &Path<'_>| {
        // The engine looks for itself what it is.
        losses.note(LossKind::UnknownFieldIgnored, at);
        image_type(value, at)
    };
    fields.optional("mimeType", note_type)?;
    let address = fields.required("fileUri", |address, at| {
        let address = at.string(address)?;
        let on_the_web = address.starts_with("http://") || address.starts_with("https://");
        if !on_the_web || address.starts_with("https://generativelanguage.googleapis.com/") {
            return Err(at.error(
                format!("is {address:?}, which the engine cannot read"),
                "send the bytes as inlineData",
            ));
        }
        Ok(address)
    })?;
    fields.note_unread(losses);
    Ok(ImageSource::Url(address))
}

fn image_type(value: Node<'_>, at: &Path<'_>) -> Result<String, DecodeError> {
    let media_type = at.string(value)?;
    match media_type.starts_with("image/") {
        true => Ok(media_type),
        false => Err(at.error(
            format!("is {media_type:?}, which cannot be shown to this model"),
            "send images, and text as text parts",
        )),
    }
}

fn function_call<'n>(
    value: Node<'n>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Data<'n>, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let id = fields.optional_string("id")?.filter(|id| !id.is_empty());
    let name = fields.string("name")?;
    let args = fields.optional("args", |args, at| at.object(args))?;
    drop_will_continue(&mut fields);
    fields.note_unread(losses);
    Ok(Data::Call { id, name, args: Node::Object(args.unwrap_or_default()) })
}

/// Calls and results are always whole here.
fn drop_will_continue(fields: &mut ObjectFields<'_, '_>) {
    let name = "willContinue";
    if let Some(value) = fields.remove(name).filter(|value| *value != Node::Bool(false)) {
        fields.fields.push((name.into(), value));
    }
}

fn function_response(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Response, DecodeError> {
    let mut fields = at.fields_in_either_case(value)?;
    let id = fields.optional_string("id")?.filter(|id| !id.is_empty());
    let name = fields.string("name")?;
    let said = fields.optional("response", |response, at| {
        let (output, is_error) = output(response);
        if is_error {
            losses.note(LossKind::ToolErrorFlagDropped, &at.field("error"));
        }
        Ok((output, is_error))
    })?;
    let images = fields.optional("parts", |parts, at| images(parts, at, losses))?;
    drop_will_continue(&mut fields);
    fields.note_unread(losses);
    let (output, is_error) = said.unwrap_or_default();
    Ok(Response { id, name, output, images: images.unwrap_or_default(), is_error })
}

/// What a tool says, and whether it failed. `output` and `error` are the names that this API
/// gives them; with others the whole object is the output.
fn output(response: Node<'_>) -> (String, bool) {
    let mut fields = match response {
        Node::Object(fields) => fields,
        other => return (as_text(other), false),
    };
    if let [(name, _)] = fields.as_slice()
        && (name == "output" || name == "error")
    {
        let failed = name == "error";
        let said = fields.pop().map(|(_, value)| as_text(value)).unwrap_or_default();
        return (said, failed);
    }
    (Node::Object(fields).to_string(), false)
}

fn as_text(value: Node<'_>) -> String {
    match value {
        Node::Text(text) => text.into_owned(),
        Node::Null => String::new(),
        other => other.to_string(),
    }
}

fn images(
    value: Node<'_>,
    at: &Path<'_>,
    losses: &mut Losses,
) -> Result<Vec<ImageSource>, DecodeError> {
    let mut images = Vec::new();
    for (i, item) in at.list(value)?.into_iter().enumerate() {
        let at = at.index(i);
        match part(at.object(item)?, &at, losses)?.data {
            Some(Data::Image(image)) => images.push(image),
            None => {}
            Some(_) => return Err(at.error("is not an image", "send text in `response`")),
        }
    }
    Ok(images)
}
