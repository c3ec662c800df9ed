//! All trajectories of a task, streamed from the blob store one after the other.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Params, PathId};
use crate::routes::blobs::hash_of;
use crate::routes::sessions::{ARRAYS, TRAJECTORY, artifact};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use http::{HeaderMap, header};
use polar_blobs::{BlobError, BlobHash, BlobStore};
use polar_types::{ErrorClass, SessionInfo, SessionStatus, TaskId, Trajectory};
use serde::Deserialize;
use std::sync::Arc;

/// How, and of which sessions.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TrajectoryParams {
    /// `json` for an array, `jsonl` for one per line, `safetensors` for arrays of tokens. The
    /// header `Accept` says the same.
    #[param(inline)]
    format: Option<Format>,
    /// Only of sessions that ended so; several with commas, for example
    /// `completed,timed_out`.
    status: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Json,
    Jsonl,
    Safetensors,
}

impl Format {
    pub(crate) fn asked(params: Option<Self>, headers: &HeaderMap) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let lines = ["application/jsonl", "application/x-ndjson", "application/x-jsonlines"];
        match (params, accept) {
            (Some(format), _) => format,
            (None, Some(accept)) if accept.contains("octet-stream") => Self::Safetensors,
            (None, Some(accept)) if lines.iter().any(|kind| accept.contains(kind)) => Self::Jsonl,
            (None, _) => Self::Json,
        }
    }

    /// Name of the file that has it.
    fn artifact(self) -> &'static str {
        match self {
            Self::Safetensors => ARRAYS,
            Self::Json | Self::Jsonl => TRAJECTORY,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Jsonl => "application/jsonl",
            Self::Safetensors => "application/octet-stream",
        }
    }
}

/// The trajectories of a task's ended sessions, by sample index. Sessions that have not
/// ended, or have none, are left out.
#[utoipa::path(get, path = "/api/tasks/{id}/trajectories", tag = "tasks",
    params(("id" = String, Path), TrajectoryParams),
    responses(
        (status = 200, content(
            (Vec<Trajectory> = "application/json"),
            (Trajectory = "application/jsonl"),
            (Vec<u8> = "application/octet-stream"),
        )),
        (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody),
    ))]
pub(crate) async fn of_task(
    State(app): State<Arc<App>>,
    PathId(id): PathId<TaskId>,
    Params(params): Params<TrajectoryParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wanted = params.status.as_deref().map(statuses).transpose()?;
    let format = Format::asked(params.format, &headers);
    let mut blobs = Vec::new();
    for session in app.store.sessions(&id).await? {
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(&session.status))
            && let Some(hash) = trajectory_of(&session, format)?
        {
            // Found out here, where it can still be told in a status.
            if app.blobs.size(hash).await?.is_none() {
                let message = format!("the trajectory of session {} is gone", session.session_id);
                return Err(ApiError::new(ErrorClass::Internal, message));
            }
            blobs.push(hash);
        }
    }
    let body = Body::from_stream(joined(app.blobs.clone(), blobs, format));
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

fn statuses(text: &str) -> Result<Vec<SessionStatus>, ApiError> {
    text.split(',')
        .map(|word| {
            serde_json::from_value(serde_json::Value::String(word.trim().to_owned())).map_err(
                |error| ApiError::field("status", error.to_string(), r#""completed,timed_out""#),
            )
        })
        .collect()
}

fn trajectory_of(session: &SessionInfo, format: Format) -> Result<Option<BlobHash>, BlobError> {
    if !session.status.is_terminal() {
        return Ok(None);
    }
    session.report().and_then(|report| artifact(report, format.artifact())).map(hash_of).transpose()
}

/// The blobs with what belongs between them. Memory does not grow with their number or size.
pub(crate) fn joined(
    blobs: BlobStore,
    hashes: Vec<BlobHash>,
    format: Format,
) -> BoxStream<'static, Result<Bytes, BlobError>> {
    let last = hashes.len().saturating_sub(1);
    let documents = stream::iter(hashes.into_iter().enumerate()).then(move |(index, hash)| {
        let blobs = blobs.clone();
        async move {
            let document = blobs.get(hash, None).await?.bytes;
            let after: &'static [u8] = match format {
                Format::Jsonl => b"\n",
                Format::Json if index < last => b",",
                Format::Json | Format::Safetensors => b"",
            };
            let after = stream::iter([Ok(Bytes::from_static(after))]);
            Ok(document.map_ok(move |bytes| on_one_line(bytes, format)).chain(after))
        }
    });
    let documents = documents.try_flatten();
    let fixed = |bytes: &'static [u8]| stream::iter([Ok(Bytes::from_static(bytes))]);
    match format {
        Format::Jsonl | Format::Safetensors => documents.boxed(),
        Format::Json => fixed(b"[").chain(documents).chain(fixed(b"]")).boxed(),
    }
}

/// In JSON a line break can only stand between tokens, where a space does as well.
fn on_one_line(bytes: Bytes, format: Format) -> Bytes {
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if format != Format::Jsonl || !bytes.iter().any(breaks) {
        return bytes;
    }
    bytes.iter().map(|byte| if breaks(byte) { b' ' } else { *byte }).collect()
}
