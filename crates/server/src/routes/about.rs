//! Whether the server is well, and what it is.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use axum::Json;
use axum::extract::State;
use polar_http::metrics::Page;
use polar_store::TaskQuery;
use serde::Serialize;
use std::sync::Arc;

/// Answer to `GET /api/health`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Whether the server can read its store.
#[utoipa::path(get, path = "/api/health", tag = "about", security(()), responses(
    (status = 200, body = Health),
    (status = 503, body = ErrorBody, description = "The store cannot be read."),
))]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Health>, ApiError> {
    app.store.tasks(&TaskQuery { limit: 1, ..TaskQuery::default() }).await?;
    Ok(Json(Health { status: "ok" }))
}

/// Counts and durations for Prometheus, as text. Needs the control token, as a bearer token.
#[utoipa::path(get, path = "/metrics", tag = "about",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Page, ApiError> {
    app.metrics.page(&app).await
}

/// Answer to `GET /api/version`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Version {
    /// `polar`.
    name: &'static str,
    /// Version of Polar.
    version: &'static str,
}

/// Which version of Polar this is.
#[utoipa::path(get, path = "/api/version", tag = "about", security(()),
    responses((status = 200, body = Version)))]
pub(crate) async fn version() -> Json<Version> {
    Json(Version { name: "polar", version: env!("CARGO_PKG_VERSION") })
}
