//! Reading requests, with refusals in the API's own shape.

use crate::app::App;
use crate::error::ApiError;
use crate::problems;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::request::Parts;
use polar_types::ErrorClass;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

/// The whole body, up to the limit, whatever its content type says: `curl -d` calls JSON a
/// form.
pub(crate) struct Whole(pub(crate) Bytes);

impl FromRequest<Arc<App>> for Whole {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        read(request.into_body(), app.config.body_limit).await.map(Self)
    }
}

async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let limited = std::error::Error::source(&error)
            .is_some_and(|e| e.is::<http_body_util::LengthLimitError>());
        if limited {
            let message = format!("the body has more than the {limit} bytes allowed");
            ApiError::new(ErrorClass::TooLarge, message)
        } else {
            ApiError::new(ErrorClass::Invalid, format!("the body broke off: {error}"))
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
            .map_err(|e| ApiError::new(ErrorClass::Invalid, e.body_text()))
    }
}
