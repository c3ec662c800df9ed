//! Uploading and reading blobs, streamed both ways.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{PathId, chunks};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use polar_blobs::{BlobError, BlobHash};
use polar_types::Artifact;
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// Where an artifact's bytes are.
pub(crate) fn hash_of(artifact: &Artifact) -> Result<BlobHash, BlobError> {
    artifact.sha256.parse()
}

/// Answer to an upload.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct StoredBlob {
    /// SHA-256 of its bytes in lower-case hex.
    sha256: String,
    /// Bytes.
    size: u64,
}

/// Uploads a blob under the SHA-256 of its bytes. Uploading it again is safe.
#[utoipa::path(put, path = "/api/blobs/{sha256}", tag = "nodes",
    params(("sha256" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = StoredBlob),
        (status = 413, body = ErrorBody),
        (status = 422, body = ErrorBody, description = "The bytes have another hash."),
    ))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    PathId(hash): PathId<BlobHash>,
    body: Body,
) -> Result<Json<StoredBlob>, ApiError> {
    let size = app.blobs.put(hash, chunks(body, app.config.body_idle)).await?;
    Ok(Json(StoredBlob { sha256: hash.to_string(), size }))
}

/// Reads a blob, or a part of it with `Range: bytes=from-to`.
#[utoipa::path(get, path = "/api/blobs/{sha256}", tag = "sessions",
    params(("sha256" = String, Path)),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = ErrorBody),
        (status = 416, body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    PathId(hash): PathId<BlobHash>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let size = app.blobs.size(hash).await?.ok_or(BlobError::NotFound(hash))?;
    let asked = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let range = asked.and_then(|text| byte_range(text, size));
    let part = range.is_some();
    let blob = app.blobs.get(hash, range).await?;
    let mut response = Body::from_stream(blob.bytes).into_response();
    let length = blob.range.end - blob.range.start;
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    answer.insert(header::ACCEPT_RANGES, http::HeaderValue::from_static("bytes"));
    answer.insert(header::CONTENT_LENGTH, length.into());
    if part {
        let last = blob.range.end.saturating_sub(1);
        let text = format!("bytes {}-{last}/{}", blob.range.start, blob.size);
        if let Ok(value) = text.parse() {
            answer.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// One range of RFC 9110. Anything else is ignored, as the RFC allows.
fn byte_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix: u64 = last.parse().ok()?;
        return Some(size.saturating_sub(suffix)..size);
    }
    let first: u64 = first.parse().ok()?;
    let end =
        if last.is_empty() { size } else { last.parse::<u64>().ok()?.checked_add(1)?.min(size) };
    Some(first..end)
}

#[cfg(test)]
mod tests {
    use super::byte_range;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        assert_eq!(byte_range("bytes=0-3", 10), Some(0..4));
        assert_eq!(byte_range("bytes=4-", 10), Some(4..10));
        assert_eq!(byte_range("bytes=-3", 10), Some(7..10));
        assert_eq!(byte_range("bytes=8-99", 10), Some(8..10));
        assert_eq!(byte_range("bytes=1-2,4-5", 10), None);
        assert_eq!(byte_range("lines=1-2", 10), None);
    }
}
