//! Reading requests, with refusals in the API's own shape.

use crate::app::App;
use crate::error::ApiError;
use crate::problems;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::{self, Stream};
use http::StatusCode;
use http::request::Parts;
use polar_types::ErrorClass;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The whole body, up to the limit, whatever its content type says: `curl -d` calls JSON a
/// form.
pub(crate) struct Whole(pub(crate) Bytes);

impl FromRequest<Arc<App>> for Whole {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let limit = app.config.body_limit;
        let mut chunks = pin!(chunks(request.into_body(), app.config.body_idle));
        let mut whole = Vec::new();
        while let Some(chunk) = chunks.try_next().await? {
            if whole.len() + chunk.len() > limit {
                let message = format!("the body has more than the {limit} bytes allowed");
                return Err(ApiError::new(ErrorClass::TooLarge, message));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(Self(whole.into()))
    }
}

/// Why a body did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("nothing more came for {} seconds", .0.as_secs_f64())]
    Idle(Duration),
    #[error(transparent)]
    BrokenOff(#[from] axum::Error),
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let status = match error {
            BodyError::Idle(_) => StatusCode::REQUEST_TIMEOUT,
            BodyError::BrokenOff(_) => StatusCode::BAD_REQUEST,
        };
        Self::with_status(status, ErrorClass::Invalid, format!("the body broke off: {error}"))
    }
}

/// A body as it comes in, given up when nothing comes for too long.
pub(crate) fn chunks(
    body: Body,
    idle: Duration,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
    stream::try_unfold(body.into_data_stream(), move |mut body| async move {
        match tokio::time::timeout(idle, body.try_next()).await {
            Ok(chunk) => Ok(chunk?.map(|chunk| (chunk, body))),
            Err(_) => Err(BodyError::Idle(idle)),
        }
    })
}

/// A body of JSON, with every wrong field named.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let Whole(bytes) = Whole::from_request(request, app).await?;
        let value = problems::parse(&bytes)?;
        let read = problems::read(value, &serde_json::Value::Null, "");
        match (read.value, read.problems.is_empty()) {
            (Some(value), true) => Ok(Self(value)),
            _ => Err(ApiError::fields(read.problems)),
        }
    }
}

/// The `{id}` of the path.
pub(crate) struct PathId<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for PathId<T>
where
    T: FromStr,
    T::Err: Display,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|e| ApiError::new(ErrorClass::Invalid, e.body_text()))?;
        text.parse()
            .map(Self)
            .map_err(|e: T::Err| ApiError::new(ErrorClass::Invalid, e.to_string()))
    }
}

/// The query string.
pub(crate) struct Params<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for Params<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(params)| Self(params))
            .map_err(|refused| problems::in_query(&refused.body_text()))
    }
}
